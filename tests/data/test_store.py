"""Folders at rest: resumable, idempotent, streamed, and mapped for training by several processes at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from idc.data import store
from idc.data.files import locate
from idc.data.manifest import input_name, input_path, missing_pairs
from idc.data.schema import IMAGE, ChangePair, Instruction, Turn, instruction_arrow_schema, pair_arrow_schema
from idc.data.store import (
    AnyPath,
    DatasetFolder,
    MappedRows,
    Reject,
    iter_rows,
    read_manifest,
    read_rejects,
    read_table,
)
from idc.util.cache import cache_root
from tests.folders import write_rows


def open_build(
    path: AnyPath, fingerprint: str = "one", num_chunks: int = 3, overwrite: bool = False, **more: Any
) -> DatasetFolder:
    return DatasetFolder.open_for_build(
        path, kind="pairs", schema=pair_arrow_schema(), fingerprint=fingerprint, config={"a": 1}, num_chunks=num_chunks,
        overwrite=overwrite, **more,
    )  # fmt: skip


def rows(chunk: int, count: int = 4) -> list[dict[str, object]]:
    splits = ("train", "train", "val", "test")
    return [
        ChangePair(
            pair_id=f"p{chunk}-{i}",
            before=b"before" * (i + 1),
            after=b"after",
            captions=() if i == 1 else (f"caption {i}", "other"),
            change_type="color",
            split=splits[i % 4],
            meta={"i": i},
        ).to_row()
        for i in range(count)
    ]


def build(path: AnyPath) -> store.Manifest:
    folder = open_build(path)
    for chunk in folder.pending():
        folder.write_chunk(chunk, rows(chunk), [Reject("bad", "truncated image: x")] if chunk == 1 else [])
    return folder.finish({"more": True})


def test_what_a_folder_refers_to_moves_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are taken from the folder that names them, whatever the current one, or a link on the way."""
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    for folder in (tree / "runs" / "tokenizer", elsewhere):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tree)
    inputs = {"tokenizer": "runs/tokenizer", "model": "s3://bucket/model", "far": "/usr"}
    folder = open_build("data/pairs", num_chunks=0, inputs=inputs)
    there = {**inputs, "tokenizer": f"{tree}/runs/tokenizer"}
    assert folder.manifest.inputs == folder.finish().inputs == there
    monkeypatch.chdir(elsewhere)
    assert read_manifest(tree / "data" / "pairs").inputs == there
    (elsewhere / "link").symlink_to(tree / "data")
    assert read_manifest("link/pairs").inputs == there
    moved = tree.rename(tmp_path / "moved")
    assert read_manifest(moved / "data" / "pairs").inputs == {**there, "tokenizer": f"{moved}/runs/tokenizer"}

    (moved / "runs").rename(elsewhere / "runs")
    assert list(missing_pairs(f"{moved}/data/pairs", "pairs", inputs=("tokenizer", "model", "other"))) == [
        f"pairs: tokenizer: no such file or folder: '{moved}/runs/tokenizer': the pairs refer to it; build them again "
        "with build.tokenizer=..."
    ]
    remote = locate("memory://bucket/data/pairs")
    assert input_path(remote, "../../runs/tokenizer") == "memory://bucket/runs/tokenizer"
    assert input_name(remote, "/shared/tokenizer") == input_path(remote, "/shared/tokenizer") == "/shared/tokenizer"
    again = open_build(moved / "data" / "pairs", num_chunks=0, inputs={**inputs, "tokenizer": "runs/tokenizer"})
    assert again.complete
    assert read_manifest(moved / "data" / "pairs").inputs == {**there, "tokenizer": f"{elsewhere}/runs/tokenizer"}


@pytest.mark.parametrize("scheme", ["", "file://", "memory:/"])
def test_what_is_written_is_read(tmp_path: Path, scheme: str) -> None:
    path = f"{scheme}{tmp_path}/pairs"
    manifest = build(path)
    assert manifest == read_manifest(path, "pairs")
    assert manifest.complete
    assert (manifest.num_rows, manifest.rows_by_split) == (12, {"test": 3, "train": 6, "val": 3})
    assert (manifest.num_rejected, manifest.reject_reasons) == (1, {"truncated image": 1})
    assert manifest.num_without_captions == 3
    assert manifest.extra == {"more": True}
    expected = [row for chunk in range(3) for row in rows(chunk)]
    assert list(iter_rows(path, batch_size=3)) == expected
    assert [r["pair_id"] for r in iter_rows(path, ["pair_id"], split="val")] == ["p0-2", "p1-2", "p2-2"]
    assert read_table(path, ["split", "pair_id"]).column_names == ["split", "pair_id"]
    assert read_table(path, ["pair_id"], split="none").num_rows == 0
    assert read_rejects(path) == [Reject("bad", "truncated image: x")]
    mapped = MappedRows(path, split="train", cache_dir=tmp_path / "cache")
    assert list(mapped) == [row for row in expected if row["split"] == "train"]


def test_a_build_goes_on_and_ends_once(tmp_path: Path) -> None:
    folder = open_build(tmp_path)
    assert folder.pending() == [0, 1, 2]
    pickle.loads(pickle.dumps(folder)).write_chunk(1, rows(1))
    (tmp_path / ".tmp-1-part-00002.parquet").write_bytes(b"half a part of a killed worker")
    again = open_build(tmp_path)
    assert not again.complete
    assert again.pending() == [0, 2]
    with pytest.raises(ValueError, match="2 of 3 chunks are missing"):
        again.finish()
    with pytest.raises(ValueError, match="not complete"):
        list(iter_rows(tmp_path))
    for chunk in again.pending():
        again.write_chunk(chunk, rows(chunk), [Reject("x", "bad: y")])
        again.write_chunk(chunk, rows(chunk))
    assert again.finish().num_rejected == 0, "a chunk done again leaves no old rejects"
    assert not list(tmp_path.glob("rejects-*"))
    assert not list(tmp_path.glob(".tmp*"))
    assert open_build(tmp_path).complete
    assert open_build(tmp_path).pending() == []


def test_other_inputs_do_not_overwrite(tmp_path: Path) -> None:
    build(tmp_path)
    MappedRows(tmp_path)
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(ValueError, match="overwrite"):
        open_build(tmp_path, "two")
    with pytest.raises(ValueError, match="overwrite"):
        open_build(tmp_path, num_chunks=4)
    assert read_manifest(tmp_path).fingerprint == "one"
    folder = open_build(tmp_path, "two", overwrite=True)
    assert folder.pending() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json", "mine.txt"]


def test_what_may_not_be_written_is_refused(tmp_path: Path) -> None:
    folder = open_build(tmp_path / "mine")
    for cell, message in ((3, "chunk 0 does not fit"), (None, "'before' has empty cells")):
        with pytest.raises(ValueError, match=message):
            folder.write_chunk(0, [{**rows(0)[0], "before": cell}])
    assert folder.pending() == [0, 1, 2]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/part-00000.parquet").write_bytes(b"somebody else's")
    with pytest.raises(ValueError, match=r"1 part files without a manifest\.json"):
        open_build(tmp_path / "theirs")


def test_readers_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        read_manifest(tmp_path)
    build(tmp_path)
    with pytest.raises(ValueError, match="holds pairs, not procedures"):
        read_manifest(tmp_path, "procedures")
    with pytest.raises(ValueError, match="no column befor; it has pair_id, before"):
        next(iter_rows(tmp_path, ["befor"]))
    with pytest.raises(ValueError, match="no column befor"):
        MappedRows(tmp_path, ["befor"])
    content = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**content, "schema_version": 99}))
    with pytest.raises(ValueError, match="schema version 99"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{]")
    with pytest.raises(ValueError, match="not a manifest"):
        read_manifest(tmp_path)


def test_mapped_rows(tmp_path: Path) -> None:
    build(tmp_path)
    mapped = MappedRows(tmp_path, ["pair_id", "captions"], split="train")
    names = ["p0-0", "p0-1", "p1-0", "p1-1", "p2-0", "p2-1"]
    assert len(mapped) == 6
    assert [mapped[i]["pair_id"] for i in range(6)] == mapped.column("pair_id") == names
    assert mapped[-1] == {"pair_id": "p2-1", "captions": []}
    assert [r["pair_id"] for r in mapped[1:3]] == names[1:3]
    assert pickle.loads(pickle.dumps(mapped))[2] == mapped[2]
    with pytest.raises(IndexError, match="row 6 of 6"):
        mapped[6]
    with pytest.raises(ValueError, match="no column 'split'"):
        mapped.column("split")
    assert len(MappedRows(tmp_path, ["pair_id"], split="none")) == 0


def test_the_rows_of_a_read_only_folder_are_mapped_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "pairs")
    monkeypatch.delenv("IDC_CACHE")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert len(MappedRows(tmp_path / "pairs")) == 12
    assert len(list((cache_root() / "rows").glob("*.arrow"))) == 1
    assert not (tmp_path / "pairs" / "_rows").exists()


def _first_rows(path: str, start: float) -> tuple[int, str]:
    time.sleep(max(0.0, start - time.time()))
    mapped = MappedRows(path, split="train")
    return len(mapped), mapped[0]["pair_id"]


def test_several_processes_map_at_once(tmp_path: Path) -> None:
    build(tmp_path)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.starmap(_first_rows, [(str(tmp_path), time.time() + 2)] * 4)
    assert found == [(6, "p0-0")] * 4
    assert len(list((tmp_path / "_rows").glob("*.arrow"))) == 1
    assert not list((tmp_path / "_rows").glob(".tmp*"))


def test_equal_images_of_several_rows_are_mapped_once(tmp_path: Path) -> None:
    blobs = [os.urandom(10_000) for _ in range(8)]
    turns = (Turn("user", f"{IMAGE}{IMAGE}?"), Turn("assistant", "no", "binary"))
    dialogues = [
        Instruction(f"r{row}", tuple(blobs[row * 3 % 4 : row * 3 % 4 + 2]), turns).to_row() for row in range(40)
    ]
    dialogues.append(Instruction("alone", (blobs[0],), (Turn("user", f"{IMAGE}?"), turns[1])).to_row())
    source = write_rows(tmp_path / "instructions", dialogues, "instructions", instruction_arrow_schema())
    mapped = MappedRows(source, ["images", "row_id"], cache_dir=tmp_path / "cache")
    assert mapped.columns == ["images", "row_id"]
    assert [mapped[row]["images"] for row in range(41)] == mapped.column("images") == [d["images"] for d in dialogues]
    assert mapped.list_lengths("images").tolist() == [2] * 40 + [1]
    assert next((tmp_path / "cache").glob("*.arrow")).stat().st_size < 100_000

    pairs = [{**row, "before": blobs[n // 40], "after": blobs[n % 5]} for n, row in enumerate(rows(0, 300))]
    source = write_rows(tmp_path / "pairs", pairs)
    mapped = pickle.loads(pickle.dumps(MappedRows(source, cache_dir=tmp_path / "cache2")))
    assert list(mapped) == pairs
    assert next((tmp_path / "cache2").glob("*.arrow")).stat().st_size < 200_000
