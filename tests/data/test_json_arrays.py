"""A JSON array is read element by element, and no part of it is lost silently."""

from __future__ import annotations

import io
import json

import pytest

from idc.data.json_arrays import begins_array, iter_array

ROWS = [{"a": 'x"]}\\', "b": [1, {"c": "é\u2028[{"}]}, {"a": "\\\\"}, {}, {"a": '\\"', "n": int("1" * 4000)}]


@pytest.mark.parametrize("indent", [None, 2])
def test_elements(indent: int | None) -> None:
    data = ("\ufeff \n" + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n").encode()
    elements = list(iter_array(io.BytesIO(data)))
    assert [json.loads(element.data) for element in elements] == ROWS
    assert [data[e.offset : e.offset + len(e.data)] for e in elements] == [e.data for e in elements]
    assert [e.line for e in elements] == [data.count(b"\n", 0, e.offset) + 1 for e in elements]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ('[{"a": 1}, 5, "{", {"a": 2}, null]', ['{"a": 1}', "5", '"{"', '{"a": 2}', "null"]),
        ('[{"a": 1}] {"a": 2}\n{}', ['{"a": 1}', '{"a": 2}\n{}']),
        ('[{"a": 1}, {"a": ', ['{"a": 1}', '{"a":']),
        ('[{"a": 1},\n', ['{"a": 1}', "}"]),  # the array is not closed
        ('[{"a": "1}, {"b": 2}]', ['{"a": "1}, {"b": 2}]']),  # a quote that is not closed
        (f'[{{"a": {"1" * 5000}}}, {{}}]', [f'{{"a": {"1" * 5000}}}', "{}"]),
        ("[]", []),
    ],
)
def test_what_is_no_object_or_broken_is_an_element_of_its_own(text: str, elements: list[str]) -> None:
    assert [element.data.decode() for element in iter_array(io.BytesIO(text.encode()))] == elements


def test_lines_are_no_array() -> None:
    for text, array in (('[{"a"', True), ("\ufeff\n [ \n{", True), ("[]", True), ('{"a": []}', False), ("[1]", False)):
        assert begins_array(io.BytesIO(text.encode())) == array, text
