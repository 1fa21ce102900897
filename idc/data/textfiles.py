"""Text, lines and JSON from files of others, read strictly, so that nothing in them is lost silently.

One reader for the whole project. It raises :class:`JsonError` (a ``ValueError``) where Python's parser accepts the
input or fails with another exception: a repeated key, ``NaN``, unlimited nesting, an integer of thousands of digits,
half a character (a lone surrogate).
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Literal

_BOM = "\ufeff"
_LINE_END = re.compile("\r\n|\n|\r")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """A text that is not usable as JSON; the message gives the reason, and the position if known."""


def decode_text(data: bytes, errors: Literal["strict", "surrogateescape"] = "strict") -> str:
    """Bytes as UTF-8 text, without a byte order mark.

    Args:
        errors: ``surrogateescape`` keeps bytes that are not UTF-8 as lone surrogates, which are detected where the
            text is used.

    Raises:
        ValueError: the bytes are not UTF-8 (with ``strict``); names the position.
    """
    try:
        return data.decode("utf-8", errors).removeprefix(_BOM)
    except UnicodeDecodeError as error:
        encoding = "; it is UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""
        byte = data[error.start : error.start + 1]
        raise ValueError(f"not UTF-8: byte {error.start} is {byte!r}{encoding}; save it as UTF-8") from None


def split_lines(text: str) -> list[str]:
    """The lines of a text without their ends: LF, CRLF and CR end a line, nothing else does.

    ``str.splitlines`` also splits at U+2028, U+0085, form feeds and others, which occur inside captions.
    """
    lines = _LINE_END.split(text)
    return lines[:-1] if lines[-1] == "" else lines


def composed(name: str) -> str:
    """A name in Unicode's composed form (NFC)."""
    return unicodedata.normalize("NFC", name)


def spellings(name: str) -> list[str]:
    """Other spellings of a path: with slashes for the backslashes of Windows, and in Unicode's composed and decomposed
    forms, as the archives of macOS have file names decomposed and tables mostly do not."""
    slashes = name.replace("\\", "/")
    forms = (slashes, composed(slashes), unicodedata.normalize("NFD", slashes))
    return [form for form in dict.fromkeys(forms) if form != name]


def parse_json(text: str, *, keep_surrogates: bool = False) -> Any:
    """A JSON text as Python values.

    Args:
        keep_surrogates: accept an escape that is half a character (``"\\ud83d"``); the caller checks its texts.

    Raises:
        JsonError: not JSON, a repeated key, ``NaN`` or ``Infinity``, nested too deep, a number that is too long, or
            half a character.
    """
    text = text.removeprefix(_BOM)
    with _json_errors():
        value = _STRICT.decode(text)
    if not keep_surrogates and _SURROGATE_ESCAPE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start : error.end])
            raise JsonError(f"not usable as text: {half} is half a character (a lone surrogate)") from None
    return value


@contextlib.contextmanager
def _json_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise JsonError("not usable as JSON: nested too deep") from None
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error}") from None
    except ValueError as error:  # Python's limit of digits
        raise JsonError(f"not usable as JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonError(f"not usable as JSON: the key {key!r} occurs twice in an object; keep one of them")
            seen.add(key)
    return content


def _constant(name: str) -> Any:
    raise JsonError(f"not JSON: {name} is not a JSON number; write null, or omit the entry")


_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
