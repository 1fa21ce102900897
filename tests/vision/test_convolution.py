"""Winograd's convolutions beside the direct ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idc.vision.convolution import SMALLEST_SIDE, WinogradConv2d, use_winograd

needs_nnpack = pytest.mark.skipif(not torch.backends.nnpack.is_available(), reason="this processor has no NNPACK")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 1),
        nn.Conv2d(8, 8, 3),
        nn.Conv2d(8, 4, 3, padding=1, groups=4),
    )


@needs_nnpack
def test_only_plain_3x3_convolutions_are_replaced_and_weights_keep_their_names() -> None:
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert use_winograd(model) == 2
    assert [type(module) is WinogradConv2d for module in model] == [True, True, False, False, False, False]
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert use_winograd(model) == 0


@needs_nnpack
@pytest.mark.parametrize("batch", [1, 3])
def test_large_maps_are_convolved_alike_but_for_rounding(batch: int) -> None:
    direct, fast = network(), network()
    use_winograd(fast)
    image = torch.randn(batch, 3, 37, SMALLEST_SIDE)
    with torch.no_grad():
        for layers in (1, 6):
            right, found = direct[:layers](image), fast[:layers](image)
            assert float((right - found).abs().max()) < 2e-4 * float(right.std())
            assert not torch.equal(right, found)  # else the fast way was not taken
        stripes = image.contiguous(memory_format=torch.channels_last)
        assert torch.allclose(direct(image), fast(stripes), atol=1e-4)


@needs_nnpack
def test_small_maps_and_gradients_go_the_ordinary_way() -> None:
    model = network()
    use_winograd(model)
    fast = model[0]
    assert isinstance(fast, WinogradConv2d)
    weight, bias = fast.weight, fast.bias
    small, large = torch.randn(2, 3, SMALLEST_SIDE - 1, 40), torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        assert torch.equal(fast(small), F.conv2d(small, weight, bias, padding=1))
    out = fast(large)
    assert torch.equal(out, F.conv2d(large, weight, bias, padding=1))
    out.sum().backward()
    assert weight.grad is not None
