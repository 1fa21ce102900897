"""A JSON array is read element by element, wherever a block of the file ends, and no part of it is lost silently."""

from __future__ import annotations

import io
import json

import pytest

from idc.data import json_arrays
from idc.data.json_arrays import begins_array, iter_array

ROWS = [{"a": 'x"]}\\', "b": [1, {"c": "é\u2028[{"}]}, {"a": "\\\\"}, {}, {"a": '\\"'}]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64 * 1024])
@pytest.mark.parametrize("indent", [None, 2])
def test_elements(block: int, indent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_arrays, "_BLOCK", block)
    data = ("\ufeff \n" + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n").encode()
    elements = list(iter_array(io.BytesIO(data)))
    assert [json.loads(element.data) for element in elements] == ROWS
    assert [data[e.offset : e.offset + len(e.data)] for e in elements] == [e.data for e in elements]
    assert [e.line for e in elements] == [data.count(b"\n", 0, e.offset) + 1 for e in elements]


@pytest.mark.parametrize("block", [1, 5, 64 * 1024])
def test_what_is_no_object_is_an_element_of_its_own(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_arrays, "_BLOCK", block)

    def elements(text: str) -> list[str]:
        return [element.data.decode() for element in iter_array(io.BytesIO(text.encode()))]

    assert elements('[{"a": 1}, 5, "{", {"a": 2}, null]') == ['{"a": 1}', '5, "{"', '{"a": 2}', "null"]
    assert elements('[{"a": 1}] {"a": 2}\n{}') == ['{"a": 1}', '{"a": 2}\n{}']
    assert elements('[{"a": 1}, {"a": ') == ['{"a": 1}', '{"a":']
    assert elements('[{"a": 1},\n') == ['{"a": 1}', "}"], "the array is not closed"
    assert elements('[{"a": "1}, {"b": 2}]') == ['{"a": "1}, {"b": 2}]'], "a quote that is not closed"
    assert elements("[]") == []


def test_lines_are_no_array() -> None:
    for text, array in (('[{"a"', True), ("\ufeff\n [ \n{", True), ("[]", True), ('{"a": []}', False), ("[1]", False)):
        assert begins_array(io.BytesIO(text.encode())) == array, text
