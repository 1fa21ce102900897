"""The captioner of satellite images that comes with the program: its stored scores come out again."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.datasets import load_sample_images

from idc.captioning.loading import DEFAULTS, CaptionerLoader
from idc.captioning.sources import SHIPPED_SATELLITE, artifact_folder
from idc.training.artifact import read_artifact
from tests.shipped_scores import guide_differences

FOLDER = Path(artifact_folder(SHIPPED_SATELLITE))


def test_it_is_a_whole_artifact_of_at_most_8_mb() -> None:
    artifact = read_artifact(FOLDER, system="changevg")
    files = {path.relative_to(FOLDER).as_posix(): path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert files.keys() == {"config.json", *artifact.files}
    assert {"README.md", "scores.json", "calibration.json", "familiarity.safetensors"} <= files.keys()
    assert sum(files.values()) <= 8e6
    assert artifact.trained_on.startswith("rendered satellite images")


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.slow)])
def test_its_stored_scores_come_out(which: int) -> None:
    assert guide_differences(FOLDER, FOLDER, which) == []


def test_photographs_get_a_warning_that_names_its_training_images() -> None:
    captioner = CaptionerLoader(SHIPPED_SATELLITE, DEFAULTS)()
    photographs = load_sample_images().images
    for described in captioner.describe(photographs, photographs[::-1]):
        assert described.familiar is False
        assert captioner.trained_on is not None
        assert captioner.trained_on in (described.warning or "")
