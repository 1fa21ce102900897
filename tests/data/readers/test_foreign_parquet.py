"""Parquet files of others: damaged pages, footers and texts cost only the rows that they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.config import ImportConfig
from idc.data.readers import open_reader
from idc.data.rows import open_rows
from tests.data.readers.test_own import imported, metas, picture
from tests.folders import read_chunks


def parquet(path: Path, count: int, *, group: int, **more: list[Any]) -> Path:
    """Pairs p0, p1, ... of bytes; the pages of a row group hold a few rows each."""
    noise = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {
        "pair_id": [f"p{n}" for n in range(count)], "before": [picture(n % 250) for n in range(count)],
        "after": [picture((n + 1) % 250) for n in range(count)], "note": [noise.bytes(500).hex() for _ in range(count)],
        **more,
    }  # fmt: skip
    pq.write_table(
        pa.table(columns), path, row_group_size=group, data_page_size=2000, write_batch_size=4, use_dictionary=False,
        compression="zstd",
    )  # fmt: skip
    return path


def spoil(path: Path, group: int, column: str, share: float) -> None:
    """Overwrite a few bytes of a column in a row group; ``share`` says where."""
    chunks = pq.ParquetFile(path).metadata.row_group(group)
    (chunk,) = (chunks.column(i) for i in range(chunks.num_columns) if chunks.column(i).path_in_schema == column)
    data = bytearray(path.read_bytes())
    begin = chunk.data_page_offset + int(share * chunk.total_compressed_size)
    data[begin : begin + 120] = bytes([0xA5]) * 120
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("column", "share"), [("note", 0.5), ("pair_id", 0.1), ("after", 0.6)])
def test_a_corrupt_page_costs_only_its_rows(tmp_path: Path, column: str, share: float) -> None:
    path = parquet(tmp_path / "t.parquet", 120, group=40)
    spoil(path, 1, column, share)
    pairs, rejects = imported(path, "parquet", chunk_size=4)
    assert len(pairs) + len(rejects) == 120
    assert {f"p{n}" for n in (*range(40), *range(80, 120))} <= set(pairs)
    assert {reason.split(":")[0] for reason in rejects.values()} == {"unreadable row"}
    assert ("p45" in pairs) == (column != "pair_id")
    for size in (4, 50, 200):
        batches = read_chunks(open_rows(str(path), chunk_size=size))
        errors = {row: error for batch in batches for row, error in zip(batch["row"], batch["error"], strict=True)}
        assert list(errors) == list(range(120))
        lost = [row for row, error in errors.items() if error is not None]
        assert len(lost) == (0 if column == "note" else len(rejects) if size == 4 else 40)
        assert lost == list(range(min(lost, default=80), 80))
        assert all(errors[row].startswith("unreadable row: ") for row in lost)


def test_rows_of_a_chunk_before_a_corrupt_page_are_kept(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", 200, group=200)
    spoil(path, 0, "after", 0.8)
    [batch] = read_chunks(open_rows(str(path), chunk_size=200))
    lost = [number for number, error in enumerate(batch["error"]) if error is not None]
    assert (len(batch["row"]), lost) == (200, list(range(128, 200)))
    assert batch["before"][:128] == [picture(number) for number in range(128)]


def test_a_doubled_column_is_refused(tmp_path: Path) -> None:
    doubled = pa.table([["p"], [b""], [b""], ["a"], ["b"]], names=["pair_id", "before", "after", "caption", "caption"])
    pq.write_table(doubled, tmp_path / "d.parquet")
    with pytest.raises(ValueError, match=r"d\.parquet has the column 'caption' more than once"):
        open_rows(str(tmp_path / "d.parquet"))
    with pytest.raises(ValueError, match=r"d\.parquet has the column 'caption' more than once"):
        open_reader("parquet", str(tmp_path / "d.parquet"), ImportConfig())


def test_numbers_that_json_has_not_and_texts_that_are_not_utf8(tmp_path: Path) -> None:
    """NaN is how tables write that there is no value."""
    score = [0.5, float("nan"), float("inf"), None]
    path = parquet(tmp_path / "t.parquet", 4, group=4, score=score, note=["x"] * 4, deep=[[float("nan"), 1.0]] * 4)
    pairs, rejects = imported(path, "parquet")
    assert list(pairs) == ["p0", "p1", "p3"]
    assert rejects["p2"].startswith("bad row: meta ")
    note = {"note": "x", "deep": [None, 1.0]}
    assert metas(tmp_path / "out") == {"p0": {"score": 0.5, **note}, "p1": {"score": None, **note}, "p3": note}
    texts = pa.array([b"fine", b"caf\xe9", b"fine"], pa.binary()).view(pa.string())
    (tmp_path / "texts").mkdir()
    path = parquet(tmp_path / "texts" / "t.parquet", 3, group=3, caption=texts)
    assert imported(path, "parquet") == ({"p0": ["fine"], "p2": ["fine"]}, {"t.parquet:1": "not UTF-8: b'caf\\xe9'"})
