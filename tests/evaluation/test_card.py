"""The card of an artifact: its figures are those of its evaluations, and its check comes out again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from idc.captioning.calibration import Calibration
from idc.captioning.calibration_job import CalibrateJob, calibrate
from idc.config import load
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.evaluation.card import Check, ShippedScores, check, make_card
from idc.evaluation.card_config import CardJob
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.evaluation.record import Evaluation
from idc.metrics.hallucination import Rate
from idc.systems import load_captioner
from idc.training.artifact import read_artifact
from tests.systems.procap.world import SIZE, World

RENDER = {
    "ordered_pairs": True, "width": SIZE, "height": SIZE, "samples_per_pixel": 4, "min_objects": 2, "max_objects": 3,
    "min_visible_pixels": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def artifact(captioner_artifact: Path, world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = shutil.copytree(captioner_artifact, tmp_path_factory.mktemp("card") / "artifact")
    calibrate(CalibrateJob(artifact=str(copy), pairs=world.pairs))
    return copy


@pytest.fixture(scope="module")
def evaluation(artifact: Path, world: World) -> tuple[Path, Evaluation]:
    out = artifact.parent / "robustness" / "clean"
    settings: dict[str, Any] = {"metrics": ("CIDEr",), "spice": False, "resamples": 20}
    return out, run_evaluation(EvaluateJob(artifact=str(artifact), pairs=world.pairs, out=str(out), **settings))


def job(artifact: Path, evaluation: Path, out: Path, **settings: Any) -> CardJob:
    scenes = out.with_name("scenes.yaml")
    scenes.write_text(yaml.safe_dump({"render": RENDER}))
    given = {
        "artifact": str(artifact), "out": str(out), "title": "Captioner of a test", "scenes": str(scenes),
        "evaluations": {"tiny scenes": str(evaluation)}, "recipe": ["python jobs/render.py out=pairs"],
        "check_scenes": [3, 2],
    }  # fmt: skip
    return load(CardJob, None, given | settings)


def test_the_selection_is_that_of_the_training_unless_it_is_given(
    evaluation: tuple[Path, Evaluation], artifact: Path, world: World, tmp_path: Path
) -> None:
    best = read_artifact(artifact).config["job"]["train"]["keep_best"]
    expected = "last step" if best is None else f"best {best['metric']} on val"
    assert evaluation[1].protocol["selection"] == expected
    by_hand: dict[str, Any] = {"metrics": ("CIDEr",), "spice": False, "resamples": 0, "selection": "by hand"}
    given = EvaluateJob(artifact=str(artifact), pairs=world.pairs, out=str(tmp_path / "out"), **by_hand)
    assert run_evaluation(given).protocol["selection"] == "by hand"


def test_the_folder_is_the_artifact_with_its_figures_and_a_card(
    artifact: Path, evaluation: tuple[Path, Evaluation], world: World, tmp_path: Path
) -> None:
    folder, found = evaluation
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "old.json").touch()
    limits = ["Knows no stairs."]
    out = make_card(
        job(artifact, folder, tmp_path / "weights", robustness=str(folder.parent), limits=limits, trained_on="toys")
    )
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {"config.json", "hashes.json", *read_artifact(out).files}
    rows = list(iter_rows(world.pairs, split="test"))
    images = [[decode_image(row[name]) for row in rows] for name in ("before", "after")]
    found_again, shipped = (load_captioner(str(path)).describe(*images) for path in (artifact, out))
    assert shipped == [replace(one, trained_on="toys") for one in found_again]

    scores = ShippedScores.read(out)
    assert found.hallucination is not None
    one = scores.evaluations["tiny scenes"]
    assert (one.right_type, one.right_object) == (found.hallucination.change_type, found.hallucination.object)
    assert one.scores == found.scores
    assert one.baselines["nearest"] == found.baselines["nearest"].scores
    assert scores.robustness == {"clean": one}
    assert [(one.scenes, one.pairs) for one in scores.checks] == [(2, 4), (3, 6)]

    text = (out / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Captioner of a test\n")
    rate = found.hallucination.change_type
    assert f"{100 * rate.rate:.1f} % ({rate.right} of {rate.of};" in text
    assert f"{100 * found.scores['CIDEr']:.1f}" in text
    assert "| clean |" in text
    assert "- Knows no stairs." in text
    assert "python jobs/render.py out=pairs" in text

    for name in ("config.json", "calibration.json", "scores.json", "README.md"):
        assert str(tmp_path.parent.parent) not in (out / name).read_text(encoding="utf-8"), "no folder of this machine"
    assert Calibration.read(out) is not None

    again = check(str(out), scores.render, 3)
    assert again == scores.checks[1]


def test_an_evaluation_of_another_artifact_is_refused(
    artifact: Path, evaluation: tuple[Path, Evaluation], tmp_path: Path
) -> None:
    other = shutil.copytree(artifact, tmp_path / "other")
    (other / "hashes.json").unlink()  # as of an earlier version, which is read without a comparison
    (other / "metrics.json").write_text("{}")
    with pytest.raises(ValueError, match="is an evaluation of another artifact"):
        make_card(job(other, evaluation[0], tmp_path / "weights"))
    (other / "calibration.json").unlink()
    assert not (tmp_path / "weights").exists()


def test_an_artifact_that_was_not_calibrated_is_refused(
    captioner_artifact: Path, evaluation: tuple[Path, Evaluation], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"is not calibrated; run jobs/calibrate\.py"):
        make_card(job(captioner_artifact, evaluation[0], tmp_path / "weights"))


def result(types: int = 78, objects: int = 36, cider: float = 1.8, **changes: Any) -> Check:
    rates = {
        name: Rate(right=right, of=of, rate=right / of, chance=0.2)
        for name, right, of in (("right_type", types, 80), ("right_object", objects, 40))
    }
    return Check(**{"scenes": 40, "pairs": 80, "cider": cider, **rates, **changes})


def test_rounding_is_tolerated_and_another_result_is_named() -> None:
    """Two of 80 pairs may come out otherwise; CIDEr by as much as two pairs can lose, 7.5 %."""
    stored = result()
    assert stored.differences(result(types=76, objects=38, cider=1.8 * (1 - 0.074))) == []
    assert stored.differences(result(types=75)) == ["right_type: 75 of 80, stored 78 of 80"]
    assert stored.differences(result(objects=33)) == ["right_object: 33 of 40, stored 36 of 40"]
    [line] = stored.differences(result(cider=1.8 * (1 - 0.076)))
    assert line.startswith("CIDEr: 1.6632, stored 1.8000")
    assert stored.differences(result(pairs=78)) == ["78 pairs of 40 scenes, not 80 of 40"]
