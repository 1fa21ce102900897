"""Wrong inputs of the mining job: each ends with one clear line, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from idc.data.store import read_rejects
from jobs import mine_pairs
from tests.mining.small_collection import LOOSE, write_images


def run(monkeypatch: pytest.MonkeyPatch, images: Path, out: Path, *settings: str) -> None:
    loose = [f"{name}={value}" for name, value in LOOSE.items()]
    small = ["efficientnet_lite0.size=64", "workers=1", "neighbours=5", *loose]
    monkeypatch.setattr("sys.argv", ["mine_pairs.py", "--local", f"images={images}", f"out={out}", *small, *settings])
    mine_pairs.main()


def test_unreadable_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    write_images(images, scenes=4)
    (images / "cut.png").write_bytes(next(images.rglob("*.png")).read_bytes()[:100])
    (images / "empty.jpg").touch()
    os.symlink("/etc/hostname", images / "outside.png")
    os.mkfifo(images / "pipe.png")
    with pytest.raises(SystemExit, match=r"of 15 rows were rejected, more than max_reject_share=0\.05 allows: "):
        run(monkeypatch, images, out)
    run(monkeypatch, images, out, "max_reject_share=0.5")
    printed = capsys.readouterr().out
    assert "15 images: 3 cannot be read, 0 are near-duplicates," in printed
    rejects = {reject.row_id: reject.code for reject in read_rejects(f"{out}-work/features")}
    assert rejects == {
        "cut.png": "truncated image", "empty.jpg": "empty file", "outside.png": "outside the source",
    }  # fmt: skip
    assert "note: left out: 1 that are not files: pipe.png" in printed
    assert "cut.png: truncated image" in (out / "mining.html").read_text(encoding="utf-8")


def test_a_folder_without_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "readme.txt").write_text("nothing here")
    with pytest.raises(SystemExit, match=r"has no images: left out: 1 \.txt files$"):
        run(monkeypatch, tmp_path / "images", tmp_path / "out")
