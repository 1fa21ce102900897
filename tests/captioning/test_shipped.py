"""The captioners that come with the program: their stored scores come out, and an image is equal to itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sklearn.datasets import load_sample_images

from idc.captioning.contract import SearchOptions
from idc.captioning.loading import DEFAULTS, CaptionerLoader
from idc.captioning.sources import SHIPPED, SHIPPED_SATELLITE, artifact_folder
from idc.metrics.change_types import says_no_change
from idc.training.artifact import read_artifact
from tests.shipped_scores import caption_differences, guide_differences
from tests.systems.objects.test_regions import KINDS


@pytest.mark.parametrize(("name", "megabytes"), [(SHIPPED, 30), (SHIPPED_SATELLITE, 8)])
def test_it_is_a_whole_small_artifact(name: str, megabytes: int) -> None:
    folder = Path(artifact_folder(name))
    artifact = read_artifact(folder)
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert files.keys() == {"config.json", *artifact.files}
    assert {"README.md", "scores.json", "calibration.json", "familiarity.safetensors"} <= files.keys()
    assert sum(files.values()) <= megabytes * 1e6
    assert artifact.trained_on
    if name == SHIPPED_SATELLITE:
        assert artifact.system == "changevg"
        assert artifact.trained_on.startswith("rendered satellite images")


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "differences"), [(SHIPPED, caption_differences), (SHIPPED_SATELLITE, guide_differences)]
)
def test_its_stored_scores_come_out(name: str, differences: Callable[[Path, Path, int], list[str]], which: int) -> None:
    """Of the first few scenes, and of all of the check; rendered anew here."""
    folder = Path(artifact_folder(name))
    assert differences(folder, folder, which) == []


@pytest.mark.parametrize("name", [SHIPPED, SHIPPED_SATELLITE])
def test_an_image_of_any_kind_is_equal_to_itself(name: str) -> None:
    images = list(KINDS.values())
    for description in CaptionerLoader(name, DEFAULTS)().describe(images, images, SearchOptions(change_map=True)):
        assert says_no_change(description.best.caption)
        assert description.changed is not None
        assert description.changed < 0.1
        assert description.change_map.max() < 0.05
        assert description.verdict == ("unchanged" if description.familiar else "unsure")


def test_photographs_get_a_warning_that_names_the_satellite_images_of_training() -> None:
    captioner = CaptionerLoader(SHIPPED_SATELLITE, DEFAULTS)()
    photographs = load_sample_images().images
    for described in captioner.describe(photographs, photographs[::-1]):
        assert described.familiar is False
        assert captioner.trained_on is not None
        assert captioner.trained_on in (described.warning or "")
