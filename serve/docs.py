"""The OpenAPI document as an HTML page; its look: ``web/style.css``, ``docs.css``.

Its one script, ``theme.js``, applies the colours that the reader chose on the main page.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<title>{title}: the interface</title><link rel="icon" href="web/icon.svg" type="image/svg+xml">'
    '<link rel="stylesheet" href="web/style.css"><link rel="stylesheet" href="web/docs.css">'
    '<script src="web/theme.js"></script></head><body><main>'
)


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document, in the order of its tags and paths."""
    title = escape(document["info"]["title"])
    out = [_HEAD.format(title=title), f"<h1>{title}</h1>", _prose(document["info"]["description"])]
    out.append(
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. <a href="./">The page to try it</a>.</p>'
    )
    for tag in document["tags"]:
        out.append(f"<h2>{escape(tag['name'])}</h2>{_prose(tag['description'])}")
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    out.append(_operation(path, method, operation))
    out.append("<h2>Shapes</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        out.append(
            f'<section class="card" id="{escape(name)}"><h3><code>{escape(name)}</code></h3>{_schema(schema)}</section>'
        )
    return "".join([*out, "</main></body></html>"])


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    out = [
        f'<section class="card"><h3><code>{method.upper()} {escape(path)}</code> {escape(operation["summary"])}</h3>'
    ]
    out.append(_prose(operation["description"]))
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        shape = _type(media["schema"]) if "$ref" in media["schema"] else _schema(media["schema"])
        out.append(f"<h4>Takes <code>{escape(kind)}</code></h4><div>{shape}</div>")
        for name, example in media.get("examples", {}).items():
            out.append(
                f"<details><summary>{escape(name)}</summary>{_pre(_curl(path, kind, example['value']))}</details>"
            )
    out.append("<h4>Answers</h4><table>")
    for status, answer in operation["responses"].items():
        shapes = []
        for kind, media in answer.get("content", {}).items():
            schema = media.get("schema") or media["itemSchema"]
            shapes.append(f"<code>{escape(kind)}</code>: {_type(schema)}")
            if "example" in media:
                shapes.append(f"<details><summary>for example</summary>{_pre(_text(media['example']))}</details>")
        cell = "<br>".join(shapes).replace("<br><details>", "<details>")
        out.append(f"<tr><th>{status}</th><td>{_line(answer['description'])}</td><td>{cell}</td></tr>")
    return "".join([*out, "</table></section>"])


def _curl(path: str, kind: str, value: Any) -> str:
    return f"curl -H 'Content-Type: {kind}' http://127.0.0.1:8000{path} -d '{json.dumps(value)}'"


def _text(example: Any) -> str:
    return example if isinstance(example, str) else json.dumps(example, indent=2)


def _schema(schema: dict[str, Any]) -> str:
    rows = []
    for name, field in schema.get("properties", {}).items():
        needed = "" if name not in schema.get("required", []) else " <b>required</b>"
        default = field.get("default")
        known = "" if default in (None, [], "") else f" Default: <code>{escape(json.dumps(default))}</code>."
        text = _line(field.get("description", "")) + known
        rows.append(f"<tr><th><code>{escape(name)}</code></th><td>{_type(field)}{needed}</td><td>{text}</td></tr>")
    return f"{_prose(schema.get('description', ''))}<table>{''.join(rows)}</table>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(option) for option in schema["anyOf"]))
    if "contentSchema" in schema:
        return _type(schema["contentSchema"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and "data" in schema.get("properties", {}):  # of a stream
        name = schema["properties"].get("event", {}).get("const", "message")
        return f"{_type(schema['properties']['data'])} (event <code>{escape(name)}</code>)"
    return escape(str(schema.get("type", "anything")))


def _pre(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def _prose(text: str) -> str:
    return "".join(f"<p>{_line(paragraph)}</p>" for paragraph in text.split("\n\n") if paragraph)


def _line(text: str) -> str:
    """Escaped, with code between one or two backticks, and references of docstrings by their names."""
    plain = re.sub(r":class:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return re.sub(r"(`{1,2})(.+?)\1", r"<code>\2</code>", escape(plain))
