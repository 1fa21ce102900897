"""CSV: a quote that is not closed, or closed in the wrong place, costs its own row and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.data.pipeline import iter_chunks
from idc.data.rows import open_rows
from idc.data.store import iter_rows, read_rejects
from tests.data.readers.test_own import prepare, put, table_images

HEADER = "pair_id,before,after,caption"
PLACES = "images/1.png,images/2.png"


def imported(
    tmp_path: Path, lines: list[str], end: str = "\n", header: str = HEADER
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The captions of the pairs and the reasons of the rejects of a table."""
    table_images(tmp_path)
    (tmp_path / "t.csv").write_bytes(end.join([header, *lines, ""]).encode())
    prepare(tmp_path / "t.csv", tmp_path / "out", "csv", chunk_size=7)
    pairs = {row["pair_id"]: row["captions"] for row in iter_rows(tmp_path / "out")}
    return pairs, dict(read_rejects(tmp_path / "out"))


def given(path: Path) -> list[tuple[str, str | None]]:
    """Id and error of every row, as jobs/caption.py reads them."""
    return [
        (name, error)
        for batch in iter_chunks(open_rows(str(path), chunk_size=7))
        for name, error in zip(batch["pair_id"], batch["error"], strict=True)
    ]


def rows(count: int) -> list[str]:
    return [f"p{n},{PLACES},the {n} is gone" for n in range(2, count + 2)]


@pytest.mark.parametrize("count", [52, 400])
def test_a_quote_that_is_never_closed_costs_one_row(tmp_path: Path, count: int) -> None:
    lines = rows(count)
    lines[1] = f'p3,{PLACES},"unclosed'
    pairs, rejects = imported(tmp_path, lines)
    assert list(pairs) == [f"p{n}" for n in range(2, count + 2) if n != 3]
    assert list(rejects) == ["t.csv:3"]
    assert rejects["t.csv:3"].startswith("bad row: the quote of a cell is not closed")
    everything = given(tmp_path / "t.csv")
    assert len(everything) == count
    assert [name for name, error in everything if error] == ["t.csv:3"]


def test_without_file_names_to_tell_rows_by_the_limit_of_lines_ends_a_cell(tmp_path: Path) -> None:
    lines = [f"p{n},one,two,x" for n in range(400)]
    lines[10] = 'p10,one,two,"unclosed'
    lines[390] = 'p390,one,two,"closed"'
    (tmp_path / "t.csv").write_text("\n".join([HEADER, *lines]))
    assert given(tmp_path / "t.csv") == [
        (f"p{n}", None) if n != 10 else ("t.csv:12", "bad row: the quote of a cell is not closed within 64 lines")
        for n in range(400)
    ]


@pytest.mark.parametrize("closing", ['10" pipe', 'a pipe of 10"', '"10" pipe"', '"a pipe of ""10"""'])
@pytest.mark.parametrize("between", [0, 1, 5])
def test_inch_marks_do_not_join_rows(tmp_path: Path, closing: str, between: int) -> None:
    lines = rows(20)
    lines[4] = f'p6,{PLACES},"9 inch'
    lines[5 + between] = f"p{7 + between},{PLACES},{closing}"
    pairs, rejects = imported(tmp_path, lines)
    lost = {"t.csv:6"} | ({f"t.csv:{7 + between}"} if closing == '"10" pipe"' else set())
    assert set(rejects) == lost
    assert len(pairs) == 20 - len(lost)
    if closing == 'a pipe of 10"':
        assert pairs[f"p{7 + between}"] == ['a pipe of 10"']


def test_captions_of_several_lines_are_kept_wherever_they_stand(tmp_path: Path) -> None:
    header = "caption,before,after,pair_id"
    lines = [f'"first\nthe second, third\n\nlast, ""quoted"", and gone",{PLACES},p1', f"one,{PLACES},p2"]
    pairs, rejects = imported(tmp_path, lines, header=header)
    assert pairs == {"p1": ['first\nthe second, third\n\nlast, "quoted", and gone'], "p2": ["one"]}
    assert rejects == {}


def test_a_quote_inside_a_quoted_cell_is_named(tmp_path: Path) -> None:
    pairs, rejects = imported(tmp_path, [f'p1,{PLACES},"the "red" car"', f'p2,{PLACES},"he said "no"', *rows(2)[1:]])
    assert list(pairs) == ["p3"]
    assert list(rejects) == ["t.csv:2", "t.csv:3"]
    assert all("followed by neither a delimiter nor a line end" in reason for reason in rejects.values())


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_every_line_end_ends_rows(tmp_path: Path, end: str) -> None:
    pairs, rejects = imported(tmp_path, [*rows(300), f'p0,{PLACES},"two{end}lines"'], end=end)
    assert len(pairs) == 301
    assert pairs["p0"] == [f"two{end}lines"]
    assert rejects == {}
    assert given(tmp_path / "t.csv")[299:] == [("p301", None), ("p0", None)]


def test_a_line_end_at_the_end_of_a_block(tmp_path: Path) -> None:
    """CR and LF of one line end, read apart."""
    for length in range(8180, 8200):
        line = f"p1,{PLACES},".ljust(length, "x")
        (tmp_path / "t.csv").write_bytes(f"{HEADER}\r\n{line}\r\np2,a.png,b.png,y\r".encode())
        assert given(tmp_path / "t.csv") == [("p1", None), ("p2", None)], length


def test_a_cell_without_end_is_a_reject(tmp_path: Path) -> None:
    pairs, rejects = imported(tmp_path, [f"p1,{PLACES},{'x' * 200_000}", f'p2,{PLACES},"{"x" * 200_000}"', *rows(2)])
    assert list(pairs) == ["p2", "p3"]
    assert {place: reason[:9] for place, reason in rejects.items()} == {"t.csv:2": "bad row: ", "t.csv:3": "bad row: "}


def test_a_doubled_column_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"t.csv": f"{HEADER},caption\np1,{PLACES},a,b\n"})
    with pytest.raises(ValueError, match=r"t\.csv has the column 'caption' more than once"):
        prepare(tmp_path / "t.csv", tmp_path / "out", "csv")
    with pytest.raises(ValueError, match=r"t\.csv has the column 'caption' more than once"):
        open_rows(str(tmp_path / "t.csv"))


def test_cells_of_columns_without_a_name_are_not_dropped(tmp_path: Path) -> None:
    pairs, rejects = imported(tmp_path, [f"p1,{PLACES},x,,", f"p2,{PLACES},x,1,2"], header=f"{HEADER},,")
    assert list(pairs) == ["p1"]
    assert list(rejects) == ["t.csv:3"]
