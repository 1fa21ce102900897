"""The word decoder of ChangeVG's guide, as Change-Agent's MCI has it. What is unusual: post-norm layers, each of which
adds its input to its output; the positions are sinusoids; input and output embedding are two tensors.

Shapes: B pairs, T caption length, S memory positions, E width, V words.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.nn.word_decoder import CachingDecoder, WordDecoderLayer, sinusoids
from idc.systems.changevg.config import GuideDecoderConfig


class GuideDecoderLayer(WordDecoderLayer):
    """Self-attention, cross-attention, feed-forward, each normalised after it was added to its input; dropout of the
    attention weights too."""

    def _entered(self, x_BTE: Tensor) -> Tensor:
        return x_BTE

    def self_attend(self, x_BTE: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        attended = self.self_out(self._attend(query, key, value, causal))
        return cast(Tensor, self.norm_self(x_BTE + self.dropout(attended)))

    def cross_attend_and_mlp(self, x_BTE: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attended = self.cross_out(self._attend(self._split(self.cross_q(x_BTE)), key, value, causal=False))
        x_BTE = self.norm_cross(x_BTE + self.dropout(attended))
        wide = self.dropout(F.relu(self.widen(x_BTE)))
        return cast(Tensor, self.norm_feedforward(x_BTE + self.dropout(self.narrow(wide))))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        rate = self.dropout.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=causal)
        return attended.transpose(1, 2).flatten(2)


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
        return {**super().rules(), **({"banned": ()} if self.config.special_words else {})}

    def _memory(self, memory_BSD: Tensor) -> Tensor:
        return memory_BSD

    def _positions(self, length: int, device: torch.device) -> Tensor:
        return sinusoids(length, self.config.width, device)

    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return cast(Tensor, self.dropout(F.embedding(ids, self.words) + positions))

    def _layer_residual(self, output: Tensor, entered: Tensor) -> Tensor:
        return output + entered

    def _logits(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out(self.dropout(x)))
