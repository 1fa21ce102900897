"""The word decoder of ChangeVG's guide, as Change-Agent's MCI has it. What is unusual: post-norm layers, each of which
adds its input to its output; the positions are sinusoids; input and output embedding are two tensors.

Shapes: B pairs, T caption length, S memory positions, E width, V words.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.text import OWN_IDS
from idc.nn.word_decoder import CachingDecoder
from idc.systems.changevg.config import GuideDecoderConfig


class GuideDecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each normalised after it was added to its input."""

    def __init__(self, config: GuideDecoderConfig):
        super().__init__()
        width = config.width
        self.heads, self.rate = config.heads, config.dropout
        self.self_qkv, self.self_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.cross_q, self.cross_kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, config.feedforward), nn.Linear(config.feedforward, width)
        self.norm_self, self.norm_cross, self.norm_feedforward = (nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(config.dropout)

    def queries_keys_values(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the self-attention, (B, heads, T, E / heads) each."""
        query, key, value = (self._split(part) for part in self.self_qkv(x_BTE).chunk(3, dim=-1))
        return query, key, value

    def memory_keys_values(self, memory_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Of the cross-attention, (B, heads, S, E / heads) each."""
        key, value = (self._split(part) for part in self.cross_kv(memory_BSE).chunk(2, dim=-1))
        return key, value

    def self_attend(self, x_BTE: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """``x`` after the self-attention."""
        attended = self.self_out(self._attend(query, key, value, causal))
        normed: Tensor = self.norm_self(x_BTE + self.dropout(attended))
        return normed

    def cross_attend_and_mlp(self, x_BTE: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``x`` after cross-attention to the memory's keys and values, and the feed-forward part."""
        attended = self.cross_out(self._attend(self._split(self.cross_q(x_BTE)), key, value, causal=False))
        x_BTE = self.norm_cross(x_BTE + self.dropout(attended))
        wide = self.dropout(F.relu(self.widen(x_BTE)))
        normed: Tensor = self.norm_feedforward(x_BTE + self.dropout(self.narrow(wide)))
        return normed

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        rate = self.rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=causal)
        return attended.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class GuideDecoder(CachingDecoder):
    """Predicts caption words from a memory of width E; ids are those of an own :class:`~idc.data.text.Vocabulary`."""

    def __init__(self, config: GuideDecoderConfig, vocabulary_size: int):
        super().__init__()
        self.config = config
        self.words = nn.Parameter(torch.empty(vocabulary_size, config.width).uniform_(-0.1, 0.1))
        self.layers = nn.ModuleList(GuideDecoderLayer(config) for _ in range(config.layers))
        self.out = nn.Linear(config.width, vocabulary_size)
        nn.init.uniform_(self.out.weight, -0.1, 0.1)
        nn.init.zeros_(self.out.bias)
        self.dropout = nn.Dropout(config.dropout)

    def rules(self) -> dict[str, Any]:
        """Arguments of :func:`idc.nn.decoding.decode`: the marks, the longest caption, and what is never generated."""
        unk, pad, bos = OWN_IDS.unk, OWN_IDS.pad, OWN_IDS.bos
        return {
            "bos": bos,
            "eos": OWN_IDS.eos,
            "pad": pad,
            "max_length": self.config.max_length - 1,
            "banned": () if self.config.special_words else (unk, pad, bos),
        }

    def _memory(self, memory_BSD: Tensor) -> Tensor:
        return memory_BSD

    def _positions(self, length: int, device: torch.device) -> Tensor:
        """Sinusoids: even channels sine, odd ones cosine."""
        width = self.config.width
        steps = torch.arange(length, dtype=torch.float32).unsqueeze(1)
        angles = steps * torch.exp(torch.arange(0, width, 2).float() * (-math.log(10_000.0) / width))
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(device)

    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        embedded: Tensor = self.dropout(F.embedding(ids, self.words) + positions)
        return embedded

    def _layer_residual(self, output: Tensor, entered: Tensor) -> Tensor:
        return output + entered

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.dropout(x))
        return logits
