"""TwinCap's network: shapes, parts, heat maps; its samples: what is known of a pair, mirroring, augmentation."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from idc.config import load
from idc.data.augmentation import mirror_caption
from idc.data.images import decode_image
from idc.data.schema import CHANGE_TYPES
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.systems.twincap.config import DataConfig, ModelConfig, SupervisionConfig
from idc.systems.twincap.data import PairSamples, collate
from idc.systems.twincap.model import TwinNet, heat, near_objects, peak_cells
from idc.systems.twincap.truth import PARTS, UNKNOWN, pair_truth
from tests.systems.procap.world import World
from tests.systems.twincap.tiny import MODEL

WORDS = 17


def network(**settings: Any) -> TwinNet:
    supervision = {name: settings.pop(name) for name in ("heads", "dense") if name in settings}
    torch.manual_seed(0)
    config = load(ModelConfig, None, {**MODEL, **settings})
    return TwinNet(config, SupervisionConfig(**supervision), WORDS).eval()


def images(height: int, width: int, pairs: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (pairs, 2, height, width, 3), generator=torch.Generator().manual_seed(1)).to(
        torch.uint8
    )


@torch.no_grad()
def test_the_trunk_reads_both_images_and_their_difference_and_looks_where_it_points() -> None:
    """The stem reads each image alone. A look is the mean of an image's own features, by the softmax of its map."""
    net, read, pair = network(), list[torch.Tensor](), images(32, 32)
    net.merge.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    encoded, swapped = net(pair), net(pair.flip(1))
    assert torch.allclose(swapped.features.flip(1), encoded.features, atol=1e-5)
    assert not torch.allclose(swapped.memory, encoded.memory)
    before, after = encoded.features.unbind(1)
    assert torch.equal(read[0], torch.cat([before, after, after - before], dim=1))
    channels = before.shape[1]
    for number, image in itertools.product(range(2), range(2)):
        weights = encoded.change[number, image].exp()
        look = (weights / weights.sum() * encoded.features[number, image]).sum(dim=(1, 2))
        first = encoded.pooled.shape[1] - (2 - image) * channels
        torch.testing.assert_close(encoded.pooled[number, first : first + channels], look, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_an_objects_look_is_read_at_its_place() -> None:
    net = network()
    features = torch.zeros(1, 2, 16, 8, 8)
    places = torch.tensor([[[[0.30, 0.70, 0.1], [0.9, 0.1, 0.1]]] * 2])
    plain = net.object_looks(features, places)
    features[0, 0, :, 5, 2] = 1.0  # row 0.70 * 8, column 0.30 * 8
    marked = net.object_looks(features, places)
    for one, two in zip(plain, marked, strict=True):
        differs = (one != two).any(dim=-1)
        assert differs.tolist() == [[[True, False], [False, False]]]


def test_peaks_are_the_highest_cells_of_their_neighbourhoods() -> None:
    """Changed objects before those that stay, whatever image has them; once the peaks are used up, the highest others.
    A naive second writing, cell by cell."""
    draws = torch.Generator().manual_seed(0)
    objects, change = (4 * torch.randn(3, 2, 6, 9, generator=draws) - 3 for _ in range(2))
    cells = peak_cells(objects, change, 40)
    for pair in range(3):
        heights = {
            (row, column): max(float(objects[pair, image, row, column].sigmoid()) for image in (0, 1))
            + max(float(change[pair, image, row, column].sigmoid()) for image in (0, 1))
            for row in range(6)
            for column in range(9)
        }
        peaks = {
            (row, column)
            for (row, column), height in heights.items()
            if all(
                height >= heights.get((row + down, column + right), 0.0) for down in (-1, 0, 1) for right in (-1, 0, 1)
            )
        }
        order = sorted(heights, key=lambda cell: (cell not in peaks, -heights[cell]))
        assert [divmod(int(cell), 9) for cell in cells[pair]] == order[:40]
        assert 4 < len(peaks) < 40


def test_the_object_near_a_cell_is_read_in_each_image() -> None:
    """Features are means over the nine cells around, by the exponential of the same image's heat; cells beyond the
    border have no part."""
    draws = torch.Generator().manual_seed(0)
    features, objects = torch.randn(2, 2, 3, 5, 4, generator=draws), torch.randn(2, 2, 5, 4, generator=draws)
    near = near_objects(features, objects)
    for pair, image, row, column in itertools.product(range(2), range(2), range(5), range(4)):
        rows, columns = (slice(max(0, at - 1), at + 2) for at in (row, column))
        weights = objects[pair, image, rows, columns].exp()
        mean = (features[pair, image, :, rows, columns] * weights).sum((1, 2)) / weights.sum()
        torch.testing.assert_close(near[pair, image, :, row, column], mean, rtol=1e-4, atol=1e-5)
    objects[:, :, 2, 2] += 50.0  # the others are then too cold to be counted
    near = near_objects(features, objects)
    torch.testing.assert_close(near[..., 1:4, 1:4], features[..., 2:3, 2:3].expand(-1, -1, -1, 3, 3))


@torch.no_grad()
def test_a_peak_is_read_in_both_images_and_in_the_trunk_at_its_cell() -> None:
    net, trunk = network(peaks=3), list[torch.Tensor]()
    net.trunk.register_forward_hook(lambda module, inputs, output: trunk.append(output))
    read = list[torch.Tensor]()
    net.peaks.read.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    encoded = net(images(32, 32))
    maps = net.object_maps(encoded.features)
    near = near_objects(encoded.features, maps)
    for pair, peak in itertools.product(range(2), range(3)):
        row, column = divmod(int(encoded.cells[pair, peak]), 8)
        parts = [
            near[pair, 0, :, row, column],
            near[pair, 1, :, row, column],
            maps[pair, :, row, column],
            encoded.change[pair, :, row, column],
            trunk[0][pair, :, row // 2, column // 2],
        ]
        assert torch.equal(read[0][pair, peak], torch.cat(parts))


def test_a_heat_map_is_round_in_pixels_and_nothing_without_objects() -> None:
    """Its values are in the naive losses of ``test_task.py``, of square maps."""
    wide = heat(torch.tensor([[[0.5, 0.5, 0.1]]]), torch.tensor([[0]]), 20, 60)[0]
    assert wide[10, 36] == pytest.approx(float(wide[16, 30]), abs=0.05)
    assert heat(torch.zeros(2, 0, 3), torch.zeros(2, 0), 4, 4).tolist() == torch.zeros(2, 4, 4).tolist()


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
            (centre,) = truth.places[image][truth.differs[image]] * [mask.shape[1], mask.shape[0], mask.shape[1]]
            assert np.hypot(x.mean() + 0.5 - centre[0], y.mean() + 0.5 - centre[1]) < 0.6 * centre[2] + 1
            assert 0.4 < np.sqrt(len(x) / np.pi) / centre[2] < 1.5
            checked += 1
    assert checked > 10


def test_the_scene_and_the_captions_of_a_pair_name_the_same_change(world: World) -> None:
    count = 0
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
        stated = said.changed != UNKNOWN
        assert np.array_equal(said.changed[stated], scene.changed[stated])
        count += stated.sum()
    assert count > 40
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
        flipped, other = data.get(index, epoch), plain.get(index, epoch)
        mirrored = not np.array_equal(flipped["images"], other["images"])
        kinds.add(mirrored)
        assert np.array_equal(flipped["images"], other["images"][:, :, ::-1] if mirrored else other["images"])
        for position, was in zip(flipped["places"], other["places"], strict=True):
            assert position == pytest.approx(was * (-1, 1, 1) + (1, 0, 0) if mirrored else was)
        sides = {"left": "right", "right": "left"} if mirrored else {}
        said, words = (data.vocabulary.decode(sample["ids"][0][1:]).split() for sample in (flipped, other))
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
    single, three = (samples(world, data={"augment": False, "captions": number}) for number in (1, 3))
    starts = set()
    for index, epoch in itertools.product(range(len(three)), range(4)):
        sample = three.get(index, epoch)
        assert sample["ids"][:1] == single.get(index, epoch)["ids"]
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
    rows = [data.get(index, 0) for index in range(len(data))]
    batch = collate(rows)
    most = max(len(positions) for sample in rows for positions in sample["places"])
    assert batch["places"].shape == (len(rows), 2, most, 3)
    for index, sample in enumerate(rows):
        for image in range(2):
            labels = batch["labels"][index, image]
            assert (labels >= 0).all(dim=1).sum() == len(sample["places"][image])
            for name in ("differs", "parts"):
                padded, values = batch[name][index, image], getattr(sample["truth"], name)[image]
                assert padded.tolist() == [*values, *[False if name == "differs" else UNKNOWN] * (most - len(values))]
    assert batch["pair_id"] == [row["pair_id"] for row in iter_rows(world.pairs, ["pair_id"], "val")]
    assert all(scene is not None for scene in batch["scene"])
