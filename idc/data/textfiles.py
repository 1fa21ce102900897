"""Text, lines and JSON of files that others wrote: read strictly, so that nothing in them is lost without a word.

One reader for the whole project. It raises :class:`JsonError` (a ``ValueError``) where Python's own is silent or ends
in something else: a key that occurs twice, ``NaN``, nesting without end, an integer of thousands of digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

_BOM = "\ufeff"
_LINE_END = re.compile("\r\n|\n|\r")


class JsonError(ValueError):
    """A text that is not usable as JSON; the message says why, and where if that is known."""


def decode(data: bytes, errors: Literal["strict", "surrogateescape"] = "strict") -> str:
    """Bytes as UTF-8 text, without a byte order mark.

    Args:
        errors: ``surrogateescape`` keeps bytes that are not UTF-8 as lone surrogates, to be found where the text is
            used.

    Raises:
        ValueError: the bytes are not UTF-8 (with ``strict``); names the place.
    """
    try:
        return data.decode("utf-8", errors).removeprefix(_BOM)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start} is {data[error.start : error.start + 1]!r}") from None


def split_lines(text: str) -> list[str]:
    """The lines of a text without their ends: LF, CRLF and CR end a line, nothing else does.

    ``str.splitlines`` also splits at U+2028, U+0085, form feeds and others, which occur inside captions.
    """
    lines = _LINE_END.split(text)
    return lines[:-1] if lines[-1] == "" else lines


def parse_json(text: str, on_repeated_key: Callable[[str], None] | None = None) -> Any:
    """A JSON text as Python values.

    Args:
        on_repeated_key: called with each key that an object has more than once, whose last value is then kept. By
            default such a key is an error.

    Raises:
        JsonError: not JSON, a repeated key, ``NaN`` or ``Infinity``, nested too deep, or a number that is too long.
    """
    try:
        return json.loads(
            text.removeprefix(_BOM),
            object_pairs_hook=lambda pairs: _object(pairs, on_repeated_key),
            parse_constant=_constant,
        )
    except RecursionError:
        raise JsonError("not usable as JSON: nested too deep") from None
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error}") from None
    except ValueError as error:  # Python's limit of digits
        raise JsonError(f"not usable as JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]], on_repeated_key: Callable[[str], None] | None) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                if on_repeated_key is None:
                    raise JsonError(f"the key {key!r} occurs twice in one object; keep one of them")
                on_repeated_key(key)
            seen.add(key)
    return found


def _constant(name: str) -> Any:
    raise JsonError(f"not JSON: {name} is no JSON number; write null, or leave the entry out")
