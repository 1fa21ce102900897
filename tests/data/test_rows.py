"""Rows as they are given: every kind of input, each row once and in its place, whatever is wrong with it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.image_cells import cell_bytes
from idc.data.images import decode_image
from idc.data.rows import InputRows, open_rows
from idc.data.schema import ChangePair
from tests.data.readers.test_own import picture
from tests.folders import read_chunks, write_rows

COUNT = 11


def test_change_types_of_tables(tmp_path: Path) -> None:
    rows = table("bytes").append_column("change_type", pa.array([None, "color"] + ["none"] * (COUNT - 2)))
    rows = rows.append_column("meta", pa.array([{"before": [i]} for i in range(COUNT)]))
    pq.write_table(rows.drop_columns(["pair_id"]), tmp_path / "t.parquet", row_group_size=3)
    batch = open_rows(str(tmp_path / "t.parquet"), columns=("change_type", "meta"), chunk_size=5, limit=6).read(1)
    assert batch == {
        "row": [5], "pair_id": ["5"], "change_type": ["none"], "meta": [{"before": [5]}], "error": [None]
    }  # fmt: skip
    (tmp_path / "t.jsonl").write_text('{"before": "a", "after": "b", "change_type": "move", "note": 7}')
    batch = open_rows(str(tmp_path / "t.jsonl"), columns=("change_type", "meta")).read(0)
    assert (batch["change_type"], batch["meta"]) == (["move"], [{"note": 7}])
    pq.write_table(rows.drop_columns(["before"]), tmp_path / "no.parquet")
    with pytest.raises(ValueError, match="has no column before"):
        open_rows(str(tmp_path / "no.parquet"), columns=("change_type",))


def put_images(folder: Path) -> None:
    for i in range(COUNT):
        for role, value in (("before", i), ("after", i + 1)):
            (folder / role).mkdir(parents=True, exist_ok=True)
            (folder / role / f"p{i:02d}.png").write_bytes(picture(value))


def table(cells: str, paths: Path | None = None) -> pa.Table:
    """The pairs as a table of bytes, of ``{"bytes", "path"}``, or of paths."""
    columns: dict[str, list[Any]] = {"pair_id": [f"p{i:02d}" for i in range(COUNT)], "note": ["x"] * COUNT}
    for role, step in (("before", 0), ("after", 1)):
        data = [picture(i + step) for i in range(COUNT)]
        if cells == "struct":
            columns[role] = [{"bytes": one, "path": None} for one in data]
        elif cells == "paths":
            columns[role] = [str((paths or Path()) / role / f"p{i:02d}.png") for i in range(COUNT)]
        else:
            columns[role] = data
    return pa.table(columns)


def write_pairs(path: Path, split: str = "train", images: bool = True) -> None:
    rows = []
    for i in range(COUNT):
        before, after = (picture(i), picture(i + 1)) if images else (b"", b"")
        rows.append(ChangePair(f"p{i:02d}", before, after, split=split if i % 2 else "test").to_row())
    write_rows(path, rows, rows_per_part=4, extra={} if images else {"images": False})


def make(kind: str, folder: Path) -> str:
    folder.mkdir()
    put_images(folder / "images")
    if kind == "folder of images":
        return str(folder / "images")
    if kind == "folder of pairs":
        write_pairs(folder / "pairs")
        return str(folder / "pairs")
    if kind == "parquet folders":
        for name, rows in (("2024", slice(0, 5)), ("2025", slice(5, COUNT))):
            (folder / "parts" / name).mkdir(parents=True)
            part = table("paths", folder / "images").take(list(range(COUNT))[rows])
            pq.write_table(part, folder / "parts" / name / "part.parquet", row_group_size=2)
        (folder / "parts" / "_old").mkdir()
        pq.write_table(table("bytes"), folder / "parts" / "_old" / "part.parquet")
        pq.write_table(table("bytes").slice(0, 0), folder / "parts" / "empty.parquet")
        return str(folder / "parts")
    pq.write_table(table("struct"), folder / "t.parquet")
    return str(folder / "t.parquet")


KINDS = ("folder of images", "folder of pairs", "parquet folders", "parquet of structs")


def rows_of(source: InputRows) -> list[tuple[int, str, int, int]]:
    """Place, id, and the grey values of both images of every row."""
    found = []
    for batch in read_chunks(pickle.loads(pickle.dumps(source))):
        assert batch["error"] == [None] * len(batch["row"])
        for row, name, *cells in zip(batch["row"], batch["pair_id"], batch["before"], batch["after"], strict=True):
            before, after = (int(decode_image(cell_bytes(cell, source.reader))[0, 0, 0]) for cell in cells)
            found.append((row, name, before, after))
    return found


ALL = [(i, f"p{i:02d}", i, i + 1) for i in range(COUNT)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    path = make(kind, tmp_path / "in")
    if kind == "parquet folders":
        assert rows_of(open_rows(path, "parquet", chunk_size=3)) == ALL
    else:
        assert rows_of(open_rows(path, chunk_size=3)) == ALL
    assert rows_of(open_rows(path, "parquet" if "parquet" in kind else "auto", chunk_size=4, limit=6)) == ALL[:6]


def test_a_long_row_group_is_read_in_any_order_of_its_chunks(tmp_path: Path) -> None:
    """300 rows in groups of 170 and 130, in chunks that end anywhere in them."""
    ids = [f"p{i}" for i in range(300)]
    images = [i.to_bytes(2, "big") for i in range(300)]
    pq.write_table(pa.table({"pair_id": ids, "before": images, "after": images}), tmp_path / "t.parquet",
                   row_group_size=170)  # fmt: skip
    for size in (7, 64, 100, 170, 1000):
        source = open_rows(str(tmp_path / "t.parquet"), chunk_size=size)
        order = list(range(source.num_chunks))
        for chunks in (order, order[::-1], order[::2] + order[1::2]):
            for chunk in chunks:
                batch = source.read(chunk)
                rows = list(range(chunk * size, min(chunk * size + size, 300)))
                assert batch["row"] == rows
                assert batch["pair_id"] == ids[rows[0] : rows[-1] + 1]
                assert batch["before"] == batch["after"] == images[rows[0] : rows[-1] + 1]


def test_rows_of_a_table_are_neither_merged_nor_left_out(tmp_path: Path) -> None:
    lines = [
        "pair_id,before,after,captions", "a,x.png,y.png,one", "a,x.png,y.png,another", ",x.png,y.png,no id",
        "a,z.png,y.png,other images", "b,x.png,y.png,c,too many cells", "c,,y.png,", '"d,d",x.png,y.png,',
    ]  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join(lines))
    source = open_rows(str(tmp_path / "t.csv"), chunk_size=2)
    batches = read_chunks(source)
    assert [len(batch["row"]) for batch in batches] == [2, 2, 2, 1]
    flat = {name: [value for batch in batches for value in batch[name]] for name in batches[0]}
    assert flat["row"] == list(range(7))
    assert flat["pair_id"] == ["a", "a", "2", "a", "t.csv:6", "c", "d,d"]
    assert flat["error"] == [None] * 4 + ["bad row: 5 cells under 4 columns"] + [None] * 2
    assert flat["before"] == ["x.png", "x.png", "x.png", "z.png", None, None, "x.png"]


def test_images_without_a_partner_are_rows(tmp_path: Path) -> None:
    put_images(tmp_path)
    (tmp_path / "after" / "p03.png").unlink()
    (tmp_path / "logo.png").write_bytes(picture(1))
    source = open_rows(str(tmp_path), chunk_size=5)
    batches = read_chunks(source)
    errors = {batch["row"][i]: e for batch in batches for i, e in enumerate(batch["error"]) if e is not None}
    assert errors == {
        3: "missing partner: there is no after image for before/p03.png",
        COUNT: "unplaced image: it is neither a before nor an after image",
    }
    assert source.num_rows == COUNT + 1


def test_only_rows_of_a_split_with_their_places_in_the_input(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", split="val")
    assert rows_of(open_rows(str(tmp_path / "pairs"), chunk_size=4, split="val")) == ALL[1::2]
    assert rows_of(open_rows(str(tmp_path / "pairs"), chunk_size=4, split="test", limit=5)) == ALL[:5:2]
    assert rows_of(open_rows(str(tmp_path / "pairs"), split="train")) == []


def test_another_input_has_another_fingerprint(tmp_path: Path) -> None:
    def mark(values: list[int], **options: Any) -> str:
        images = [bytes([value]) for value in values]
        ids = [f"p{value}" for value in values]
        pq.write_table(pa.table({"pair_id": ids, "before": images, "after": images}), tmp_path / "t.parquet")
        return open_rows(str(tmp_path / "t.parquet"), **options).fingerprint

    first = mark([1, 2, 3])
    assert mark([1, 2, 3]) == first
    others = {mark([1, 2, 4]), mark([1, 2, 3, 3]), mark([1, 2, 3], limit=2), mark([1, 2, 3], split="val"),
              mark([1, 2, 3], chunk_size=2)}  # fmt: skip
    assert len(others | {first}) == 6


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.csv").write_text("before,image\nx,y\n")
    (tmp_path / "empty.csv").write_text("before,after\n")
    pq.write_table(table("bytes").drop(["after"]), tmp_path / "t.parquet")
    (tmp_path / "t2.parquet").write_bytes(b"PAR1 but not really PAR1")
    (tmp_path / "nothing").mkdir()
    write_pairs(tmp_path / "bare", images=False)
    write_rows(tmp_path / "frames", [], "procedures", pa.schema([]))
    (tmp_path / "official").mkdir()
    for name in ("splits.json", "type_mapping.json"):
        (tmp_path / "official" / name).write_text("{}")
    for name, message in (
        ("no.csv", "no.csv has no column after; it has 'before', 'image'. Required: before, after;"),
        ("empty.csv", "has no rows"),
        ("t.parquet", "t.parquet has no column after"),
        ("t2.parquet", "is not a Parquet file"),
        ("nothing", "no format matches its files. Put the images into before/ and after/"),
        ("bare", "has annotations alone"),
        ("frames", "holds procedures, not pairs"),
        ("official", "has the layout clevr_change: import it first"),
    ):
        with pytest.raises(ValueError, match=message):
            open_rows(str(tmp_path / name))
    with pytest.raises(ValueError, match="has no Parquet files"):
        open_rows(str(tmp_path / "nothing"), "parquet")
