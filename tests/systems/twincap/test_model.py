"""TwinCap's network: shapes, parts, heat maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from idc.config import load
from idc.systems.twincap.config import ModelConfig, SupervisionConfig
from idc.systems.twincap.model import SIZES, Convolution, TwinNet, heat
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
@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 24), (64, 96)])
@pytest.mark.parametrize("parts", [{}, {"stem": "early"}, {"difference": False}, {"heads": 0.0, "dense": 0.0}])
def test_shapes_of_every_part_at_any_size(height: int, width: int, parts: dict[str, Any]) -> None:
    net = network(height=height, width=width, **parts)
    encoded = net(images(height, width))
    assert encoded.memory.shape == (2, height // 8 * width // 8 + 3, 32)
    assert encoded.features.shape == (2, 2, 16, height // 4, width // 4)
    if parts.get("dense") == 0.0:
        assert (net.kind, net.objects) == (None, None)
        return
    assert encoded.change.shape == net.object_maps(encoded.features).shape == (2, 2, height // 4, width // 4)
    drawn = net.change_map(encoded)
    assert drawn.shape == (2, height // 4, width // 4)
    assert bool(((drawn >= 0) & (drawn <= 1)).all())
    looks = net.object_looks(encoded.features, torch.rand(2, 2, 5, 3))
    assert [one.shape for one in looks] == [(2, 2, 5, size) for size in SIZES]


@torch.no_grad()
def test_the_twin_stem_reads_each_image_alone() -> None:
    net, pair = network(), images(32, 32)
    other = pair.clone()
    other[:, 1] = 0
    one, two = net(pair), net(other)
    assert torch.equal(one.features[:, 0], two.features[:, 0])
    assert not torch.allclose(one.memory, two.memory)
    swapped = net(pair.flip(1))
    assert torch.allclose(swapped.features[:, 1], one.features[:, 0], atol=1e-5)


@torch.no_grad()
def test_the_trunk_reads_both_images_and_their_difference_and_looks_where_it_points() -> None:
    """A look is the mean of an image's own features, by the softmax of the map of that image."""
    net, read = network(), list[torch.Tensor]()
    net.merge.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    encoded = net(images(32, 32))
    before, after = encoded.features.unbind(1)
    assert torch.equal(read[0], torch.cat([before, after, after - before], dim=1))
    channels = before.shape[1]
    for pair in range(2):
        for image in range(2):
            weights = encoded.change[pair, image].exp()
            look = (weights / weights.sum() * encoded.features[pair, image]).sum(dim=(1, 2))
            start = encoded.pooled.shape[1] - (2 - image) * channels
            torch.testing.assert_close(encoded.pooled[pair, start : start + channels], look, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_an_objects_look_is_read_at_its_place() -> None:
    """Features that differ in one cell change the logits of the object there and of no other."""
    net = network()
    features = torch.zeros(1, 2, 16, 8, 8)
    places = torch.tensor([[[[0.30, 0.70, 0.1], [0.9, 0.1, 0.1]]] * 2])
    plain = net.object_looks(features, places)
    features[0, 0, :, 5, 2] = 1.0  # row 0.70 * 8, column 0.30 * 8
    marked = net.object_looks(features, places)
    for one, two in zip(plain, marked, strict=True):
        differs = (one != two).any(dim=-1)
        assert differs.tolist() == [[[True, False], [False, False]]]


def test_a_heat_map_is_one_at_the_centre_and_one_half_at_the_radius() -> None:
    places = torch.tensor([[[0.5, 0.5, 0.25], [0.1, 0.1, 0.25]]])
    drawn = heat(places, torch.tensor([[0, -100]]), 41, 41)[0]
    assert drawn[20, 20] == pytest.approx(1)
    assert drawn[20, 10] == pytest.approx(0.5, abs=0.02)
    assert drawn[10, 20] == pytest.approx(0.5, abs=0.02)
    assert drawn[4, 4] < 0.05, "an object without a label is not there"
    wide = heat(torch.tensor([[[0.5, 0.5, 0.1]]]), torch.tensor([[0]]), 20, 60)[0]  # round in pixels, not in shares
    assert wide[10, 36] == pytest.approx(float(wide[16, 30]), abs=0.05)
    assert heat(torch.zeros(2, 0, 3), torch.zeros(2, 0), 4, 4).tolist() == torch.zeros(2, 4, 4).tolist()


def test_the_map_of_one_pair_is_convolved_as_that_of_several() -> None:
    """To the bit in inference; with gradients as ``nn.Conv2d``."""
    torch.manual_seed(0)
    layer = Convolution(192, 192, 3, 1, 1, bias=False).to(memory_format=torch.channels_last)
    maps = torch.randn(2, 192, 8, 12).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        assert torch.equal(layer(maps[:1]), layer(maps)[:1])
        assert torch.allclose(layer(maps[:1]), nn.Conv2d.forward(layer, maps[:1]), atol=1e-5)
    alone = maps[:1].clone().requires_grad_()
    layer(alone).sum().backward()
    assert alone.grad is not None
