"""Hostile tables: CSV, JSON lines and Parquet, each row with what must come of it.

Every table also has the row ``good`` in front, which must come out whatever follows, unless the whole table is refused.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.readers.test_own import picture
from tests.faults.hostile import HOST, OUTSIDE, Content, Hostile, Surroundings, fifo

IMAGES: dict[str, Content] = {"1.png": 1, "2.png": 2, "folder/3.png": 3}
HEADER = "pair_id,before,after,caption,split"
GOOD_LINE = "good,1.png,2.png,it moved,train"


def table(format: str, data: bytes | str, **outcome: Any) -> Hostile:
    name = f"t.{format}"
    return Hostile(format, {**IMAGES, name: data}, source=name, **outcome)


# ------------------------------------------------------------------------------------------------ CSV


def csv(*lines: str, end: str = "\n", header: str = HEADER, **outcome: Any) -> Hostile:
    """The good line in line 2, then the given ones."""
    return table("csv", end.join([header, GOOD_LINE, *lines, ""]), **outcome)


def row(name: str, caption: str = "x", before: str = "1.png", after: str = "2.png", split: str = "train") -> str:
    return f"{name},{before},{after},{caption},{split}"


def csv_rejected(line: str, code: str, row_id: str = "p", **more: Any) -> Hostile:
    """That line is a reject, the lines around it are pairs."""
    return csv(line, row("q"), pairs=("good", "q"), rejects={row_id: code}, **more)


def csv_entries() -> dict[str, Hostile]:
    both = ("good", "p", "q")
    out = {
        "a quote alone": csv_rejected('"', "bad row", "t.csv:3"),
        "all line ends": table("csv", f"{HEADER}\r{GOOD_LINE}\r\n{row('p')}\n{row('q')}\r", pairs=both),
        "a NUL in a name": csv_rejected(row("p", before="1.png\0.txt"), "unreadable file"),
        "UTF-16": table("csv", f"{HEADER}\n{GOOD_LINE}\n".encode("utf-16"), error="is UTF-16; save it as"),
        "Latin-1": csv_rejected(row("p", "caf\udce9"), "not UTF-8"),
        "empty": table("csv", "", error="no column"),
        "meta that is no JSON": csv_rejected(row("p") + ",{", "bad row", header=HEADER + ",meta"),
        "a name of 100,000 letters": csv_rejected(row("p", before="x" * 100_000), "unreadable file"),
        "text from elsewhere": csv_rejected(row("p", before=f"{OUTSIDE}/canary.txt"), "not an image"),
        "a device": csv_rejected(row("p", before="/dev/null"), "unreadable file"),
        "a share": csv_rejected(row("p", before=f"file://{HOST}/x.png"), "unreadable file"),
        "a chain of schemes": csv_rejected(row("p", before=f"simplecache::http://{HOST}/x.png"), "outside the source"),
    }  # fmt: skip
    fifos = csv(row("p", before="pipe.png"), row("q"), pairs=("good", "q"), rejects={"p": "unreadable file"})
    out["a FIFO"] = Hostile("csv", {**fifos.files, "pipe.png": fifo}, fifos.pairs, fifos.rejects, source="t.csv")
    out["a FIFO for the table"] = Hostile("csv", {**IMAGES, "t.csv": fifo}, error="t.csv is not a file", source="t.csv")
    out["a folder for the table"] = Hostile("csv", {**IMAGES}, error="folder is not a file", source="folder")
    return {f"csv: {name}": entry for name, entry in out.items()}


# ------------------------------------------------------------------------------------------------ JSON lines

GOOD_RECORD = {"pair_id": "good", "before": "1.png", "after": "2.png", "caption": "it moved", "split": "train"}
PLACES = '"before": "1.png", "after": "2.png", "split": "train"'


def jsonl(*lines: str, **outcome: Any) -> Hostile:
    """The good line in line 1, then the given ones."""
    return table("jsonl", "\n".join([json.dumps(GOOD_RECORD), *lines, ""]), **outcome)


def jsonl_rejected(line: str, code: str = "bad row", row_id: str = "t.jsonl:2") -> Hostile:
    return jsonl(line, f'{{"pair_id": "q", {PLACES}}}', pairs=("good", "q"), rejects={row_id: code})


def jsonl_entries() -> dict[str, Hostile]:
    def more(text: str, code: str = "bad row", row_id: str = "p") -> Hostile:
        """A row of the pair ``p`` with something more in it."""
        return jsonl_rejected(f'{{"pair_id": "p", {PLACES}, {text}}}', code, row_id)

    def names(before: str, code: str) -> Hostile:
        return jsonl_rejected(f'{{"pair_id": "p", "before": {before}, "after": "2.png", "split": "train"}}', code, "p")

    def ids(value: str, code: str = "bad row") -> Hostile:
        return jsonl_rejected(f'{{"pair_id": {value}, {PLACES}}}', code)

    place = "t.jsonl:2"
    out = {
        "an id twice in a row": jsonl_rejected(f'{{"pair_id": "p", "pair_id": "q", {PLACES}}}'),
        "an id that is a list": ids("[1]"),
        "an image that is an object": names('{"path": "1.png"}', "bad row"),
        "a mask on a host": more(f'"mask": "s3://b/x.png?endpoint_override={HOST}"', "outside the source"),
        "a control character": more('"caption": "a\tb"', row_id=place),
        "one list": table("jsonl", json.dumps([GOOD_RECORD]), pairs=("good",)),
        "a list of anything": table(
            "jsonl", f"[{json.dumps(GOOD_RECORD)},\n5,\n[{{}}]]\n{{}}", pairs=("good",),
            rejects={f"t.jsonl:{line}": code for line, code in ((2, "bad row"), (3, "bad row"), (4, "no pair id"))},
        ),
    }  # fmt: skip
    return {f"jsonl: {name}": entry for name, entry in out.items()}


# ------------------------------------------------------------------------------------------------ Parquet


def written(rows: list[dict[str, Any]] | pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), out, **options)
    return out.getvalue()


def records(count: int = 4) -> list[dict[str, Any]]:
    return [
        {"pair_id": f"p{n}", "before": "1.png", "after": "2.png", "captions": [f"c{n}"], "split": "train"}
        for n in range(count)
    ]


def column(name: str, values: list[Any] | pa.Array) -> pa.Table:
    """Four rows with a column in place of theirs, or besides."""
    table = pa.Table.from_pylist(records())
    values = values if isinstance(values, pa.Array) else pa.array(values)
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


ALL = ("p0", "p1", "p2", "p3")


def parquet_entries() -> dict[str, Hostile]:
    def on_a_host(path: Path, around: Surroundings) -> None:
        names = [around.put_into(f"s3://b/x?endpoint_override={HOST}"), *["1.png"] * 3]
        path.write_bytes(written(column("before", [{"bytes": None, "path": name} for name in names])))

    def four(table_: pa.Table, lost: dict[str, str] | None = None) -> Hostile:
        lost = lost or {}
        kept = tuple(name for name in ALL if name not in lost)
        return table("parquet", written(table_), pairs=kept, rejects=lost)

    def ids(values: list[Any] | pa.Array, pairs: tuple[str, ...], rejects: dict[str, str]) -> Hostile:
        return table("parquet", written(column("pair_id", values)), pairs=pairs, rejects=rejects)

    whole = written(records())
    image = [picture(1), None, b"", b"no image"]
    out = {
        "a footer that lies": table("parquet", b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1", error="not a Parquet file"),
        "no rows": table("parquet", written(pa.Table.from_pylist(records()).slice(0, 0)), error="has no rows"),
        "no ids": ids([None, "", "p2", "p3"], ("p2", "p3"), {"t.parquet:0": "no pair id", "t.parquet:1": "no pair id"}),
        "ids of lists": ids([["a"]] * 4, (), {f"t.parquet:{n}": "bad row" for n in range(4)}),
        "images as bytes": four(
            column("before", image), {"p1": "missing file", "p2": "empty file", "p3": "not an image"}
        ),
        "a struct on a host": Hostile(
            "parquet", {**IMAGES, "t.parquet": on_a_host}, ALL[1:], {"p0": "outside the source"}, source="t.parquet"
        ),
    }  # fmt: skip
    parts: dict[str, Content] = {"a.parquet": whole, "b.parquet": whole[:-20]}
    out["a part that is cut"] = Hostile("parquet", {**IMAGES, **parts}, error="b.parquet is not a Parquet file")
    out["a folder without parts"] = Hostile("parquet", {**IMAGES}, error="has no Parquet files")
    return {f"parquet: {name}": entry for name, entry in out.items()}


def entries() -> dict[str, Hostile]:
    """By name."""
    return csv_entries() | jsonl_entries() | parquet_entries()
