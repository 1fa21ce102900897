"""The interface as a page for people, made of the OpenAPI document: no script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_METHODS = ("get", "post", "put", "patch", "delete")
_MAX_TEXT = 72
"""Characters of a text in an example that are shown; images are longer."""


def page(document: Mapping[str, Any]) -> str:
    """The HTML page of an OpenAPI document."""
    info, schemas = document["info"], document.get("components", {}).get("schemas", {})
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        '<meta name=color-scheme content="light dark">',
        f"<title>{escape(info['title'])}: the interface</title>",
        '<link rel=stylesheet href="web/style.css"><link rel=stylesheet href="web/docs.css"></head><body><main>',
        f"<h1>{escape(info['title'])}</h1>",
        _text(info.get("description", "")),
        '<p><a href="./">The page to try it</a> · <a href="openapi.json">OpenAPI document</a></p><nav><ul>',
    ]
    operations = list(_operations(document))
    parts += [
        f'<li><a href="#{_anchor(method, path)}"><code>{method.upper()} {escape(path)}</code></a> '
        f"{escape(operation.get('summary', ''))}</li>"
        for method, path, operation in operations
    ]
    parts.append("</ul></nav>")
    for method, path, operation in operations:
        parts.append(f'<section class=card id="{_anchor(method, path)}">')
        parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
        parts.append(_text(operation.get("description", "")))
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            parts.append(f"<h3>Body: <code>{escape(kind)}</code> {_kind(content.get('schema', {}))}</h3>")
            parts.append(_examples(content))
        for status, response in operation.get("responses", {}).items():
            parts.append(
                f"<h3>{escape(str(status))} <span class=soft>{escape(response.get('description', ''))}</span></h3>"
            )
            for kind, content in response.get("content", {}).items():
                parts.append(f"<p><code>{escape(kind)}</code> {_kind(content.get('schema', {}))}</p>")
                parts.append(_examples(content))
        parts.append("</section>")
    parts += [_schema(name, schema) for name, schema in sorted(schemas.items())]
    parts.append("</main></body></html>")
    return "\n".join(part for part in parts if part)


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield method, path, item[method]


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = []
    for field, described in schema.get("properties", {}).items():
        needed = " <em>required</em>" if field in schema.get("required", ()) else ""
        default = described.get("default")
        given = (
            f" <span class=soft>default <code>{escape(json.dumps(default))}</code></span>"
            if default is not None
            else ""
        )
        rows.append(
            f"<dt><code>{escape(field)}</code> {_kind(described)}{needed}{given}</dt>"
            f"<dd>{escape(described.get('description', ''))}</dd>"
        )
    text = _text(schema.get("description", ""))
    head = f'<section class=card id="{escape(name)}"><h2><code>{escape(name)}</code></h2>'
    return f"{head}{text}<dl>{''.join(rows)}</dl></section>"


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to others."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(_kind(one) for one in schema[union])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    return escape(str(schema.get("type", "")))


def _examples(content: Mapping[str, Any]) -> str:
    named = dict(content.get("examples", {}))
    if "example" in content:
        named["example"] = {"value": content["example"]}
    shown = []
    for name, example in named.items():
        value = example.get("value")
        text = value if isinstance(value, str) else json.dumps(_short(value), indent=2, ensure_ascii=False)
        title = escape(example.get("summary", name))
        shown.append(f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>")
    return "".join(shown)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner) for inner in value]
    return value[:_MAX_TEXT] + "..." if isinstance(value, str) and len(value) > _MAX_TEXT else value


def _text(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n") if part.strip())


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}".replace("/", "-").strip("-"))
