"""The OpenAPI document as an HTML page (``templates/docs.html``); styled by ``web/style.css`` and ``web/docs.css``.

Its only script, ``theme.js``, applies the colours chosen on the main page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

TEMPLATES = Path(__file__).parent / "templates"


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document, in the order of its tags and paths."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"line": _line, "paragraphs": _paragraphs, "schema_name": _schema_name, "json": json.dumps}
    return environment.get_template("docs.html").render(document=document)


def _line(text: str) -> Markup:
    """Escaped text; code between one or two backticks is marked up, and docstring references become plain names."""
    plain = re.sub(r":class:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return Markup(re.sub(r"(`{1,2})(.+?)\1", r"<code>\2</code>", str(escape(plain))))


def _paragraphs(text: str) -> list[str]:
    return [paragraph for paragraph in text.split("\n\n") if paragraph]


def _schema_name(reference: str) -> str:
    """The name of a schema in a reference, ``#/components/schemas/NAME``."""
    return reference.rpartition("/")[2]
