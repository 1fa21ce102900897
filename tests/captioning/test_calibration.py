"""The calibrated probability of a change and the familiarity of a pair: by hand, fitted, and in an artifact."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from idc.captioning.calibration import Calibration, fit_calibration, quality
from idc.captioning.calibration_job import CalibrateJob, finished_calibration
from idc.captioning.calibration_job import calibrate as run_calibration
from idc.captioning.contract import FAMILIAR_FROM
from idc.captioning.familiarity import Familiarity, fit_familiarity, pair_statistics, statistics
from idc.data.images import decode_image, encode_png, resize_image
from idc.data.store import iter_rows
from idc.systems import load_captioner
from idc.training.artifact import add_file, captioning_identity, read_artifact, write_artifact
from tests.folders import write_rows
from tests.systems.procap.world import World

Pair = tuple[np.ndarray, np.ndarray]


def scene(random: np.random.Generator, side: int = 64) -> np.ndarray:
    """A grey baseline, lit from above or below, with a dark square somewhere on it."""
    light = 150 + random.integers(-15, 15) + np.linspace(-1, 1, 64) * random.normal(0, 15)
    pixels = np.broadcast_to(light[:, None, None], (64, 64, 3)).copy()
    top, left = random.integers(8, 48, 2)
    pixels[top : top + 10, left : left + 10] = random.integers(20, 90, 3)
    return resize_image(pixels.clip(0, 255).astype(np.uint8), side)


def pairs(seed: int, count: int) -> list[Pair]:
    random = np.random.default_rng(seed)
    return [(scene(random), scene(random)) for _ in range(count)]


@pytest.fixture(scope="module")
def fitted() -> Familiarity:
    return fit_familiarity(
        *((pair_statistics(*pair) for pair in pairs(seed, count)) for seed, count in ((0, 300), (1, 799)))
    )


def test_statistics_of_an_image_by_hand() -> None:
    """Left half red, right half white: half of the cells each, one step across."""
    image = np.full((64, 64, 3), 255, np.uint8)
    image[:, :32, 1:] = 0
    values = statistics(image)
    mean, contrast = 0.6495, 0.3505 + 0.02
    assert values[:2] == pytest.approx(np.log([mean + 0.02, contrast]), abs=1e-4)
    assert values[2:9] == pytest.approx([0.299] * 3 + [mean] + [1] * 3, abs=1e-4)  # quantiles of the brightness
    assert values[9:16] == pytest.approx((values[2:9] - mean) / contrast, abs=1e-3)
    cells = values[16:64].reshape(4, 4, 3) * contrast + mean
    assert cells[:, :2] == pytest.approx(np.broadcast_to([1, 0, 0], (4, 2, 3)), abs=1e-3)
    assert cells[:, 2:] == pytest.approx(np.ones((4, 2, 3)), abs=1e-3)
    assert values[64:69].tolist() == [0] * 5  # gradients down
    assert values[69] == pytest.approx(0.701 / contrast / 63, rel=1e-3)  # mean gradient across
    assert values[89:91] == pytest.approx([0.5, 0.5])  # saturation: mean, deviation


def test_statistics_but_those_of_the_brightness_do_not_depend_on_it() -> None:
    image = scene(np.random.default_rng(0), 64)
    scaled = [*range(9, 89), *range(91, 96)]
    for other in (image // 2, image // 4 + 90):
        differences = np.abs(statistics(other) - statistics(image))
        assert np.median(differences[scaled]) < 0.1
        assert differences[:2].max() > 0.6


def test_pairs_of_the_domain_are_warned_of_as_often_as_the_threshold_says(fitted: Familiarity) -> None:
    """A conformal p-value is uniform on new pairs of the domain."""
    familiarities = np.array([fitted(before, after) for before, after in pairs(2, 400)])
    assert familiarities.min() >= 1 / 800
    for share in (0.05, 0.2, 0.5):
        assert abs((familiarities <= share).mean() - share) < 0.08


def test_another_domain_has_the_lowest_familiarity_on_either_side(fitted: Familiarity) -> None:
    random = np.random.default_rng(3)
    inside, outside = scene(random), random.integers(0, 255, (48, 80, 3), dtype=np.uint8)
    lowest = pytest.approx(1 / 800)
    assert fitted(outside, outside) == lowest
    assert fitted(inside, outside) == lowest
    assert fitted(outside, inside) == lowest
    assert fitted(inside, inside) > 0.02
    assert fitted.share(np.array([0.0, 0.0])) == lowest, "nearer to the mean than any image is"


def brighter(seed: int, count: int) -> list[Pair]:
    """Scenes of another domain whose statistics are within the spread of those of :func:`pairs`."""
    return [(np.minimum(before, 215) + 40, np.minimum(after, 215) + 40) for before, after in pairs(seed, count)]


def test_a_damaged_file_is_refused_with_what_to_do(fitted: Familiarity, tmp_path: Path) -> None:
    import torch

    artifact = write_artifact(tmp_path / "x", system="toy", config={}, state_dict={"w": torch.ones(1)})
    fitted.save(artifact)
    file = artifact / "familiarity.safetensors"
    stored = load_file(file)
    save_file({**stored, "mean": stored["mean"][:-1]}, file)
    with pytest.warns(UserWarning, match=r"other image statistics .*; run jobs/calibrate\.py --overwrite"):
        assert Familiarity.read(artifact) is None, "of an earlier version"
    save_file({"distances": stored["distances"]}, file)
    with pytest.raises(ValueError, match=r"run jobs/calibrate\.py --overwrite"):
        Familiarity.read(artifact)
    file.write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"familiarity\.safetensors is damaged"):
        Familiarity.read(artifact)


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def artifact(captioner_artifact: Path, tmp_path: Path) -> Path:
    return shutil.copytree(captioner_artifact, tmp_path / "artifact")


def calibrate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["calibrate.py", *arguments])
    runpy.run_path(str(ROOT / "jobs" / "calibrate.py"), run_name="__main__")


def test_probabilities_are_those_of_the_fitted_regression() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(200, 3)) * (1, 5, 0.01) + (0, 3, 7)
    changed = values @ (1, 0.5, 100) + random.normal(size=200) > 701.5
    rows = [{"a": a, "b": b, "c": c, "always": 4.0} for a, b, c in values.tolist()]
    calibration = Calibration(fingerprint="", source={}, quality={}, **fit_calibration(rows, changed.tolist()))
    expected = make_pipeline(StandardScaler(), LogisticRegression()).fit(values, changed).predict_proba(values)[:, 1]
    assert [calibration.probability(row) for row in rows] == pytest.approx(expected, abs=1e-3)
    assert calibration.weights[3] == pytest.approx(0)
    assert calibration.probability({"a": 1e9, "b": 0, "c": 0, "always": 4}) <= 1  # far outside, no overflow


def test_quality_by_hand() -> None:
    """Two bins of two pairs; of the four couples the probability puts three in order."""
    measured = quality([0.1, 0.4, 0.3, 0.8], [False, False, True, True], bins=2)
    assert (measured.pairs, measured.changed, measured.auc) == (4, 2, 0.75)
    assert measured.brier == pytest.approx((0.1**2 + 0.4**2 + 0.7**2 + 0.2**2) / 4)
    assert measured.ece == pytest.approx(abs(0.2 - 0.5) / 2 + abs(0.6 - 0.5) / 2)
    assert quality([0.5] * 30, [True] * 15 + [False] * 15).ece == 0  # equal probabilities stand in one bin


def test_an_artifact_is_calibrated(
    artifact: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(iter_rows(world.pairs, split="test"))
    images = [[decode_image(row[name]) for row in rows] for name in ("before", "after")]
    before = load_captioner(str(artifact)).describe(*images)
    assert all(description.changed is None for description in before)
    command = (f"artifact={artifact}", f"pairs={world.pairs}", "report_split=test", "batch_size=3")
    calibrate(monkeypatch, *command)
    assert "AUC" in capsys.readouterr().out
    assert "calibration.json" in read_artifact(artifact).path.joinpath("config.json").read_text()
    calibration = Calibration.read(artifact)
    assert (calibration.quality["val"].pairs, calibration.quality["test"].pairs) == (6, len(rows))

    after = load_captioner(str(artifact)).describe(*images)
    assert [description.candidates for description in after] == [description.candidates for description in before]
    probabilities = [description.changed or 0.0 for description in after]
    assert probabilities == [calibration(description) for description in after]
    assert all(0 < probability < 1 for probability in probabilities)
    truth = [row["change_type"] != "none" for row in rows]
    assert calibration.quality["test"].model_dump() == pytest.approx(
        quality(probabilities, truth).model_dump(), abs=1e-4
    )

    written = (artifact / "calibration.json").read_bytes()
    calibrate(monkeypatch, *command)
    assert "done before" in capsys.readouterr().out
    calibrate(monkeypatch, *command, "max_pairs=3")
    assert "done before" not in capsys.readouterr().out
    assert (artifact / "calibration.json").read_bytes() != written
    assert json.loads((artifact / "config.json").read_text())["files"].count("calibration.json") == 1


def test_a_calibration_on_other_inputs_is_left_out(artifact: Path) -> None:
    settings: dict[str, Any] = fit_calibration([{"other": 0.0}, {"other": 1.0}], [False, True])
    calibration = Calibration(fingerprint="", source={}, quality={}, **settings)
    add_file(artifact, "calibration.json", calibration.model_dump_json())
    with pytest.warns(UserWarning, match="has other inputs and is ignored; run jobs/calibrate.py again"):
        captioner = load_captioner(str(artifact))
    grey = [np.full((32, 32, 3), 99, np.uint8)]
    assert captioner.describe(grey, grey)[0].changed is None
    add_file(artifact, "calibration.json", "{}")
    with pytest.raises(ValueError, match=r"calibration.json is not a calibration; run jobs/calibrate.py again"):
        load_captioner(str(artifact))


def test_what_cannot_be_calibrated_on(
    artifact: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        calibrate(monkeypatch, f"artifact={artifact}", f"pairs={world.pairs}", "split=train")
    assert "split: the captioner learnt the training pairs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        calibrate(monkeypatch, f"artifact={artifact}", f"pairs={world.pairs}", "report_split=val")
    assert "report_split: val is the split to fit on" in capsys.readouterr().err
    rows = [row for row in iter_rows(world.pairs, split="val") if row["change_type"] != "none"]
    write_rows(tmp_path / "changed", rows)
    with pytest.raises(SystemExit, match=r"val has only pairs that changed; .* needs pairs of both kinds"):
        calibrate(monkeypatch, f"artifact={artifact}", f"pairs={tmp_path / 'changed'}", "familiarity=false")
    with pytest.raises(SystemExit, match="test has no pairs with captions or a known change flag"):
        calibrate(monkeypatch, f"artifact={artifact}", f"pairs={tmp_path / 'changed'}", "split=test")
    assert not (artifact / "calibration.json").exists()


def write_pairs(folder: Path, splits: dict[str, list[Any]], captions: Sequence[Sequence[str]] = ()) -> str:
    """A folder of pairs; every second one is unchanged, or with ``captions`` has the second of these and no type."""
    rows = [
        {
            "pair_id": f"{split}-{number}", "before": encode_png(pair[0]), "after": encode_png(pair[number % 2]),
            "captions": list(captions[number % 2]) if captions else ["x"], "split": split, "mask": None,
            "change_type": None if captions else ("none", "move")[number % 2], "source": "test", "meta": "{}",
        }
        for split, pairs in splits.items()
        for number, pair in enumerate(pairs)
    ]  # fmt: skip
    write_rows(folder, rows, fingerprint=folder.name)
    return str(folder)


def test_pairs_with_captions_alone(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their captions say whether they changed; if all did, the familiarity is fitted and no probability."""
    images = np.random.default_rng(0).integers(0, 255, (60, 2, 32, 32, 3), dtype=np.uint8)
    for name, captions, fitted in (
        ("both", [("a car left", "the van is gone"), ("i cannot see any difference", "no change")], True),
        ("changed", [("a car left",), ("a tree fell",)], False),
    ):
        folder = write_pairs(tmp_path / name, {"train": [*images], "val": [*images[:40]]}, captions)
        copy = shutil.copytree(artifact, tmp_path / f"artifact-{name}")
        calibrate(monkeypatch, f"artifact={copy}", f"pairs={folder}")
        assert (copy / "calibration.json").exists() == fitted
        assert (copy / "familiarity.safetensors").exists()
    printed = capsys.readouterr()
    assert "val          40       20" in printed.out
    assert "the familiarity was fitted" in printed.out
    assert "val has only pairs that changed" in printed.err + printed.out


def test_familiarity_is_fitted_reported_and_used(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenes that it is fitted on, and noise; the noise is warned of in every pair."""
    splits = {"train": pairs(0, 150), "val": pairs(1, 60), "test": pairs(2, 20)}
    folder = write_pairs(tmp_path / "pairs", splits)
    noise = np.random.default_rng(0).integers(0, 255, (2, 40, 60, 3), dtype=np.uint8)
    for name, image in zip(("x_before.png", "x_after.png"), noise, strict=True):
        (tmp_path / name).write_bytes(encode_png(image))
    table = tmp_path / "noise.csv"
    table.write_text("before,after\nx_before.png,x_after.png\nx_after.png,x_before.png\n")
    command = (f"artifact={artifact}", f"pairs={folder}", "report_split=test", f"outside=[{table}]")

    inside = splits["test"][0]
    assert load_captioner(str(artifact)).describe([noise[0]], [noise[1]])[0].familiar is None
    before = captioning_identity(artifact)
    calibrate(monkeypatch, *command)
    assert f"{table}: 2 of 2 (100.0 %)" in capsys.readouterr().out
    assert captioning_identity(artifact) == before, "evaluations stay those of this captioner"
    calibration = Calibration.read(artifact)
    counts = {name: unfamiliar.pairs for name, unfamiliar in calibration.unfamiliar.items()}
    assert counts == {"val": 60, "test": 20, str(table): 2}
    assert calibration.unfamiliar["val"].warned <= 2
    assert calibration.unfamiliar[str(table)].lowest == pytest.approx(1 / 61)
    assert [unfamiliar.auc for unfamiliar in calibration.unfamiliar.values()] == [None, None, 1.0]

    familiar, other = load_captioner(str(artifact)).describe([inside[0], noise[0]], [inside[1], noise[1]])
    assert (familiar.familiar, familiar.warning) == (True, None)
    assert other.familiar is False
    assert (other.warning or "").startswith("This model has only seen rendered scenes at 32x32 pixels")

    calibrate(monkeypatch, *command)
    assert "done before" in capsys.readouterr().out


Draw = Callable[[int, int], list[Pair]]


def darker(seed: int, count: int) -> list[Pair]:
    """By a tenth and with a little noise, as augmentation makes them."""
    random = np.random.default_rng(3)
    return [
        tuple((0.9 * image + 4 * random.standard_normal(image.shape)).clip(0, 255).astype(np.uint8) for image in pair)
        for pair in pairs(seed, count)
    ]  # type: ignore[misc]


def dark(seed: int, count: int) -> list[Pair]:
    return [(before // 4, after // 4) for before, after in pairs(seed, count)]


@pytest.mark.parametrize(("others", "setting"), [(darker, "augmented"), (dark, "more_pairs")])
def test_what_was_part_of_the_training_is_familiar(others: Draw, setting: str, artifact: Path, tmp_path: Path) -> None:
    """Other pairs are warned of, unless the fit saw such: by augmentation, or in a further folder."""
    folder = write_pairs(tmp_path / "pairs", {"train": pairs(0, 150), "val": pairs(1, 60), "test": []})
    further = (write_pairs(tmp_path / "more", {"train": others(3, 150), "val": others(4, 60), "test": []}),)
    warned = []
    for settings in ({"augmented": False}, {"augmented": True} if setting == "augmented" else {setting: further}):
        calibration = run_calibration(CalibrateJob(artifact=str(artifact), pairs=folder, **settings))
        familiarity = Familiarity.read(artifact)
        assert familiarity is not None
        warned.append(sum(familiarity(*pair) < FAMILIAR_FROM for pair in others(5, 20)))
    assert (warned[0], calibration.source["count"]) == (20, 120 if setting == "more_pairs" else 60)
    assert warned[1] <= 3


def test_inputs_of_another_domain_that_must_be_warned_of(artifact: Path, tmp_path: Path) -> None:
    """Of brighter scenes few are warned of, unless the fit was given others of them."""
    folder = write_pairs(tmp_path / "pairs", {"train": pairs(0, 150), "val": pairs(1, 60)})
    examples, others = (write_pairs(tmp_path / f"{count}", {"test": brighter(count, count)}) for count in (8, 40))
    settings: dict[str, Any] = {"artifact": str(artifact), "pairs": folder, "outside": (others,)}
    without = CalibrateJob(**settings)
    assert run_calibration(without).unfamiliar[others].warned < 12
    job = CalibrateJob(**settings, unlike=(examples,))
    assert finished_calibration(job) is None
    unfamiliar = run_calibration(job).unfamiliar
    assert (unfamiliar[examples].warned, unfamiliar[others].warned) == (8, 40)
    assert finished_calibration(job) is not None
    assert finished_calibration(without) is None


def test_familiarity_needs_the_training_pairs_or_is_switched_off(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pairs(tmp_path / "pairs", {"val": pairs(1, 8)})
    with pytest.raises(SystemExit, match=r"pairs has no training pairs, .* or set familiarity=false"):
        calibrate(monkeypatch, f"artifact={artifact}", f"pairs={folder}")
    assert not (artifact / "calibration.json").exists()
    with pytest.raises(SystemExit):
        calibrate(monkeypatch, f"artifact={artifact}", f"pairs={folder}", "familiarity=false", f"outside=[{folder}]")
    assert "outside: concerns familiarity, which is off" in capsys.readouterr().err
    calibrate(monkeypatch, f"artifact={artifact}", f"pairs={folder}", "familiarity=false")
    assert not (artifact / "familiarity.safetensors").exists()
    assert (artifact / "calibration.json").exists()
