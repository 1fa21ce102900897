"""Attention in the towers of the Qwen families against attention window by window."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from idc.vlm.base import load_model
from idc.vlm.config import BaseConfig
from idc.vlm.tower_attention import windows_at_once
from tests.vlm.models import tiny_folder


def naive(query: Tensor, key: Tensor, value: Tensor, ends: list[int]) -> Tensor:
    """softmax(q k' / sqrt(d)) v for each head and window; (1, H, L, D) to (1, L, H, D)."""
    out = torch.full_like(query, math.nan).transpose(1, 2)
    for head in range(query.shape[1]):
        for start, end in itertools.pairwise(ends):
            q, k, v = (part[0, head, start:end] for part in (query, key, value))
            out[0, start:end, head] = (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v
    return out


@pytest.mark.parametrize("ends", [[0, 4, 8, 12], [0, 12], [0, 5, 6, 11, 12], [0, 2, 6, 8, 9]])
def test_windows_at_once_are_windows_one_by_one(ends: list[int]) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(1, 3, ends[-1], 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mixed, _ = windows_at_once(nn.Module(), *parts, None, scaling=8**-0.5, cu_seq_lens_q=torch.tensor(ends))
    expected = naive(*parts, ends)
    torch.testing.assert_close(mixed, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((out * weights).sum(), parts) for out in (mixed, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_a_tower_gives_the_features_of_transformers_own_attention(kind: str) -> None:
    """Images of two sizes, with whole windows and parts of windows."""
    folder = tiny_folder(kind)
    towers = [
        load_model(folder, BaseConfig(source=str(folder), attention=attention)).model.visual
        for attention in ("sdpa", "eager")
    ]
    grids = torch.tensor([[1, 10, 6], [1, 4, 8]])
    patches = torch.randn(int(grids.prod(1).sum()), towers[0].patch_embed.proj.weight[0].numel())
    with torch.no_grad():
        here, there = (tower(patches, grid_thw=grids, return_dict=True).last_hidden_state for tower in towers)
    assert towers[0].config._attn_implementation != towers[1].config._attn_implementation == "eager"
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-5)
