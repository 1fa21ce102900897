"""The captioner that comes with the program: its stored scores come out, and an image is equal to itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.captioning.loading import CaptionerLoader, LoadConfig
from idc.captioning.sources import SHIPPED, SHIPPED_SATELLITE, artifact_folder
from idc.metrics.change_types import says_no_change
from idc.training.artifact import read_artifact
from tests.shipped_scores import caption_differences
from tests.systems.objects.test_regions import KINDS

FOLDER = Path(artifact_folder(SHIPPED))


def test_it_is_a_whole_artifact_of_at_most_30_mb() -> None:
    artifact = read_artifact(FOLDER)
    files = {path.relative_to(FOLDER).as_posix(): path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert files.keys() == {"config.json", *artifact.files}
    assert {"README.md", "scores.json", "calibration.json", "familiarity.safetensors"} <= files.keys()
    assert sum(files.values()) <= 30e6
    assert artifact.trained_on


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.slow)])
def test_its_stored_scores_come_out(which: int) -> None:
    """Of the first few scenes, and of all of the check; rendered anew here."""
    assert caption_differences(FOLDER, FOLDER, which) == []


@pytest.mark.parametrize("name", [SHIPPED, SHIPPED_SATELLITE])
def test_an_image_of_any_kind_is_equal_to_itself(name: str) -> None:
    images = list(KINDS.values())
    for description in CaptionerLoader(name, LoadConfig())().describe(images, images, change_map=True):
        assert says_no_change(description.best.caption)
        assert description.changed is not None
        assert description.changed < 0.1
        assert description.change_map.max() < 0.05
        assert description.verdict == ("unchanged" if description.familiar else "unsure")
