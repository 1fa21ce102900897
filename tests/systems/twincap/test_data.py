"""TwinCap's samples: what is known of a pair, where its objects are, what mirroring and augmentation do to both."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from idc.config import load
from idc.data.augmentation import mirror_caption
from idc.data.images import decode_image
from idc.data.schema import CHANGE_TYPES
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.systems.twincap.config import DataConfig, ModelConfig
from idc.systems.twincap.data import PairSamples, collate
from idc.systems.twincap.truth import PARTS, UNKNOWN, pair_truth
from tests.systems.procap.world import World
from tests.systems.twincap.tiny import MODEL


def samples(world: World, split: str = "train", data: dict[str, Any] | None = None, **model: Any) -> PairSamples:
    captions = [text for row in iter_rows(world.pairs, ["captions"]) for text in row["captions"]]
    config = load(ModelConfig, None, {**MODEL, **model})
    settings = None if data is None else load(DataConfig, None, data)
    return PairSamples(world.pairs, split, config, Vocabulary.build([*captions, "left right"]), 0, settings)


def test_objects_are_where_their_pixels_are(world: World) -> None:
    checked = 0
    for row in iter_rows(world.pairs):
        mask = decode_image(row["mask"])[..., 0]
        truth = pair_truth(row["change_type"], row["captions"], json.loads(row["meta"]), mask.shape[:2])
        assert truth.has_scene
        for image, level in enumerate((85, 170)):
            if not truth.differs[image].any():
                continue
            y, x = np.nonzero((mask == level) | (mask == 255))
            (place,) = truth.places[image][truth.differs[image]] * [mask.shape[1], mask.shape[0], mask.shape[1]]
            assert np.hypot(x.mean() + 0.5 - place[0], y.mean() + 0.5 - place[1]) < 0.6 * place[2] + 1
            assert 0.4 < np.sqrt(len(x) / np.pi) / place[2] < 1.5
            checked += 1
    assert checked > 10


def test_the_scene_and_the_captions_of_a_pair_name_the_same_change(world: World) -> None:
    known = 0
    for row in iter_rows(world.pairs):
        meta = json.loads(row["meta"])
        scene = pair_truth(row["change_type"], row["captions"], meta, (32, 32))
        said = pair_truth(None, row["captions"], {}, (32, 32))
        assert not said.has_scene
        assert said.kind == scene.kind == CHANGE_TYPES.index(row["change_type"])
        for image, (things, others) in enumerate(((meta["before"], meta["after"]), (meta["after"], meta["before"]))):
            assert scene.differs[image].tolist() == [thing not in others for thing in things]
            parts = [row["change_type"] if thing not in others else "none" for thing in things]
            assert [PARTS[label] for label in scene.parts[image]] == parts
        given = said.changed != UNKNOWN
        assert np.array_equal(said.changed[given], scene.changed[given])
        known += given.sum()
    assert known > 40
    assert pair_truth(None, ["a person waves"], {}, (8, 8)).kind == UNKNOWN


def test_a_sample_is_a_function_of_its_index_and_epoch(world: World) -> None:
    data = samples(world, data={})
    first, again, later = data.get(2, 0), samples(world, data={}).get(2, 0), data.get(2, 1)
    assert np.array_equal(first["images"], again["images"])
    assert first["ids"] == again["ids"]
    assert not np.array_equal(first["images"], later["images"])
    uncached = samples(world, data={"cache_mb": 0})
    assert np.array_equal(first["images"], uncached.get(2, 0)["images"])
    assert np.array_equal(first["images"], data.get(2, 0)["images"]), "the cached images are not changed in place"


def test_mirrored_samples_have_mirrored_places_and_words(world: World) -> None:
    data, plain = samples(world, data={"augment": False}), samples(world, data={"augment": False, "mirror": False})
    kinds, exchanged = set(), 0
    for index, epoch in itertools.product(range(len(data)), range(6)):
        one, other = data.get(index, epoch), plain.get(index, epoch)
        mirrored = not np.array_equal(one["images"], other["images"])
        kinds.add(mirrored)
        assert np.array_equal(one["images"], other["images"][:, :, ::-1] if mirrored else other["images"])
        for place, was in zip(one["places"], other["places"], strict=True):
            assert place == pytest.approx(was * (-1, 1, 1) + (1, 0, 0) if mirrored else was)
        sides = {"left": "right", "right": "left"} if mirrored else {}
        said, words = (data.vocabulary.decode(sample["ids"][0][1:]).split() for sample in (one, other))
        assert said == [sides.get(word, word) for word in words]
        exchanged += said != words
    assert kinds == {True, False}
    assert exchanged > 0


def test_augmentation_begins_at_its_epoch_moves_places_and_leaves_a_share_clean(world: World) -> None:
    data, plain = samples(world, data={"mirror": False}), samples(world, data={"mirror": False, "augment": False})
    data.augment_from = 3.0
    assert np.array_equal(data.get(0, 2)["images"], plain.get(0, 2)["images"])
    moved, unmoved = data.get(0, 3), plain.get(0, 3)
    assert not np.array_equal(moved["images"], unmoved["images"])
    assert not np.allclose(moved["places"][0], unmoved["places"][0])
    assert ((moved["places"][0][:, :2] > 0) & (moved["places"][0][:, :2] < 1)).all()
    half = samples(world, data={"mirror": False, "augment_share": 0.5})
    draws = list(itertools.product(range(len(half)), range(6)))
    clean = sum(np.array_equal(plain.get(*at)["images"], half.get(*at)["images"]) for at in draws)
    assert 0.3 < clean / len(draws) < 0.7


def test_a_pair_has_several_captions_in_a_sample(world: World) -> None:
    """In the order of its references from a drawn one on, without and with mirroring; a batch has them pair by pair."""
    one, three = (samples(world, data={"augment": False, "captions": number}) for number in (1, 3))
    starts = set()
    for index, epoch in itertools.product(range(len(three)), range(4)):
        sample = three.get(index, epoch)
        assert sample["ids"][:1] == one.get(index, epoch)["ids"]
        texts, plain = three.captions[three.order[index]], samples(world).get(index, epoch)
        mirrored = not np.array_equal(sample["images"], plain["images"])
        wordings = [three.vocabulary.encode(mirror_caption(text) if mirrored else text, three.length) for text in texts]
        start = wordings.index(sample["ids"][0])
        assert sample["ids"] == [wordings[(start + number) % len(wordings)] for number in range(3)]
        starts.add(start)
    assert len(starts) > 1
    batch = collate([three.get(0, 0), three.get(1, 0)])
    every = [*three.get(0, 0)["ids"], *three.get(1, 0)["ids"]]
    rows = zip(batch["ids"].tolist(), batch["targets"].tolist(), every, strict=True)
    assert [[*row[:1], *goal][: len(ids)] for row, goal, ids in rows] == every


def test_a_batch_is_padded(world: World) -> None:
    data = samples(world, "val")
    made = [data.get(index, 0) for index in range(len(data))]
    batch = collate(made)
    most = max(len(one) for sample in made for one in sample["places"])
    assert batch["places"].shape == (len(made), 2, most, 3)
    for index, sample in enumerate(made):
        for image in range(2):
            labels = batch["labels"][index, image]
            assert (labels >= 0).all(dim=1).sum() == len(sample["places"][image])
            for name in ("differs", "parts"):
                padded, values = batch[name][index, image], getattr(sample["truth"], name)[image]
                assert padded.tolist() == [*values, *[False if name == "differs" else UNKNOWN] * (most - len(values))]
    assert batch["pair_id"] == [row["pair_id"] for row in iter_rows(world.pairs, ["pair_id"], "val")]
    assert all(scene is not None for scene in batch["scene"])
