"""The check of a data set finds what is wrong, and only that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from idc.data.config import ValidateJob
from idc.data.validate import Leak, table, validate
from tests.data.test_own import prepare, put

ROOT = Path(__file__).parents[2]


def source(folder: Path, last: str = "") -> Path:
    put(folder, {f"{n}.png": n for n in range(8)})
    lines = [
        "pair_id,before,after,captions,change_type,split",
        "p1,0.png,1.png,the red cube moved|it moved,move,train",
        "p2,2.png,3.png,the cube is gone,drop,val",
        "p3,4.png,5.png,,,test",
        last,
    ]
    (folder / "pairs.csv").write_text("\n".join(lines))
    return folder / "pairs.csv"


def test_a_good_set(tmp_path: Path) -> None:
    path = source(tmp_path / "in")
    prepare(path, tmp_path / "out", "csv", chunk_size=2)
    raw = validate(ValidateJob(pairs=str(path)), progress=False)
    built = validate(ValidateJob(pairs=str(tmp_path / "out")), progress=False)
    assert raw.ok
    assert raw.format == "csv"
    assert built.format == "data set folder"
    assert raw.model_dump(exclude={"pairs", "format"}) == built.model_dump(exclude={"pairs", "format"})
    assert built.by_split_and_type == {"test": {"unknown": 1}, "train": {"move": 1}, "val": {"drop": 1}}
    assert (built.num_captions, built.without_captions, built.captions_per_pair.mean) == (3, 1, 1.0)
    assert (built.vocabulary_size, built.words_seen_once) == (7, 3 + 1)
    assert (built.words_per_caption.least, built.words_per_caption.most) == (2, 4)
    assert built.image_sizes == {"8x6": 6}
    text = table(built)
    assert text.endswith("\nok")
    assert "test" in text
    assert "unknown" in text


def test_leaks_duplicates_and_unreadable_files(tmp_path: Path) -> None:
    last = "p4,6.png,0.png,,,test\np1,7.png,6.png,,,train\np5,nowhere.png,7.png,,,train\np6,6.png,6.png,,,test"
    result = validate(ValidateJob(pairs=str(source(tmp_path, last))), progress=False)
    assert not result.ok
    assert {code: p.count for code, p in result.problems.items()} == {"duplicate pair id": 1, "missing file": 1}
    assert result.problems["missing file"].examples == ["p5: before, nowhere.png"]
    assert result.num_leaks == 1
    assert result.leaks == [Leak(pairs=["p1", "p4"], splits=["train", "test"])]
    assert result.usable_pairs == 5
    text = table(result)
    assert "p1 and p4 share one (train and test)" in text
    assert "NOT fit" in text


def test_the_job(tmp_path: Path) -> None:
    path = source(tmp_path / "in")
    command = [sys.executable, str(ROOT / "jobs/validate.py"), f"pairs={path}"]
    good = subprocess.run(command, capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    assert "3 of 3 pairs are usable" in good.stdout
    assert json.loads((tmp_path / "in" / "pairs.csv.validation.json").read_text())["ok"] is True
    bad_path = source(tmp_path / "in", "p4,0.png,9.png,,,test")
    command = [sys.executable, str(ROOT / "jobs/validate.py"), f"pairs={bad_path}", f"report={tmp_path / 'r.json'}"]
    bad = subprocess.run(command, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "ERROR missing file: 1" in bad.stdout
    assert json.loads((tmp_path / "r.json").read_text())["problems"]["missing file"]["count"] == 1
    wrong = subprocess.run([*command[:2], "pairs=/nowhere", "format=svc"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "pairs: no such file" in wrong.stderr
    assert "did you mean 'csv'" in wrong.stderr
