"""jobs/caption.py for one pair: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idc.captioning import pair as pair_module
from idc.captioning.contract import SearchOptions, draw_map
from idc.captioning.pair import PairJob, caption_text
from idc.captioning.sources import SHIPPED, newest_captioner
from idc.config import cli
from idc.data.images import decode_image, encode_png
from idc.data.store import iter_rows
from idc.systems import load_captioner
from idc.training.artifact import FAMILIARITY
from tests.conftest import Command
from tests.geo import scenes
from tests.systems.objects.test_regions import BLUE, RED, ground, with_disk
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def files(world: World, tmp_path: Path) -> tuple[Path, Path]:
    row = next(iter(iter_rows(world.pairs, split="test")))
    paths = tmp_path / "before.png", tmp_path / "after.bmp"
    for name, path in zip(("before", "after"), paths, strict=True):
        Image.fromarray(decode_image(row[name])).resize((40, 36)).save(path)
    return paths


Caption = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def caption(command: Command) -> Caption:
    """Runs ``jobs/caption.py`` with arguments, which must end with ``status`` (2: before anything is loaded)."""

    def run(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = command("caption", *arguments)
        assert done.returncode == status, done.stderr
        return done

    return run


def test_one_pair(files: tuple[Path, Path], captioner_artifact: Path, tmp_path: Path, caption: Caption) -> None:
    images = [[decode_image(path.read_bytes())] for path in files]
    captioner = load_captioner(str(captioner_artifact))
    [told] = captioner.describe(*images, SearchOptions(candidates=3, change_map=True))
    of = (*files, "--artifact", captioner_artifact)
    sure = f"[confidence {100 * told.best.confidence:.0f} %; {told.verdict}; captioner {captioner_artifact}]"
    assert caption(*of).stdout == f"{told.best.caption}  {sure}\n"
    drawn = tmp_path / "maps" / "map.png"
    found = json.loads(caption(*of, "--json", "--candidates", 3, "--map", drawn).stdout)
    assert [one["caption"] for one in found["candidates"]] == [one.caption for one in told.candidates]
    assert found["caption"] == told.best.caption
    assert found["confidence"] == pytest.approx(math.exp(told.best.log_probability), abs=1e-5)
    assert found.items() >= told.assessment.items()
    assert found["verdict"] == told.verdict
    assert found["changed_probability"] is None
    assert (found["before"], found["map"]) == (str(files[0]), str(drawn))
    assert told.change_map is not None
    assert np.array_equal(np.asarray(Image.open(drawn)), draw_map(told.change_map, (36, 40)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.png", "broken.png"), "gone.png: .*\nbroken.png: not an image"),
        (("folder.gif", "folder.gif"), "folder.gif: a folder, not an image; .*--input FOLDER"),
        (("before.png", "https://host.invalid/a.png"), "a.png: a web address; download the image"),
        (("before.png", "after.bmp", "--map", "folder.png"), "folder.png: cannot be written"),
    ],
)
def test_what_cannot_be_is_said(
    files: tuple[Path, Path], captioner_artifact: Path, arguments: tuple[str, ...], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caption: Caption,
) -> None:  # fmt: skip
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    refused = caption("--artifact", captioner_artifact, *arguments, status=1)
    assert refused.stdout == ""
    assert re.search(message, refused.stderr), refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--map", "map.jpg"), "map: map.jpg: the change map is written to a file that ends in .png"),
        (("--artifact", "."), "artifact: . is not an artifact"),
        (("--artifact", "2024"), "artifact: 2024 is not an artifact"),
        (("--artifact", "hf:../x"), "artifact: hf:../x: there is no folder ../x"),
        (("--artifact", "regions", "--base", "x"), "base.source: regions has no base model"),
        (("--detector", "gone.onnx"), "objects.detector: "),
        (("--names", "1,2"), "objects.names: the detector embedded has no class '1'"),
        (("--ignore", "10,20,200"), "ignore: '10,20,200' is not a box"),
        (("--only", "gone.png"), "only: no such file or folder: 'gone.png'"),
        (("--names", "person,car", "--names", "botle"), "no class 'botle'; did you mean 'bottle'?"),
    ],
)
def test_a_wrong_setting_is_named_with_status_2(
    files: tuple[Path, Path], arguments: tuple[str, ...], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caption: Caption,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    refused = caption(*files, *arguments, status=2)
    assert refused.stderr.startswith("config refused, 1 error:\n")
    assert message in refused.stderr


def test_repeated_names_are_all_names(files: tuple[Path, Path]) -> None:
    argv = [*map(str, files), "--names", "person,car", "--names", "bottle"]
    assert cli(PairJob, "", argv, positional=("before", "after")).config.objects.names == ("person", "car", "bottle")


# -- without naming an artifact -----------------------------------------------------------------------------------


@pytest.fixture
def runs(captioner_artifact: Path, tmp_path: Path) -> Path:
    """``runs/``: an old and a new captioner with familiarities; and, all written after them, one without, stage 1's
    artifact, a copy of MLflow's, a damaged one and another program's."""
    runs = tmp_path / "runs"
    written = {
        "old/artifact": captioner_artifact,
        "sweep/new/artifact": captioner_artifact,
        "uncalibrated/artifact": captioner_artifact,
        "stage-1/artifact": captioner_artifact.parents[1] / "pretrain" / "artifact",
        "mlartifacts/1/artifact": captioner_artifact,
        "damaged/artifact": captioner_artifact,
    }
    for age, (name, source) in enumerate(written.items()):
        shutil.copytree(source, runs / name)
        os.utime(runs / name / "config.json", (1e9 + age, 1e9 + age))
        if name != "uncalibrated/artifact":
            shutil.copy(ROOT / "idc" / "weights" / "clevr_like" / FAMILIARITY, runs / name)
    (runs / "damaged" / "artifact" / "model.safetensors").unlink()
    (runs / "other" / "artifact").mkdir(parents=True)
    (runs / "other" / "artifact" / "config.json").write_text("{}")
    return runs


def test_the_newest_captioner_below_runs_is_the_trained_one_of_auto(
    runs: Path, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caption: Caption
) -> None:
    """If its familiarity was fitted: no other one takes pairs that nobody knows it to know."""
    assert newest_captioner(str(runs)) == str(runs / "sweep" / "new" / "artifact")
    monkeypatch.chdir(tmp_path)
    answer = json.loads(caption(*files, "--json").stdout)
    assert answer["captioner"] == answer["artifact"] == "runs/sweep/new/artifact"
    why = "both images are like the training of {}, and objects does not object"
    assert answer["chosen"] == why.format("runs/sweep/new/artifact")
    for folder in ("old", "sweep"):
        shutil.rmtree(runs / folder)
    assert newest_captioner(str(runs)) is None
    assert f"captioner shipped: {why.format('shipped')}]" in caption(*files).stdout


def test_two_geotiffs_are_captioned_by_the_one_for_satellite_images(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caption: Caption
) -> None:
    """Even where another captioner is newer; one of the two is not enough."""
    monkeypatch.chdir(tmp_path)
    before = scenes.write(tmp_path / "before.tif", scenes.ground()[:64, :64])
    after = scenes.write(tmp_path / "after.TIF", scenes.ground(1)[:64, :64])
    chosen = caption(before, after, "--json")
    assert Path(json.loads(chosen.stdout)["artifact"]) == ROOT / "idc" / "weights" / "satellite_guide"
    assert json.loads(chosen.stdout)["captioner"] == "shipped-satellite"
    named = str(runs / "old" / "artifact")
    assert json.loads(caption(before, after, "--artifact", named, "--json").stdout)["artifact"] == named
    plain = tmp_path / "after.png"
    plain.write_bytes(encode_png(scenes.ground(1)[:64, :64]))
    of_both = caption(before, plain, "--json")
    assert json.loads(of_both.stdout)["chosen"].endswith("runs/sweep/new/artifact")


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ({"grid": scenes.from_origin(500_007, 5_300_000, 0.5, 0.5)}, "reproject=true resamples the first to the grid"),
        ({"pixels": np.dstack([scenes.ground()[:64, :64]] * 2)}, "{after} has 6 bands ("),
    ],
)
def test_two_geotiffs_that_cannot_be_compared_get_one_line(
    after: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caption: Caption
) -> None:
    """With their own names, and the job that has the settings that it advises."""
    monkeypatch.chdir(tmp_path)
    pixels = scenes.ground()[:64, :64]
    first = scenes.write(tmp_path / "x-before.tif", pixels)
    second = scenes.write(tmp_path / "after.tif", **{"pixels": pixels} | after)
    *_, message, end = caption(first, second, status=1).stderr.split("\n")
    assert end == ""
    assert line.format(after=second) in message
    assert str(first) in message or "after" in line
    assert message.endswith("(a setting of jobs/caption.py --out)")


def test_without_rasterio_a_geotiff_of_16_bits_is_refused_and_one_of_8_captioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caption: Caption
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pair_module, "find_spec", lambda name: None)
    pixels = scenes.ground()[:64, :64]
    before = scenes.write(tmp_path / "before.tif", pixels)
    deep = scenes.write(tmp_path / "deep.tif", np.dstack([pixels, pixels[..., :1]]).astype(np.uint16))
    refused = caption(before, deep, status=1)
    assert f"{deep} is a GeoTIFF of 4 bands of 16 bits; pip install 'idc[geo]'" in refused.stderr
    assert "confidence" in caption(before, scenes.write(tmp_path / "after.tif", pixels)).stdout


def test_what_differs_is_said_before_the_caption_of_an_unfamiliar_pair(tmp_path: Path, caption: Caption) -> None:
    images = tmp_path / "before.png", tmp_path / "after.png"
    for path, colour in zip(images, (RED, BLUE), strict=True):
        Image.fromarray(with_disk(ground(), 60, 50, colour)).save(path)
    sentence = "One region changed: at the top left (2 % of the picture, red before and blue after)."
    assert caption(*images, "--artifact", "regions").stdout == f"{sentence}  [changed; captioner regions]\n"
    first, line = caption(*images, "--artifact", SHIPPED).stdout.splitlines()
    assert first.startswith("objects: ")
    assert first != f"objects: {sentence}", "with a detector"
    assert caption(*images, "--artifact", SHIPPED, "--detector", "none").stdout.startswith(f"objects: {sentence}\n")
    assert line.endswith("%; unsure: the images are unlike those that the model was trained on; captioner shipped]")


def test_the_line_for_a_terminal_has_caption_confidence_and_verdict() -> None:
    one = {"caption": "a cube moved", "confidence": 0.834}
    found = {
        **one, "familiar": None, "captioner": "runs/x/artifact", "chosen": None, "objects_text": None,
        "verdict": "changed", "verdict_text": None, "changed_probability": 0.971, "candidates": [one, one],
    }  # fmt: skip
    assert caption_text(found) == (
        "a cube moved  [confidence 83 %; changed (probability of a change 97 %); captioner runs/x/artifact]\n"
        "a cube moved  [confidence 83 %]"
    )
    found |= {"verdict": "unsure", "verdict_text": "the caption names a change, but ..."}
    assert "83 %; unsure: the caption names a change, but ...; captioner" in caption_text(found)
