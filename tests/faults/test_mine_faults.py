"""Wrong inputs of the mining job: each ends with one clear line, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from idc.data.store import read_rejects
from jobs import mine_pairs
from tests.mining.heaps import LOOSE, make_heap


def run(monkeypatch: pytest.MonkeyPatch, heap: Path, out: Path, *settings: str) -> None:
    loose = [f"{name}={value}" for name, value in LOOSE.items()]
    small = ["efficientnet_lite0.size=64", "workers=1", "neighbours=5", *loose]
    monkeypatch.setattr("sys.argv", ["mine_pairs.py", "--local", f"heap={heap}", f"out={out}", *small, *settings])
    mine_pairs.main()


def test_a_heap_with_unreadable_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heap, out = tmp_path / "heap", tmp_path / "out"
    make_heap(heap, scenes=4)
    (heap / "cut.png").write_bytes(next(heap.rglob("*.png")).read_bytes()[:100])
    (heap / "empty.jpg").touch()
    os.symlink("/etc/hostname", heap / "outside.png")
    os.mkfifo(heap / "pipe.png")
    with pytest.raises(SystemExit, match=r"of 15 rows were rejected, more than max_reject_share=0\.05 allows: "):
        run(monkeypatch, heap, out)
    run(monkeypatch, heap, out, "max_reject_share=0.5")
    printed = capsys.readouterr().out
    assert "15 images: 3 cannot be read, 0 are near-duplicates," in printed
    rejects = {reject.row_id: reject.code for reject in read_rejects(f"{out}-work/features")}
    assert rejects == {
        "cut.png": "truncated image", "empty.jpg": "empty file", "outside.png": "outside the source",
    }  # fmt: skip
    assert "note: left out: 1 that are not files: pipe.png" in printed
    assert "cut.png: truncated image" in (out / "mining.html").read_text(encoding="utf-8")


def test_a_heap_without_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heap").mkdir()
    (tmp_path / "heap" / "readme.txt").write_text("nothing here")
    with pytest.raises(SystemExit, match=r"has no images: left out: 1 \.txt files$"):
        run(monkeypatch, tmp_path / "heap", tmp_path / "out")
