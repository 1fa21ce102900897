"""Packed layers compute what the layers that they replace compute, and show their weights under the same names."""

from __future__ import annotations

import platform

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idc.nn import packed
from idc.nn.packed import PackedLinear, packing_works

needs_packing = pytest.mark.skipif(not packing_works(), reason="this torch has no packed layers for this processor")


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_packed_linear_layer(bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 40, bias=bias)
    made = PackedLinear(layer, rows=6)
    for x in (torch.randn(2, 3, 24), torch.randn(50, 24), torch.randn(1, 24)):
        assert torch.allclose(made(x), layer(x), atol=1e-5)
        assert torch.allclose(made(x, "swish"), F.silu(layer(x)), atol=1e-5)
        to = torch.randn(*x.shape[:-1], 40)
        assert torch.allclose(made.added(x, to), layer(x) + to, atol=1e-5)
    state = made.state_dict()
    assert list(state) == list(layer.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in layer.state_dict().items())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of other processors it is not promised")
def test_this_torch_has_the_private_operators() -> None:
    assert packing_works()


def test_without_the_private_operators_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(packed, "PackedLinear", missing)
    assert not packing_works.__wrapped__()


@torch.no_grad()
def test_trying_them_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    packing_works.__wrapped__()
    assert torch.equal(torch.randn(4), expected)
