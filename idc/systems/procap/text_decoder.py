"""ProCap's text decoder of stage 2: caption words from the latent procedure.

Unusual here: post-norm layers whose attention has no biases; input and output embedding are one tensor; the memory may
be normalised per position over the batch (:class:`PositionNorm`); quirks of the official code are config switches.
Decoding caches keys and values (:class:`idc.decoding.CachedDecoder`): the procedure's once per pair, not per beam.

Shapes:
    B pairs   R rows = pairs * beams   S = F*P positions of the procedure   D encoder width   E decoder width
    T caption length   V words   H heads
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.nn.word_decoder import CachingDecoder
from idc.systems.procap.config import DecoderConfig


class OfficialNorm(nn.Module):
    """The official decoder's norm: unbiased standard deviation, epsilon added to it rather than to the variance."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return self.weight * centred / (x.std(dim=-1, keepdim=True) + 1e-6) + self.bias


class PositionNorm(nn.Module):
    """Batch norm over each position and channel of (B, S, E)."""

    def __init__(self, positions: int, width: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(positions * width)

    def forward(self, x_BSE: Tensor) -> Tensor:
        return self.norm(x_BSE.flatten(1)).view_as(x_BSE)


class DecoderAttention(nn.Module):
    """Attention without biases, whose keys and values can be cached."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.heads = config.heads
        self.scale = (config.width if config.scale_by_width else config.width // config.heads) ** -0.5
        self.q, self.k, self.v, self.out = (nn.Linear(config.width, config.width, bias=False) for _ in range(4))

    def keys_values(self, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, E/H)."""
        return self._split(self.k(x_BSE)), self._split(self.v(x_BSE))

    def queries(self, x_BTE: Tensor) -> Tensor:
        """Queries (B, H, T, E/H)."""
        return self._split(self.q(x_BTE))

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        mixed = F.scaled_dot_product_attention(query, keys, values, is_causal=causal, scale=self.scale)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def weights(self, x_BTE: Tensor, keys: Tensor) -> Tensor:
        """Attention weights of each position on each key, (B, T, S), mean over the heads; :meth:`forward` never forms
        them."""
        scores = self.queries(x_BTE) @ keys.transpose(2, 3) * self.scale
        return scores.float().softmax(dim=-1).mean(dim=1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Post-norm: self-attention, cross-attention to the procedure, feed-forward."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        norm = OfficialNorm if config.official_norm else nn.LayerNorm
        self.self_attention, self.norm_self = DecoderAttention(config), norm(config.width)
        self.cross_attention, self.norm_cross = DecoderAttention(config), norm(config.width)
        self.widen, self.narrow = (
            nn.Linear(config.width, config.feedforward),
            nn.Linear(config.feedforward, config.width),
        )
        self.norm_feedforward = norm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def queries_keys_values(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`idc.nn.word_decoder.WordDecoderLayer`."""
        # Keys and values first: the order of products is that in which the gradients of x are summed.
        key, value = self.self_attention.keys_values(x_BTE)
        return self.self_attention.queries(x_BTE), key, value

    def memory_keys_values(self, memory_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`idc.nn.word_decoder.WordDecoderLayer`."""
        return self.cross_attention.keys_values(memory_BSE)

    def mixed(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """See :class:`idc.nn.word_decoder.WordDecoderLayer`."""
        return self.norm_self(x + self.dropout(self.self_attention(query, key, value, causal=causal)))

    def rest(self, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`idc.nn.word_decoder.WordDecoderLayer`."""
        attended = self.cross_attention(self.cross_attention.queries(x), key, value, causal=False)
        x = self.norm_cross(x + self.dropout(attended))
        return self.norm_feedforward(x + self.dropout(self.narrow(F.relu(self.widen(x)))))


class TextDecoder(CachingDecoder):
    """Predicts caption words from the latent procedure; positions are sinusoids.

    Args:
        config: sizes.
        encoder_width: D of the procedure.
        vocabulary_size: V.
        positions: S of the procedure, F*P; only `memory_norm: batch` needs it.
    """

    def __init__(self, config: DecoderConfig, encoder_width: int, vocabulary_size: int, positions: int = 0):
        super().__init__()
        self.config = config
        width = config.width
        norm = nn.LayerNorm(width) if config.memory_norm == "layer" else PositionNorm(positions, width)
        self.project = nn.Sequential(
            nn.Linear(encoder_width, encoder_width), nn.ReLU(), nn.Linear(encoder_width, width), norm
        )
        self.words = nn.Parameter(torch.randn(vocabulary_size, width) * width**-0.5)
        self.word_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)

    def attended(self, ids_BT: Tensor, procedure_BSD: Tensor) -> Tensor:
        """Cross-attention of the position that predicts the word after each of ``ids_BT`` on each position of the
        procedure: (B, T, S), mean over layers and heads, sums to 1 over S."""
        memory = self._memory(procedure_BSD)
        x = self._embed(ids_BT, self._positions(ids_BT.shape[1], memory.device), memory.dtype)
        looks = []
        for layer in cast(Iterable[DecoderLayer], self.layers):
            x = layer.mixed(x, *layer.queries_keys_values(x), causal=True)
            keys, values = layer.memory_keys_values(memory)
            looks.append(layer.cross_attention.weights(x, keys))
            x = layer.rest(x, keys, values)
        return torch.stack(looks).mean(dim=0)

    def _memory(self, memory_BSD: Tensor) -> Tensor:
        projected: Tensor = self.project(memory_BSD)
        return projected

    def _positions(self, length: int, device: torch.device) -> Tensor:
        """Sinusoids."""
        width = self.config.width
        rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
        angles = torch.arange(length, device=device).unsqueeze(1) * rate
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return self.dropout(F.embedding(ids, self.words) * math.sqrt(self.config.width) + positions).to(dtype)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.words, self.word_bias)
