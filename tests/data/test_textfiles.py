"""Text, lines and JSON of others' files: nothing is dropped, every fault has a message."""

from __future__ import annotations

import pytest

from idc.data.textfiles import JsonError, decode_text, parse_json, split_lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs twice"),
        ("[" * 100_000, "nested too deep"),
        ("1" * 5_000, "4300 digits"),
        ('{"x": NaN}', "NaN is not a JSON number"),
        ('{"x": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a":', "not JSON: Expecting value"),
        ("", "not JSON: Expecting value"),
    ],
)
def test_a_fault_is_a_json_error_that_says_why(text: str, says: str) -> None:
    with pytest.raises(JsonError, match=says):
        parse_json(text)


def test_bytes_that_are_not_utf8_are_named_or_kept_and_a_byte_order_mark_is_no_content() -> None:
    assert parse_json('\ufeff{"a": 1}') == {"a": 1}
    assert decode_text("\ufeffé".encode()) == "é"
    with pytest.raises(ValueError, match=r"byte 1 is b'\\xe9'"):
        decode_text(b"a\xe9")
    assert decode_text(b"a\xe9", "surrogateescape") == "a\udce9"


def test_only_line_ends_end_lines() -> None:
    assert split_lines("a\u2028b\x0cc\x85d\r\ne\rf\n\ng\n") == ["a\u2028b\x0cc\x85d", "e", "f", "", "g"]
    assert split_lines("") == []
    assert split_lines("\n") == [""]


def test_half_a_character_is_refused_or_kept() -> None:
    with pytest.raises(JsonError, match=r"'\\ud83d' is half a character"):
        parse_json('{"a": ["x \\ud83d"]}')
    assert parse_json('"\\ud83d"', keep_surrogates=True) == "\ud83d"
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"
