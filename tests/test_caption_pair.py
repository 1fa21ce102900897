"""jobs/caption.py for one pair: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.describe import draw_map
from idc.systems import load_captioner
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def files(world: World, tmp_path: Path) -> tuple[Path, Path]:
    row = next(iter(iter_rows(world.pairs, split="test")))
    paths = tmp_path / "before.png", tmp_path / "after.bmp"
    for name, path in zip(("before", "after"), paths, strict=True):
        Image.fromarray(decode_image(row[name])).resize((40, 36)).save(path)
    return paths


def job(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["caption.py", *map(str, arguments)])
    try:
        runpy.run_path(str(ROOT / "jobs" / "caption.py"), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_one_pair(
    files: tuple[Path, Path],
    captioner_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = [[decode_image(path.read_bytes())] for path in files]
    captioner = load_captioner(str(captioner_artifact))
    [told] = captioner.describe(*images, candidates=3, change_map=True)
    of = (*files, "--artifact", captioner_artifact)
    assert job(monkeypatch, *of) == 0
    assert capsys.readouterr().out == told.best.caption + "\n"
    drawn, film, strip = tmp_path / "map.png", tmp_path / "film.gif", tmp_path / "strip.png"
    assert job(monkeypatch, *of, "--json", "--candidates", 3, "--map", drawn, "--frames", film) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["caption"] for one in found["candidates"]] == [one.caption for one in told.candidates]
    assert found["caption"] == told.best.caption
    assert found["confidence"] == pytest.approx(math.exp(told.best.log_probability), abs=1e-5)
    assert found.items() >= told.assessment.to_dict().items()
    assert found["verdict"] == told.verdict
    assert found["changed_probability"] is None
    assert (found["before"], found["map"], found["frames"]) == (str(files[0]), str(drawn), str(film))
    assert told.change_map is not None
    assert np.array_equal(np.asarray(Image.open(drawn)), draw_map(told.change_map, (36, 40)))
    with Image.open(film) as shots:
        assert shots.is_animated  # Pillow joins frames that are alike
    assert job(monkeypatch, *of, "--frames", strip, "--beams", 1) == 0
    assert Image.open(strip).size == (4 * 32, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.png", "broken.png"), "gone.png: .*\nbroken.png: not an image"),
        (("before.png", "after.bmp", "--beams", "2", "--candidates", "3"), "candidates=3 need as many beams"),
        (("before.png", "after.bmp", "--frames", "film.avi"), "film.avi: frames are written to a file that ends in"),
        (("before.png", "after.bmp", "--map", "map.jpg"), "map.jpg: the change map is written to a file that ends in"),
        (("before.png", "after.bmp", "--map", "nowhere/map.png"), "No such file or directory: 'nowhere/map.png'"),
        (("before.png", "after.bmp", "--artifact", "."), "is not an artefact"),
    ],
)
def test_what_cannot_be_is_said(
    files: tuple[Path, Path],
    captioner_artifact: Path,
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    assert job(monkeypatch, "--artifact", captioner_artifact, *arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.search(message, told.err), told.err
