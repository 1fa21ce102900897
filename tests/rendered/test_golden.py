"""Scenes, captions and masks of every kind of rendered pairs are those of version 1 of the generators: their hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from idc.rendered.config import RenderConfig
from idc.rendered.draw import draw_scene
from idc.rendered.satellite.levir_sentences import levir_captions
from idc.rendered.satellite.satellite_pairs import RenderSatellitePairs, nameable_words
from idc.rendered.scene import ORDERED_PAIRS
from idc.rendered.sentences import captions_of_meta, change_captions
from tests.rendered.conftest import CLEVR, SEVERAL, WIDE
from tests.rendered.satellite.conftest import satellite_config


def single(config: RenderConfig, count: int) -> Iterator[Any]:
    for index in range(count):
        scene, rng = draw_scene(config, index)
        captions = change_captions(scene, 4, config.relation_share, rng)
        yield [scene.record(order) for order in ORDERED_PAIRS.values()], captions, [ids.tolist() for ids in scene.ids]


def several(config: RenderConfig, count: int) -> Iterator[Any]:
    for index in range(count):
        scene, rng = draw_scene(config, index)
        record = {**scene.record(), "viewpoint_iou": round(scene.viewpoint_iou(), 4)}
        yield (
            record,
            captions_of_meta(record, None, 4, 0.0, rng),
            [pixels.tolist() for pixels in scene.changed_pixels()],
        )


def satellite(config: RenderConfig, count: int) -> Iterator[Any]:
    stage = RenderSatellitePairs(config)
    for index in range(count):
        site, changes, mask = stage.site(index)
        words = nameable_words(site, changes, stage.visible_roads(site))
        yield changes, levir_captions(words, np.random.default_rng(index)), mask.tolist()


@pytest.mark.parametrize(
    ("drawn", "digest"),
    [
        (lambda: single(CLEVR, 10), "87d2805d6d850f0b"),
        (lambda: single(CLEVR.model_copy(update={"jitter": "extreme", "variation": WIDE}), 10), "4dac93c89b03428f"),
        (lambda: several(SEVERAL, 12), "f426a90582ad4455"),
        (lambda: satellite(satellite_config(), 24), "b17b69994debb026"),
    ],
    ids=["single", "varied", "several", "satellite"],
)
def test_what_is_drawn_is_what_version_1_drew(drawn: Any, digest: str) -> None:
    text = json.dumps(list(drawn()), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
