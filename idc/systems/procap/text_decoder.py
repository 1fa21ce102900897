"""ProCap's text decoder of stage 2: caption words from the latent procedure.

Unusual here: post-norm layers whose attention has no biases; input and output embedding are one tensor; the memory may
be normalised per position over the batch (:class:`PositionNorm`); quirks of the official code are config switches.
Decoding caches keys and values (:class:`idc.nn.decoding.CachedDecoder`): the procedure's once per pair, not per beam.

Shapes:
    B pairs   R rows = pairs * beams   S = F*P positions of the procedure   D encoder width   E decoder width
    T caption length   V words   H heads   C captions of a pair   N positions with a word, of all captions
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.text import OWN_IDS, SpecialIds
from idc.nn.word_decoder import CachingDecoder, sinusoids
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


class Positions:
    """The positions of words in the padded captions (B, C, T) of a batch, of which ``real_BCT`` are words, before
    all padding: only attention needs the padding, everything else is computed of the N words alone."""

    def __init__(self, real_BCT: Tensor):
        self.pairs, captions, self.length = real_BCT.shape
        self.captions = self.pairs * captions
        self.index_N = real_BCT.flatten().nonzero().squeeze(1)

    def spread(self, x_NE: Tensor, sequences: int) -> Tensor:
        """(sequences, L, E) with zeros for padding: one sequence for each caption, or for all captions of a pair."""
        padded = x_NE.new_zeros(self.captions * self.length, x_NE.shape[-1])
        return padded.index_copy(0, self.index_N, x_NE).unflatten(0, (sequences, -1))

    def gather(self, x_SLE: Tensor) -> Tensor:
        """The inverse of :meth:`spread`, (N, E)."""
        return x_SLE.flatten(0, 1).index_select(0, self.index_N)


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
        return self.out(self._mixed(query, keys, values, causal))

    def packed(self, x_NE: Tensor, at: Positions) -> Tensor:
        """Causal self-attention of each caption, (N, E)."""
        query, keys, values = (self._split(at.spread(part(x_NE), at.captions)) for part in (self.q, self.k, self.v))
        return self.out(at.gather(self._mixed(query, keys, values, causal=True)))

    def packed_memory(self, x_NE: Tensor, at: Positions, keys: Tensor, values: Tensor) -> Tensor:
        """Cross-attention, (N, E); the captions of a pair are one sequence of queries."""
        query = self._split(at.spread(self.q(x_NE), at.pairs))
        return self.out(at.gather(self._mixed(query, keys, values, causal=False)))

    def weights(self, x_BTE: Tensor, keys: Tensor) -> Tensor:
        """Attention of each position to each key, (B, T, S), mean over heads; :meth:`forward` never forms it."""
        scores = self.queries(x_BTE) @ keys.transpose(2, 3) * self.scale
        return scores.float().softmax(dim=-1).mean(dim=1)

    def _mixed(self, query: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        mixed = F.scaled_dot_product_attention(query, keys, values, is_causal=causal, scale=self.scale)
        return mixed.transpose(1, 2).flatten(2)

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

    def self_attend(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """See :class:`idc.nn.word_decoder.WordDecoderLayer`."""
        return self.norm_self(x + self.dropout(self.self_attention(query, key, value, causal=causal)))

    def cross_attend_and_mlp(self, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`idc.nn.word_decoder.WordDecoderLayer`."""
        attended = self.cross_attention(self.cross_attention.queries(x), key, value, causal=False)
        return self._fed_forward(self.norm_cross(x + self.dropout(attended)))

    def packed(self, x_NE: Tensor, at: Positions, key: Tensor, value: Tensor) -> Tensor:
        """The whole layer on the packed words of several captions of each pair."""
        x = self.norm_self(x_NE + self.dropout(self.self_attention.packed(x_NE, at)))
        x = self.norm_cross(x + self.dropout(self.cross_attention.packed_memory(x, at, key, value)))
        return self._fed_forward(x)

    def _fed_forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.norm_feedforward(x + self.dropout(self.narrow(F.relu(self.widen(x)))))
        return fed


class TextDecoder(CachingDecoder):
    """Predicts caption words from the latent procedure of width D; positions are sinusoids. Only `memory_norm:
    batch` needs the number S of ``positions`` of the procedure."""

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

    def forward(self, ids: Tensor, procedure_BSD: Tensor, real_BCT: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the word after each of ``ids`` (B, T); or, with ``real_BCT``, of several captions
        (B, C, T) of each pair, logits (N, V) after each word that it marks, in their order. The procedure is projected
        once for all captions of a pair."""
        if real_BCT is None:
            return super().forward(ids, procedure_BSD)
        at, memory = Positions(real_BCT), self._memory(procedure_BSD)
        sinusoids = self._positions(at.length, memory.device)[at.index_N % at.length]
        x_NE = self._embed(ids.flatten()[at.index_N], sinusoids, memory.dtype)
        for layer in cast(Iterable[DecoderLayer], self.layers):
            x_NE = layer.packed(x_NE, at, *layer.memory_keys_values(memory))
        return self._logits(x_NE)

    def rules(self, special: SpecialIds = OWN_IDS) -> dict[str, Any]:
        """With the marks of any vocabulary; with ``ban_unknown_only`` the unknown word alone is never generated."""
        unk, pad, bos = special.unk, special.pad, special.bos
        banned = (unk,) if self.config.ban_unknown_only else (unk, pad, bos)
        return {**super().rules(), "bos": bos, "eos": special.eos, "pad": pad, "banned": banned}

    def attended(self, ids_BT: Tensor, procedure_BSD: Tensor) -> Tensor:
        """Cross-attention of the position that predicts the word after each of ``ids_BT`` on each position of the
        procedure: (B, T, S), mean over layers and heads, sums to 1 over S."""
        memory = self._memory(procedure_BSD)
        x = self._embed(ids_BT, self._positions(ids_BT.shape[1], memory.device), memory.dtype)
        looks = []
        for layer in cast(Iterable[DecoderLayer], self.layers):
            x = layer.self_attend(x, *layer.queries_keys_values(x), causal=True)
            keys, values = layer.memory_keys_values(memory)
            looks.append(layer.cross_attention.weights(x, keys))
            x = layer.cross_attend_and_mlp(x, keys, values)
        return torch.stack(looks).mean(dim=0)

    def _memory(self, memory_BSD: Tensor) -> Tensor:
        projected: Tensor = self.project(memory_BSD)
        return projected

    def _positions(self, length: int, device: torch.device) -> Tensor:
        return sinusoids(length, self.config.width, device)

    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return self.dropout(F.embedding(ids, self.words) * math.sqrt(self.config.width) + positions).to(dtype)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.words, self.word_bias)
