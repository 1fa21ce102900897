"""Transformer decoders over words: captions from the memory of a pair.

Unusual here: nothing; pre-norm layers, learned positions, input and output embedding one tensor. Keys and
values are cached as :class:`idc.nn.decoding.CachedDecoder` describes, the memory's once per pair, not per beam: by
:class:`CachingDecoder`, which other decoders share.

Shapes: B pairs, R rows = pairs * beams, S memory positions of width D, T caption length, V words, E width,
H heads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.text import OWN_IDS
from idc.nn.config import WordDecoderConfig
from idc.nn.decoding import Decoded, decode


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Embeddings of positions (length, width): even channels sine, odd ones cosine."""
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, device=device).unsqueeze(1) * rate
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Scaled dot-product attention, in float32 on a CPU, whose bf16 kernel is slower in the backward pass."""
    # A decoder's step is a hundred small operations: to switch off what is off takes as long as one of them.
    if query.device.type != "cpu" or (query.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")):
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=is_causal)


class WordDecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each on the normalised input and added to it."""

    def __init__(self, config: WordDecoderConfig):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_self, self.norm_cross, self.norm_feedforward = (nn.LayerNorm(width) for _ in range(3))
        self.self_qkv, self.self_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.cross_q, self.cross_kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, config.feedforward), nn.Linear(config.feedforward, width)
        self.dropout = nn.Dropout(config.dropout)

    def queries_keys_values(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the self-attention, (B, H, T, E/H) each."""
        query, key, value = (self._split(part) for part in self.self_qkv(self._entered(x_BTE)).chunk(3, dim=-1))
        return query, key, value

    def _entered(self, x_BTE: Tensor) -> Tensor:
        return cast(Tensor, self.norm_self(x_BTE))

    def memory_keys_values(self, memory_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Of the cross-attention, (B, H, S, E/H) each."""
        key, value = (self._split(part) for part in self.cross_kv(memory_BSE).chunk(2, dim=-1))
        return key, value

    def self_attend(self, x_BTE: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """``x`` after the self-attention."""
        attended = _attention(query, key, value, is_causal=causal)
        return x_BTE + self.dropout(self.self_out(attended.transpose(1, 2).flatten(2)))

    def cross_attend_and_mlp(self, x_BTE: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``x`` after cross-attention to the memory's keys and values, and the feed-forward part."""
        query = self._split(self.cross_q(self.norm_cross(x_BTE)))
        attended = _attention(query, key, value)
        x_BTE = x_BTE + self.dropout(self.cross_out(attended.transpose(1, 2).flatten(2)))
        return x_BTE + self.dropout(self.narrow(F.gelu(self.widen(self.norm_feedforward(x_BTE)))))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@dataclass
class DecoderCache:
    """Keys and values of R = pairs * beams rows.

    Attributes:
        rows: keys and values of all layers in one tensor, which is reordered at once: (R, layers, 2, H, max_length,
            E/H), filled up to the current position.
        memory: (keys, values) per layer, (pairs, H, S, E/H), one per pair, not per row.
        positions: embeddings of the positions, (max_length, E).
        beams: rows per pair.
    """

    rows: Tensor
    memory: list[tuple[Tensor, Tensor]]
    positions: Tensor
    beams: int


class CachingDecoder(nn.Module, ABC):
    """A text decoder's pass over whole captions, and its cached steps (:class:`idc.nn.decoding.CachedDecoder`). Its
    ``layers`` have the methods of :class:`WordDecoderLayer`."""

    layers: nn.ModuleList
    config: Any

    @abstractmethod
    def _memory(self, memory_BSD: Tensor) -> Tensor:
        """The memory at the decoder's width, (B, S, E)."""

    @abstractmethod
    def _positions(self, length: int, device: torch.device) -> Tensor:
        """Embeddings of positions 0 .. length - 1, (length, E)."""

    @abstractmethod
    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Embed ids (B, T) at positions (T, E) or (E,); ``dtype`` is that of what the layers cache."""

    @abstractmethod
    def _logits(self, x: Tensor) -> Tensor:
        """Of the words after each position."""

    def _layer_residual(self, output: Tensor, entered: Tensor) -> Tensor:
        """What leaves a layer, of its output and of what entered it."""
        return output

    def forward(self, ids_RT: Tensor, memory_BSD: Tensor) -> Tensor:
        """Logits (R, T, V) of the word after each position; position t sees ids 0..t of its row. Pairs may have several
        rows, of every pair as many, one after another."""
        memory = self._memory(memory_BSD)
        x = self._embed(ids_RT, self._positions(ids_RT.shape[1], memory.device), memory.dtype)
        for layer in self._layers():
            entered = x
            x = layer.self_attend(x, *layer.queries_keys_values(x), causal=True)
            # The rows of a pair are one sequence of queries to the same memory, which is therefore projected once.
            x = layer.cross_attend_and_mlp(
                x.view(len(memory), -1, x.shape[-1]), *layer.memory_keys_values(memory)
            ).view_as(x)
            x = self._layer_residual(x, entered)
        return self._logits(x)

    def search(self, memory_BSD: Tensor, **options: Any) -> Decoded:
        """Captions as ids by :func:`idc.nn.decoding.decode`; ``options`` replace those of :meth:`rules`."""
        return decode(self, memory_BSD, **{**self.rules(), **options})

    def rules(self) -> dict[str, Any]:
        """Arguments of :func:`idc.nn.decoding.decode` and :func:`~idc.nn.decoding.sample`: the marks, the longest
        caption, and that the unknown word, padding and a second beginning mark are never generated."""
        unk, pad, bos, eos = OWN_IDS.unk, OWN_IDS.pad, OWN_IDS.bos, OWN_IDS.eos
        longest = self.config.max_length - 1
        return {"bos": bos, "eos": eos, "pad": pad, "max_length": longest, "banned": (unk, pad, bos)}

    def start(self, memory_BSD: Tensor, max_length: int, beams: int) -> DecoderCache:
        """See :class:`idc.nn.decoding.CachedDecoder`."""
        projected = self._memory(memory_BSD)
        memory = [layer.memory_keys_values(projected) for layer in self._layers()]
        pairs, heads, _, width = memory[0][0].shape
        # For the whole length at once: a step writes into it, where appending would copy all earlier positions.
        rows = memory[0][0].new_zeros((pairs * beams, len(memory), 2, heads, max_length, width))
        return DecoderCache(rows, memory, self._positions(max_length, projected.device), beams)

    def step(self, ids_R: Tensor, position: int, cache: DecoderCache) -> Tensor:
        """See :class:`idc.nn.decoding.CachedDecoder`."""
        x_R1E = self._embed(ids_R.unsqueeze(1), cache.positions[position], cache.rows.dtype)
        pairs = len(cache.memory[0][0])
        for index, layer in enumerate(self._layers()):
            entered = x_R1E
            query, key, value = layer.queries_keys_values(x_R1E)
            keys, values = cache.rows[:, index, :, :, : position + 1].unbind(1)
            keys[:, :, position] = key[:, :, 0]
            values[:, :, position] = value[:, :, 0]
            x_R1E = layer.self_attend(x_R1E, query, keys, values, causal=False)
            # The beams of a pair are one sequence of queries to the same memory, which is therefore not copied.
            x_R1E = layer.cross_attend_and_mlp(x_R1E.view(pairs, cache.beams, -1), *cache.memory[index]).view_as(x_R1E)
            x_R1E = self._layer_residual(x_R1E, entered)
        return self._logits(x_R1E)[:, 0]

    def reorder(self, cache: DecoderCache, rows_R: Tensor) -> None:
        """See :class:`idc.nn.decoding.CachedDecoder`."""
        cache.rows = cache.rows.index_select(0, rows_R)

    def _layers(self) -> list[WordDecoderLayer]:
        return [cast(WordDecoderLayer, layer) for layer in self.layers]


class WordDecoder(CachingDecoder):
    """Predicts caption words from a memory of width E; ids are those of an own :class:`~idc.data.text.Vocabulary`."""

    def __init__(self, config: WordDecoderConfig, vocabulary_size: int):
        super().__init__()
        self.config = config
        self.words = nn.Parameter(torch.randn(vocabulary_size, config.width) * config.width**-0.5)
        self.word_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.positions = nn.Parameter(torch.randn(config.max_length, config.width) * config.width**-0.5)
        self.layers = nn.ModuleList(WordDecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def _memory(self, memory_BSD: Tensor) -> Tensor:
        return memory_BSD

    def _positions(self, length: int, device: torch.device) -> Tensor:
        return self.positions[:length]

    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        embedded: Tensor = self.dropout(F.embedding(ids, self.words) + positions)
        return embedded

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.words, self.word_bias)
