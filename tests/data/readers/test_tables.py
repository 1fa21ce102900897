"""Tables: a bad cell of CSV costs its own row and no other, and no part of a JSON array is lost silently."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from idc.data import files
from idc.data.readers.table import TableReader, _array_elements
from idc.data.rows import open_rows
from tests.data.readers.test_own import imported, table_images
from tests.folders import read_chunks

HEADER = "pair_id,before,after,caption"
FILES = "images/1.png,images/2.png"


def table(folder: Path, lines: list[str], end: str = "\n", header: str = HEADER) -> Path:
    table_images(folder)
    (folder / "t.csv").write_bytes(end.join([header, *lines, ""]).encode())
    return folder / "t.csv"


def as_captioned(path: Path) -> list[tuple[str, str | None]]:
    chunks = read_chunks(open_rows(str(path), chunk_size=7))
    return [row for batch in chunks for row in zip(batch["pair_id"], batch["error"], strict=True)]


def rows(count: int) -> list[str]:
    return [f"p{n},{FILES},the {n} is gone" for n in range(2, count + 2)]


# Lines after the header; ids of the pairs, and rejects: line -> beginning of the reason
CELLS: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "a quote that is never closed": (
        [rows(400)[0], f'p3,{FILES},"unclosed', *rows(400)[2:]], [f"p{n}" for n in range(2, 402) if n != 3],
        {"t.csv:3": "bad row: unexpected end of data; a quoted cell ends on its line"},
    ),
    "a quote inside a quoted cell": (
        [f'p1,{FILES},"the "red" car"', f'p2,{FILES},"he said "no"', *rows(2)[1:]], ["p3"],
        dict.fromkeys(["t.csv:2", "t.csv:3"], "bad row: "),
    ),
    "a cell without end": (
        [f"p1,{FILES},{'x' * 200_000}", f'p9,{FILES},"{"x" * 200_000}"', *rows(2)], ["p2", "p3"],
        dict.fromkeys(["t.csv:2", "t.csv:3"], "bad row: "),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_a_bad_cell_costs_its_row_and_no_other(name: str, tmp_path: Path) -> None:
    lines, ids, reasons = CELLS[name]
    path = table(tmp_path, lines)
    pairs, rejects = imported(path, "csv", chunk_size=7)
    assert list(pairs) == ids
    assert rejects.keys() == reasons.keys()
    assert all(rejects[line].startswith(reason) for line, reason in reasons.items())
    everything = as_captioned(path)
    assert len(everything) == len(lines)
    assert [name for name, error in everything if error] == list(reasons)


@pytest.mark.parametrize("closing", ['10" pipe', 'a pipe of 10"', '"10" pipe"', '"a pipe of ""10"""'])
def test_inch_marks_do_not_join_rows(tmp_path: Path, closing: str) -> None:
    lines = rows(20)
    lines[4] = f'p6,{FILES},"9 inch'
    lines[5] = f"p7,{FILES},{closing}"
    pairs, rejects = imported(table(tmp_path, lines), "csv")
    lost = {"t.csv:6"} | ({"t.csv:7"} if closing == '"10" pipe"' else set())
    assert (set(rejects), len(pairs)) == (lost, 20 - len(lost))
    if closing == 'a pipe of 10"':
        assert pairs["p7"] == ['a pipe of 10"']


def test_cells_of_columns_without_a_name_are_not_dropped(tmp_path: Path) -> None:
    pairs, rejects = imported(table(tmp_path, [f"p1,{FILES},x,,", f"p2,{FILES},x,1,2"], header=f"{HEADER},,"), "csv")
    assert (list(pairs), list(rejects)) == (["p1"], ["t.csv:3"])


ROWS = [{"a": 'x"]}\\', "b": [1, {"c": "é\u2028[{"}]}, {"a": "\\\\"}, {}, {"a": '\\"', "n": int("1" * 4000)}]


@pytest.mark.parametrize("indent", [None, 2])
def test_elements(indent: int | None) -> None:
    data = ("\ufeff \n" + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n").encode()
    elements = list(_array_elements(data))
    assert [json.loads(raw) for _, _, raw in elements] == ROWS
    assert [data[offset : offset + len(raw)] for offset, _, raw in elements] == [raw for _, _, raw in elements]
    assert [line for _, line, _ in elements] == [data.count(b"\n", 0, offset) + 1 for offset, _, _ in elements]


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
    assert [raw.decode() for _, _, raw in _array_elements(text.encode())] == elements


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_are_read_from_where_they_are(tmp_path: Path, end: str) -> None:
    """A copy of the reader is small: it has the positions of the rows, and reads only the rows of its chunk."""
    lines = [f"p{n // 2},{FILES},{'ä' * (n % 5)}\u2028{'x' * 200} {n}" for n in range(4000)]
    path = table(tmp_path, ["", *lines], end)
    reader = TableReader(files.locate(path), "csv", chunk_size=100)
    copy = pickle.dumps(reader)
    assert len(copy) < path.stat().st_size / 5
    rows = [
        row for batch in read_chunks(pickle.loads(copy)) for row in zip(batch["source"], batch["captions"], strict=True)
    ]
    expected = [line.split(",")[3] for line in lines]
    assert rows == [(f"t.csv:{n + 3}", expected[n : n + 2]) for n in range(0, 4000, 2)]


def test_a_first_line_of_a_million_columns_is_refused(tmp_path: Path) -> None:
    for line in (",".join(map(str, range(10**6))), "x" * 200_000):
        with pytest.raises(ValueError, match=r"t\.csv has a first line of .* characters, which"):
            TableReader(files.locate(table(tmp_path, [], header=line)), "csv")
