"""Batches, stages and local runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from idc.data.pipeline import (
    Batch,
    ChunkResult,
    FolderSource,
    StageSpec,
    TooManyRejects,
    concat,
    run_local,
    split_errors,
    take,
    with_errors,
)
from idc.data.store import DatasetFolder, Reject, iter_rows, read_rejects

SCHEMA = pa.schema([pa.field("pair_id", pa.string(), False), pa.field("split", pa.string()), pa.field("v", pa.int64())])


class Numbers:
    num_chunks = 4

    def read(self, chunk_id: int) -> Batch:
        return {"index": np.arange(5 * chunk_id, 5 * chunk_id + 5)}


class Make:
    sizes: list[int]

    def __init__(self) -> None:
        Make.sizes = []

    def __call__(self, batch: Batch) -> Batch:
        Make.sizes.append(len(batch["index"]))
        return {
            "pair_id": [f"p{i}" for i in batch["index"]],
            "split": ["val" if i % 3 == 0 else "train" for i in batch["index"]],
            "v": batch["index"] * 2,
            "error": ["odd one: eleven" if i == 11 else None for i in batch["index"]],
        }


def folder(path: Path, schema: pa.Schema = SCHEMA) -> DatasetFolder:
    return DatasetFolder.open_for_build(
        path, kind="pairs", schema=schema, fingerprint="f", config={}, num_chunks=Numbers.num_chunks
    )


def test_a_local_run(tmp_path: Path) -> None:
    stages = [StageSpec(Make, batch_size=2)]
    with pytest.raises(TooManyRejects, match=r"1 of 20 rows .* 1 x odd one"):
        run_local(folder(tmp_path), Numbers(), stages, progress=False, max_reject_share=0.04)
    manifest = run_local(folder(tmp_path), Numbers(), [], max_reject_share=0.05, extra={"x": 1}, name="numbers")
    assert set(Make.sizes) == {2, 1}
    assert (manifest.num_rows, manifest.num_rejected, manifest.extra) == (19, 1, {"x": 1})
    assert [r["v"] for r in iter_rows(tmp_path)] == [2 * i for i in range(20) if i != 11]
    assert read_rejects(tmp_path) == [Reject("p11", "odd one: eleven")]
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert run_local(folder(tmp_path), Numbers(), stages) == manifest
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


HALVES = pa.schema([pa.field("name", pa.string())])


def halves(batch: Batch) -> list[dict[str, str]]:
    return [{"name": f"{name}{half}"} for name in batch["pair_id"] for half in "ab"]


def test_two_processes_take_the_options_of_one(tmp_path: Path) -> None:
    seen: list[ChunkResult] = []
    made = []
    for processes in (1, 2):
        place = folder(tmp_path / str(processes), HALVES)
        options: dict[str, Any] = {"progress": False, "extra": {"x": 1}, "watch": seen.append, "processes": processes}
        made.append(run_local(place, Numbers(), [StageSpec(Make)], halves, **options))
    assert made[0] == made[1]
    assert (made[1].num_rows, made[1].num_rejected, made[1].extra) == (38, 1, {"x": 1})
    for part in made[0].parts:
        assert (tmp_path / "1" / part.file).read_bytes() == (tmp_path / "2" / part.file).read_bytes()
    assert sorted(result.chunk_id for result in seen) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_batches() -> None:
    batch: Batch = {"a": np.arange(4), "b": ["w", None, "y", b"z"], "c": np.zeros((4, 2, 2))}
    assert take(batch, [3, 1])["b"] == [b"z", None]
    assert take(batch, [])["a"].tolist() == []
    both = concat([take(batch, [0, 1]), take(batch, [2, 3])])
    assert both["a"].tolist() == [0, 1, 2, 3]
    assert both["b"] == batch["b"]
    assert isinstance(concat([{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}])["x"], list)
    good, rejects = split_errors({"row_id": ["r", "s"], "error": [None, "bad: b"]})
    assert good == {"row_id": ["r"]}
    assert rejects == [Reject("s", "bad: b")]
    with pytest.raises(AssertionError, match="different lengths"):
        with_errors(split_errors({"a": [1], "b": [1, 2]})[0])


def test_a_folder_as_a_source(tmp_path: Path) -> None:
    run_local(folder(tmp_path), Numbers(), [StageSpec(Make)], progress=False)
    source = FolderSource(str(tmp_path), chunk_size=2, columns=["pair_id", "split"])
    assert source.num_chunks == 3 + 3 + 2 + 3
    assert [n for c in range(source.num_chunks) for n in source.read(c)["pair_id"]] == [
        f"p{i}" for i in range(20) if i != 11
    ]
    some = FolderSource(str(tmp_path), chunk_size=100, splits=["val"], limit=7)
    assert [some.read(c)["pair_id"] for c in range(some.num_chunks)] == [["p0", "p3"], ["p6"]]
    assert some.fingerprint != source.fingerprint
    with pytest.raises(ValueError, match="holds pairs, not procedures"):
        FolderSource(str(tmp_path), kind="procedures")
