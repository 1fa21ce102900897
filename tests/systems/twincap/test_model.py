"""TwinCap's network: shapes, parts, heat maps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from idc.config import load
from idc.systems.twincap.config import ModelConfig, SupervisionConfig
from idc.systems.twincap.model import TwinNet, heat, near_objects, peak_cells
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
    assert net.peaks is not None
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
