"""The clean variant: what it leaves out and says of it, and that the official folder stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from idc.data.config import ValidateJob
from idc.data.images import encode_png
from idc.data.store import Manifest, Reject, iter_rows, read_manifest, read_rejects
from idc.data.validation.clean import clean_path, write_clean
from idc.data.validation.run import validate
from tests.conftest import Command
from tests.data.readers.test_own import prepare, put

ROWS = {
    # pair id: (split, before, after, changeflag)
    "t-fine": ("train", 10, 11, 1),
    "t-leaks-test": ("train", 12, 40, 1),
    "t-leaks-val": ("train", 30, 13, 1),
    "t-contradicts": ("train", 14, 15, 0),
    "v-fine": ("val", 30, 31, 1),
    "v-leaks-test": ("val", 41, 32, 1),
    "e-fine": ("test", 40, 41, 1),
    "e-contradicts": ("test", 42, 43, 0),
}


@pytest.fixture
def official(tmp_path: Path) -> Path:
    put(tmp_path / "in", {f"{value}.png": value for row in ROWS.values() for value in row[1:3]})
    (tmp_path / "in" / "mask.png").write_bytes(encode_png(np.eye(8, dtype=np.uint8)[:6] * 255))
    lines = [
        {"pair_id": name, "before": f"{before}.png", "after": f"{after}.png", "mask": "mask.png", "split": split,
         "captions": [f"about {name}"], "meta": {"changeflag": flag}}
        for name, (split, before, after, flag) in ROWS.items()
    ]  # fmt: skip
    (tmp_path / "in" / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    prepare(tmp_path / "in" / "pairs.jsonl", tmp_path / "set", "jsonl", chunk_size=3)
    return tmp_path / "set"


def clean(official: Path) -> tuple[Path, Manifest]:
    job = ValidateJob(pairs=str(official), clean=True)
    manifest = write_clean(job, validate(job, progress=False), progress=False)
    return Path(clean_path(job)), manifest


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


def test_the_earlier_split_gives_way(official: Path) -> None:
    before = content(official)
    out, manifest = clean(official)
    assert out == official.with_name("set-clean")
    gone = {
        "t-leaks-test": "leak: shares an image with e-fine of test",
        "t-leaks-val": "leak: shares an image with v-fine of val",
        "t-contradicts": "contradiction: annotated as unchanged, but 12.50% of the mask is set",
        "v-leaks-test": "leak: shares an image with e-fine of test",
    }
    assert read_rejects(out) == [Reject(name, gone[name]) for name in ROWS if name in gone]
    official_rows = {row["pair_id"]: row for row in iter_rows(official)}
    assert list(iter_rows(out)) == [row for name, row in official_rows.items() if name not in gone]
    assert manifest.extra["clean"]["left_out"] == {"contradiction": 1, "leak": 3}
    assert manifest.extra["clean"]["fingerprint"] == read_manifest(official).fingerprint
    assert any("1 for a contradiction, 3 for a leak left out" in note for note in manifest.extra["notes"])
    assert content(official) == before, "the official folder is not touched"


def test_other_splits_stay_official(official: Path) -> None:
    out, manifest = clean(official)
    result = validate(ValidateJob(pairs=str(out)), progress=False).result
    assert (result.num_leaks, result.problems["contradiction"].count) == (0, 1), "test is as it was"
    assert manifest.rows_by_split["test"] == 2


def test_the_job_writes_it_beside_the_official_one(official: Path, tmp_path: Path, command: Command) -> None:
    with pytest.raises(ValueError, match="import it first"):
        clean(tmp_path / "in" / "pairs.jsonl")
    run = command("validate", f"pairs={official}", "--clean", "pictures=0")
    assert run.returncode == 1, run.stderr
    assert f"{official}-clean: 4 pairs; left out: {{'contradiction': 1, 'leak': 3}}" in run.stdout
