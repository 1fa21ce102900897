"""The captioner of satellite images that comes with the program: its stored scores come out again, it is right on nine
of ten, and it does not know photographs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images

from idc.captioning.loading import DEFAULTS, SHIPPED_SATELLITE, CaptionerLoader, artifact_folder
from idc.systems.changevg.guide_card import GuideScores, check_guide
from idc.training.artifact import WEIGHTS, captioning_identity, read_artifact

FOLDER = Path(artifact_folder(SHIPPED_SATELLITE))


def test_it_is_a_whole_artifact_of_at_most_8_mb() -> None:
    artifact = read_artifact(FOLDER, system="changevg")
    files = {path.relative_to(FOLDER).as_posix(): path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert files.keys() == {"config.json", "hashes.json", *artifact.files}
    assert {"README.md", "scores.json", "calibration.json", "familiarity.safetensors"} <= files.keys()
    assert sum(files.values()) <= 8e6
    assert artifact.trained_on is not None
    assert artifact.trained_on.startswith("rendered satellite images")


def test_nine_of_ten_rendered_pairs_are_right() -> None:
    """What it is shipped for: whether anything changed, on the test pairs and on those of the check."""
    scores = GuideScores.read(FOLDER)
    assert scores.notes.right / scores.notes.pairs >= 0.9
    assert all(check.right / check.pairs >= 0.85 for check in scores.checks)


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.slow)])
def test_its_stored_scores_come_out(which: int) -> None:
    """Of the first few pairs, and of all of the check; rendered anew here."""
    scores = GuideScores.read(FOLDER)
    stored = scores.checks[which]
    assert stored.differences(check_guide(str(FOLDER), scores.render, stored.pairs)) == []


def test_other_weights_have_other_scores(tmp_path: Path) -> None:
    other = shutil.copytree(FOLDER, tmp_path / "other")
    (other / "hashes.json").unlink()  # as of an earlier version, which is read without a comparison
    random = torch.Generator().manual_seed(0)
    state = load_file(other / WEIGHTS)
    for name, value in state.items():
        if value.is_floating_point() and value.ndim > 1:
            state[name] = value + 0.5 * value.std() * torch.randn(value.shape, generator=random)
    save_file(state, other / WEIGHTS)
    scores = GuideScores.read(FOLDER)
    stored = scores.checks[0]
    assert stored.differences(check_guide(str(other), scores.render, stored.pairs)) != []
    assert captioning_identity(other) != captioning_identity(FOLDER)


def test_photographs_get_a_warning_that_names_its_training_images() -> None:
    captioner = CaptionerLoader(SHIPPED_SATELLITE, DEFAULTS)()
    photographs = load_sample_images().images
    for described in captioner.describe(photographs, photographs[::-1]):
        assert described.familiar is False
        assert captioner.trained_on is not None
        assert captioner.trained_on in (described.warning or "")
