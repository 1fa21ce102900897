"""TwinCap as a captioner: candidates, given captions, samples, change maps, attributes, evidence, calibration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from idc.captioning.calibration_job import CalibrateJob, calibrate
from idc.captioning.pair import PairJob, caption_pair
from idc.config import load
from idc.data.images import encode_png
from idc.data.schema import CHANGE_TYPES
from idc.rendered.captions import ATTRIBUTES
from idc.systems import is_captioner, load_captioner
from idc.systems.twincap.captioner import CHANGE_HEAT, CHANGE_ODDS, TwinCaptioner
from tests.systems.procap.world import Images, World
from tests.systems.twincap.tiny import start, tiny_job


@pytest.fixture(scope="module")
def artifact(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twincap")
    start(tiny_job(world.pairs, {"train.steps": 40, "beams": 3}), folder)
    return folder / "artifact"


@pytest.fixture(scope="module")
def captioner(artifact: Path) -> TwinCaptioner:
    return TwinCaptioner(artifact)


def test_the_artifact_is_a_captioner(artifact: Path, captioner: TwinCaptioner, images: Images) -> None:
    assert is_captioner(str(artifact))
    described = captioner.describe(*images)
    assert load_captioner(str(artifact))(*images) == [one.best.caption for one in described]
    assert captioner.capabilities == {"map", "score", "sample"}
    assert all(one.change_map is None for one in described)
    maps = np.stack([one.change_map for one in captioner.describe(*images, change_map=True)])  # type: ignore[misc]
    assert (maps.shape, maps.dtype) == ((6, 8, 8), np.float32)
    assert 0 <= maps.min() < maps.max() <= 1


def test_attributes_are_those_of_the_heads_and_fit_the_type(captioner: TwinCaptioner, images: Images) -> None:
    with torch.no_grad():
        encoded = captioner._encode(*images)
        assert captioner.net.kind is not None
        kinds = captioner.net.kind(encoded.pooled).softmax(dim=1)
    for row, one in zip(kinds, captioner.describe(*images), strict=True):
        found = one.attributes
        assert found is not None
        assert found["type"]["value"] == CHANGE_TYPES[int(row.argmax())]
        assert found["type"]["probability"] == pytest.approx(float(row.max()), abs=1e-5)
        assert (found["before"] is None) == (found["type"]["value"] in ("add", "none"))
        assert (found["after"] is None) == (found["type"]["value"] in ("drop", "none"))
        for side in (found["before"], found["after"]):
            assert side is None or side.keys() == set(ATTRIBUTES)
        none = CHANGE_TYPES.index("none")
        assert one.evidence[CHANGE_ODDS] == pytest.approx(float(((1 - row[none]) / row[none]).log()), abs=1e-3)
        assert one.evidence.keys() == {CHANGE_ODDS, CHANGE_HEAT}


def test_a_pairs_attributes_are_in_its_json(artifact: Path, images: Images, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.png" for name in ("before", "after")]
    for file, image in zip(files, (images[0][0], images[1][0]), strict=True):
        file.write_bytes(encode_png(image))
    job = PairJob(artifact=str(artifact), before=str(files[0]), after=str(files[1]))
    described = json.loads(json.dumps(caption_pair(job)))
    assert described["attributes"]["type"]["value"] in CHANGE_TYPES


def test_it_is_calibrated_by_its_evidence_at_any_speed(
    artifact: Path, world: World, images: Images, tmp_path: Path
) -> None:
    copy = str(shutil.copytree(artifact, tmp_path / "artifact"))
    job = load(CalibrateJob, None, {"artifact": copy, "pairs": world.pairs, "familiarity": False})
    assert {CHANGE_ODDS, CHANGE_HEAT} <= set(calibrate(job).inputs)
    for one in TwinCaptioner(copy, speed="bf16").describe(*images):
        assert one.changed is not None
        assert 0 < one.changed < 1
