"""The describe job with the oracle: a folder of pairs whose noise is recorded, the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idc.data.descriptions.config import DescribeJob
from idc.data.descriptions.describing import describe_pairs
from idc.data.descriptions.description_statistics import summarise_descriptions
from idc.data.descriptions.endpoint_describer import ask_endpoint
from idc.data.descriptions.oracle import describe_by_oracle
from idc.data.descriptions.template import parse_description
from idc.data.pipeline import TooManyRejects, run_local
from idc.data.rendered.config import RenderConfig
from idc.data.rendered.draw import draw_scene
from idc.data.rendered.scene import PAIRS
from idc.data.store import Manifest, iter_rows
from idc.schema import ChangePair
from tests.data.descriptions.small_pairs import write_pairs

SCENES = 8


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pairs with the scene graphs of rendered ones."""
    config = RenderConfig(num_scenes=SCENES, min_objects=3, max_objects=5, width=96, height=64, min_visible_pixels=5)
    records = [draw_scene(config, n)[0].record(order) for n in range(SCENES) for order in PAIRS.values()]
    changed: dict[str, Any] = {f"p{n:02}": {"meta": record} for n, record in enumerate(records)}
    return write_pairs(tmp_path_factory.mktemp("scenes") / "pairs", len(records), **changed)


def job(pairs: str, out: Path, **more: Any) -> DescribeJob:
    return DescribeJob(pairs=pairs, out=str(out), describer="oracle", chunk_size=6, **more)


def run_job(one: DescribeJob) -> Manifest:
    return describe_pairs(one, run_local, ask_endpoint)


def test_captions_and_noise_are_those_of_the_oracle(pairs: str, tmp_path: Path) -> None:
    one = job(pairs, tmp_path / "out", oracle={"noise": 0.5, "others": 1, "seed": 3})
    assert run_job(one).num_rows == 2 * SCENES
    wrong = 0
    for row, given in zip(iter_rows(one.out), iter_rows(pairs), strict=True):
        pair, meta = ChangePair.from_row(row), json.loads(given["meta"])
        found, noise = describe_by_oracle(pair.pair_id, meta, one.oracle)
        assert pair.captions == (found.sentence(),)
        assert pair.meta.pop("description_noise") == [one._asdict() for one in noise]
        assert pair.meta == meta
        assert pair.caption_origins[0] is not None
        assert pair.caption_origins[0].source == "oracle of rendered scenes, noise 0.5 (seed 3)"
        assert parse_description(pair.captions[0]) == found
        wrong += len(noise)
    summary = summarise_descriptions(one)
    assert summary.noise is not None
    assert sum(summary.noise.kinds.values()) == wrong > 0
    assert 0 < summary.noise.wrong_words < summary.noise.words
    assert summary.asked is None
    assert summary.repetition["rendered"].total == 2 * SCENES


def test_a_pair_without_a_scene_is_a_reject(tmp_path: Path) -> None:
    one = job(write_pairs(tmp_path / "pairs", 3), tmp_path / "out")
    with pytest.raises(TooManyRejects, match="3 x no scene"):
        run_job(one)
