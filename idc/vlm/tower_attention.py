"""Attention in the towers of the Qwen families, all windows (or images) of one length in one product.

transformers' sdpa takes window by window: some ten thousand calls for a step of 16 images, more seconds on a GPU than
all matrix products. Only an implementation with "flash" in its name is given the whole sequence.

Shapes: H heads, L patches of all images, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

_NAME = "flash_windows_at_once"


def attend_windows_at_once(model: Any) -> None:
    """Let the tower of a Qwen model compute attention with :func:`windows_at_once`."""
    AttentionInterface.register(_NAME, windows_at_once)
    model.config.vision_config._attn_implementation = _NAME


def windows_at_once(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention within each window; (1, H, L, D) each to (1, L, H, D).

    Args:
        cu_seq_lens_q: ends of the windows, from 0.
    """
    starts, lengths = cu_seq_lens_q[:-1], cu_seq_lens_q.diff()
    parts = torch.stack([query[0], key[0], value[0]]).transpose(1, 2)  # (3, L, H, D)
    mixed = torch.empty_like(parts[0])
    for length in lengths.unique().tolist():
        at = (starts[lengths == length, None] + torch.arange(length, device=starts.device)).flatten()
        q, k, v = parts[:, at].unflatten(1, (-1, length)).transpose(2, 3)
        out = F.scaled_dot_product_attention(q, k, v, scale=scaling, dropout_p=dropout)
        mixed = mixed.index_copy(0, at, out.transpose(1, 2).flatten(0, 1))
    return mixed[None], None
