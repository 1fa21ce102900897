"""All ordered pairs of a scene's images: each true for its own order, nothing else than without them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from idc.data.images import decode_image
from idc.data.schema import NO_CHANGE, ChangePair
from idc.metrics.scene_scores import hallucination, truth_of
from idc.rendered.draw import draw_scene, split_of
from idc.rendered.render import MASK_AFTER, MASK_BEFORE, RenderScenes
from idc.rendered.scene import ORDERED_PAIRS
from tests.rendered.conftest import SMALL

ORDERED = SMALL.model_copy(update={"ordered_pairs": True, "val_share": 0.2, "test_share": 0.2})
TRAIN = [index for index in range(10) if split_of(ORDERED, index) == "train"]


@pytest.fixture(scope="module")
def rows() -> dict[int, dict[str, ChangePair]]:
    """Scene -> end of the pair id -> pair."""
    stage = RenderScenes(ORDERED)
    return {index: {pair.pair_id.split("-")[2]: pair for pair in stage.pairs(index)} for index in range(10)}


def test_a_training_scene_gives_every_order_and_others_their_two(rows) -> None:
    assert 4 <= len(TRAIN) < 10
    plain = RenderScenes(ORDERED.model_copy(update={"ordered_pairs": False}))
    for index, pairs in rows.items():
        if index not in TRAIN:
            assert [p.to_row() for p in plain.pairs(index)] == [p.to_row() for p in pairs.values()]
        assert list(pairs) == (list(ORDERED_PAIRS) if index in TRAIN else ["s", "n"])
        assert {pair.split for pair in pairs.values()} == {split_of(ORDERED, index)}
        changed = sum(pair.change_type != NO_CHANGE for pair in pairs.values())
        assert changed == len(pairs) / 2
    assert len(set(ORDERED_PAIRS.values())) == 8
    assert {(a, b) for a in range(3) for b in range(3) if a != b} < set(ORDERED_PAIRS.values())


def test_pairs_are_the_scenes_images_in_their_order(rows) -> None:
    for index in TRAIN:
        pairs = rows[index]
        images = (pairs["s"].before, pairs["s"].after, pairs["n"].after)
        assert len(set(images)) == 3
        for name, (before, after) in ORDERED_PAIRS.items():
            assert (pairs[name].before, pairs[name].after) == (images[before], images[after])
        forth, back = pairs["s"].meta, pairs["sd"].meta
        assert (back["before"], back["after"], back["views"]) == (forth["after"], forth["before"], forth["views"][::-1])
        assert back["viewpoint_iou"] == forth["viewpoint_iou"] < 1
        assert pairs["dd"].meta["viewpoint_iou"] == pairs["ss"].meta["viewpoint_iou"] == 1
        assert pairs["ss"].meta["before"] == pairs["ss"].meta["after"] == forth["after"]


def test_every_caption_is_true(rows) -> None:
    pairs = [pair for index in TRAIN for pair in rows[index].values()]
    truths = {p.pair_id: truth_of(p.change_type, p.meta["before"], p.meta["after"]) for p in pairs}
    found = hallucination((caption, truths[p.pair_id]) for p in pairs for caption in p.captions)
    for rate in (found.change_type, found.object, found.attribute):
        assert rate.right == rate.total > 0
    assert found.invented_change.right == found.missed_change.right == 0
    assert all(len(set(p.captions)) == ORDERED.captions_per_pair for p in pairs)
    assert len({p.captions for p in pairs}) == len(pairs), "each order has its own draws"


def test_masks_are_those_of_the_order(rows) -> None:
    kinds: Counter[str] = Counter()
    for index in TRAIN:
        scene, _ = draw_scene(ORDERED, index)
        for name, (before, after) in ORDERED_PAIRS.items():
            pair = rows[index][name]
            mask = decode_image(pair.mask)[..., 0]
            if pair.change_type == NO_CHANGE:
                assert not mask.any()
                continue
            changed = {}
            for image, key, other in ((before, "before", "after"), (after, "after", "before")):
                graph = [t for t in pair.meta[key] if t not in pair.meta[other]]
                at = pair.meta[key].index(graph[0]) if graph else -2
                changed[key] = scene.ids[image] == at
            assert np.array_equal(mask & MASK_BEFORE > 0, changed["before"])
            assert np.array_equal(mask & MASK_AFTER > 0, changed["after"])
            kinds[pair.change_type] += 1
    assert set(kinds) == {"color", "material", "add", "drop", "move"}
