"""The captioner of satellite images that comes with the program: its stored scores come out again, it is right on nine
of ten, and it does not know photographs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rasterio.features import rasterize
from rasterio.transform import from_origin
from rasterio.warp import transform_geom
from sklearn.datasets import load_sample_images

from idc.captioning.calibration import Calibration
from idc.captioning.loading import DEFAULTS, SHIPPED_SATELLITE, CaptionerLoader, artifact_folder
from idc.config import load
from idc.data.class_masks import class_map
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderJob
from idc.data.rendered.render import open_rendering
from idc.data.store import iter_rows
from idc.geo.config import SceneJob
from idc.geo.scene_job import caption_scene
from idc.training.artifact import captioning_identity, read_artifact
from tests.captioning.disturbed_weights import disturbed_copy
from tests.geo.scenes import UTM, write
from tests.shipped_scores import guide_differences, render_settings, stored_scores

FOLDER = Path(artifact_folder(SHIPPED_SATELLITE))
GRID = from_origin(500_000, 5_300_000, 1.25, 1.25)
NUMBERS = {"road": 1, "building": 2}
"""Classes of a class map."""


def test_it_is_a_whole_artifact_of_at_most_8_mb() -> None:
    artifact = read_artifact(FOLDER, system="changevg")
    files = {path.relative_to(FOLDER).as_posix(): path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert files.keys() == {"config.json", *artifact.files}
    assert {"README.md", "scores.json", "calibration.json", "familiarity.safetensors"} <= files.keys()
    assert sum(files.values()) <= 8e6
    assert artifact.trained_on is not None
    assert artifact.trained_on.startswith("rendered satellite images")


def test_nine_of_ten_rendered_pairs_are_right() -> None:
    """What it is shipped for: whether anything changed, on the test pairs and on those of the check."""
    scores = stored_scores(FOLDER)
    (binary,) = [answer for answer in scores["notes"]["answers"] if answer["type"] == "binary"]
    assert binary["scores"]["Accuracy"] >= 0.9
    assert all(check["right"] / check["pairs"] >= 0.85 for check in scores["checks"])


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.slow)])
def test_its_stored_scores_come_out(which: int) -> None:
    """Of the first few pairs, and of all of the check; rendered anew here."""
    assert guide_differences(FOLDER, FOLDER, which) == []


def test_few_pairs_like_the_training_images_are_warned_of_and_nearly_all_real_ones() -> None:
    """As it was measured when the familiarity was fitted, on real pairs that are not in the repository."""
    calibration = Calibration.read(FOLDER)
    assert calibration is not None
    assert calibration.unfamiliar["test"].warned <= 0.05 * calibration.unfamiliar["test"].pairs
    for name in ("real_odd.csv", "real_even.csv"):
        assert calibration.unfamiliar[name].warned >= 0.9 * calibration.unfamiliar[name].pairs


def test_polygons_of_a_scene_lie_where_the_truth_is(tmp_path: Path) -> None:
    """Of 36 new rendered pairs side by side, as one GeoTIFF, in tiles of the size that it has learned."""
    job = RenderJob(out=str(tmp_path / "pairs"), render=render_settings(FOLDER, 36))
    run_local(*open_rendering(job), progress=False)
    rows = list(iter_rows(tmp_path / "pairs"))
    masks = [np.zeros((64, 64), np.uint8) if row["mask"] is None else class_map(row["mask"]) for row in rows]
    truth = side_by_side(masks)
    before, after = (
        write(tmp_path / f"{name}.tif", side_by_side([decode_image(row[name]) for row in rows]), grid=GRID)
        for name in ("before", "after")
    )
    settings = {"before": str(before), "after": str(after), "out": str(tmp_path / "out"), "tile": 64, "overlap": 0}
    caption_scene(load(SceneJob, None, {**settings, "artifact": SHIPPED_SATELLITE}), partial(run_local, progress=False))
    shapes = [
        (transform_geom("EPSG:4326", UTM, feature["geometry"]), NUMBERS[feature["properties"]["class"]])
        for feature in json.loads((tmp_path / "out/changes.geojson").read_text())["features"]
    ]
    drawn = rasterize(shapes, truth.shape, transform=GRID)
    for number in NUMBERS.values():
        assert ((drawn == number) & (truth == number)).sum() > 0.6 * ((drawn == number) | (truth == number)).sum()


def side_by_side(images: list[np.ndarray]) -> np.ndarray:
    """36 images of one size in six rows."""
    return np.concatenate([np.concatenate(images[start : start + 6], axis=1) for start in range(0, 36, 6)])


def test_other_weights_have_other_scores(tmp_path: Path) -> None:
    other = disturbed_copy(FOLDER, tmp_path / "other")
    assert guide_differences(FOLDER, other, 0) != []
    assert captioning_identity(other) != captioning_identity(FOLDER)


def test_photographs_get_a_warning_that_names_its_training_images() -> None:
    captioner = CaptionerLoader(SHIPPED_SATELLITE, DEFAULTS)()
    photographs = load_sample_images().images
    for described in captioner.describe(photographs, photographs[::-1]):
        assert described.familiar is False
        assert captioner.trained_on is not None
        assert captioner.trained_on in (described.warning or "")
