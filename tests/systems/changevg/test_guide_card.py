"""The card of a guide: its figures are those of its evaluation and its notes, and other artifacts' are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from idc.captioning.calibration import Calibration
from idc.captioning.calibration_job import CalibrateJob, calibrate
from idc.config import load
from idc.data.pipeline import run_local
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.systems.changevg.config import RunGuideJob
from idc.systems.changevg.guide_card import GuideCheck, GuideScores, check_guide, make_guide_card
from idc.systems.changevg.guide_card_config import GuideCardJob
from idc.systems.changevg.notes_job import open_notes, score_notes
from idc.training.artifact import read_artifact
from tests.folders import write_rows
from tests.systems.changevg.tiny import changed_pair, start, tiny_job

RENDER = {"width": 32, "height": 32, "satellite": {"metres_per_pixel": 2.5, "min_visible_pixels": 4}}


def taken_notes(artifact: Path, pairs: str, out: Path) -> dict[str, Any]:
    job = RunGuideJob(pairs=pairs, guide=str(artifact), out=str(out))
    run_local(*open_notes(job), name="notes", progress=False)
    return score_notes(str(out), job.regions)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, a calibrated guide, its evaluation and its notes."""
    folder = tmp_path_factory.mktemp("card")
    rows = [
        changed_pair(number, split, ("road", "building", "same")[number % 3])
        for split, count in (("train", 6), ("val", 3), ("test", 6))
        for number in range(count)
    ]
    pairs = write_rows(folder / "pairs", rows, fingerprint="card")
    start(tiny_job(pairs, {"train.steps": 4}), folder / "run")
    artifact = folder / "run" / "artifact"
    calibrate(CalibrateJob(artifact=str(artifact), pairs=pairs))
    settings: dict[str, Any] = {"metrics": ("CIDEr", "BLEU"), "spice": False, "resamples": 20}
    run_evaluation(EvaluateJob(artifact=str(artifact), pairs=pairs, out=str(folder / "evaluation"), **settings))
    taken_notes(artifact, pairs, folder / "notes")
    (folder / "scenes.yaml").write_text(yaml.safe_dump({"render": RENDER}))
    return folder


def job(world: Path, out: Path, **settings: Any) -> GuideCardJob:
    base = {
        "artifact": str(world / "run" / "artifact"), "out": str(out), "title": "Guide of a test",
        "evaluation": str(world / "evaluation"), "notes": str(world / "notes"), "real": str(world / "notes"),
        "looked_at": ["It sees a wall."], "limits": ["Knows no rivers."], "recipe": ["python jobs/render.py out=pairs"],
        "scenes": str(world / "scenes.yaml"), "check_pairs": [6, 4],
    }  # fmt: skip
    return load(GuideCardJob, None, base | settings)


def test_the_folder_is_the_guide_with_its_figures_and_a_card(world: Path, tmp_path: Path) -> None:
    out = make_guide_card(job(world, tmp_path / "weights", trained_on="toy scenes"))
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {"config.json", "hashes.json", *read_artifact(out).files}
    assert read_artifact(out).trained_on == "toy scenes"

    scores, notes = GuideScores.read(out), json.loads((world / "notes" / "guide.json").read_text())["test"]
    assert scores.notes.map == notes["map"]
    accuracy = next(measures for measures in notes["answers"] if measures["type"] == "binary")["scores"]["Accuracy"]
    assert scores.notes.right == round(6 * accuracy)
    evaluation = json.loads((world / "evaluation" / "evaluation.json").read_text())
    assert scores.captions == evaluation["scores"]
    assert [check.pairs for check in scores.checks] == [4, 6]
    assert scores.checks[1] == check_guide(str(out), scores.render, 6)

    text = (out / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Guide of a test\n")
    assert f"| {100 * accuracy:.1f} ({scores.notes.right} of 6) |" in text
    assert f"| map: mIoU | {100 * notes['map']['mIoU']:.1f} | {100 * notes['map_unchanged']['mIoU']:.1f} " in text
    assert f"{100 * evaluation['scores']['CIDEr']:.1f} (" in text
    assert "\nIt sees a wall.\n" in text
    assert "- Knows no rivers." in text
    for name in ("config.json", "calibration.json", "scores.json", "README.md"):
        assert str(tmp_path.parent.parent) not in (out / name).read_text(encoding="utf-8"), "no folder of this machine"
    assert Calibration.read(out) is not None


def test_figures_of_another_guide_are_refused(world: Path, tmp_path: Path) -> None:
    other = shutil.copytree(world / "run" / "artifact", tmp_path / "other")
    (other / "hashes.json").unlink()  # as of an earlier version, which is read without a comparison
    (other / "metrics.json").write_text("{}")
    with pytest.raises(ValueError, match="evaluation is an evaluation of another artifact"):
        make_guide_card(job(world, tmp_path / "weights", artifact=str(other)))
    calibrated = json.loads((other / "calibration.json").read_text())
    (other / "metrics.json").write_text((world / "run" / "artifact" / "metrics.json").read_text())
    (other / "calibration.json").write_text(json.dumps({**calibrated, "bias": 1.0}))  # captions are the same
    with pytest.raises(ValueError, match=r"notes has notes of another artifact; run jobs/run_guide\.py again"):
        make_guide_card(job(world, tmp_path / "weights", artifact=str(other)))
    assert not (tmp_path / "weights").exists()


def test_notes_on_pairs_without_masks_and_a_guide_without_calibration_are_refused(world: Path, tmp_path: Path) -> None:
    artifact = world / "run" / "artifact"
    pairs = write_rows(tmp_path / "pairs", [changed_pair(2, "test", "same")], fingerprint="none")
    taken_notes(artifact, pairs, tmp_path / "notes")
    with pytest.raises(ValueError, match="has no notes on pairs of split test with masks"):
        make_guide_card(job(world, tmp_path / "weights", real=str(tmp_path / "notes")))
    other = shutil.copytree(artifact, tmp_path / "other", ignore=shutil.ignore_patterns("hashes.json"))
    (other / "calibration.json").unlink()
    config = json.loads((other / "config.json").read_text())
    config["files"].remove("calibration.json")
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"is not calibrated; run jobs/calibrate\.py"):
        make_guide_card(job(world, tmp_path / "weights", artifact=str(other)))


def test_rounding_is_tolerated_and_another_result_is_named() -> None:
    """Four of 160 pairs may get another answer, four buildings another count, and 1 % of mIoU."""
    stored = GuideCheck(pairs=160, right=148, miou=0.85, building_error=0.25)
    near = GuideCheck(pairs=160, right=144, miou=0.841, building_error=0.275)
    assert stored.differences(near) == []
    far = GuideCheck(pairs=160, right=143, miou=0.83, building_error=0.29)
    assert stored.differences(far) == [
        "changed or not: 143 right of 160, stored 148",
        "error of the buildings: 0.2900, stored 0.2500",
        "mIoU: 0.8300, stored 0.8500",
    ]
    assert stored.differences(near.model_copy(update={"pairs": 159})) == ["159 pairs, not 160"]
