"""Features of a vision tower at several of its layers: the input of a module between tower and projector.

A level is an index of transformers' ``hidden_states``: 0 is the input of the first layer, n the output of layer n.

Letters in shapes: N images, T tokens of the image with the most, d width of the tower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Levels:
    """Features of images at several layers of the tower, in the tower's own order of tokens.

    Attributes:
        features: of each layer (N, T, d); 0 where an image has no token.
        counts: tokens of each image.
        places: row and column of each token in the image's patches (N, T, 2); 0 where an image has no token.
        tower: the output of the tower, for what is none of the levels' business.
    """

    features: Sequence[Tensor]
    counts: Sequence[int]
    places: Tensor
    tower: Any

    @property
    def mask(self) -> Tensor | None:
        """True for tokens (N, T); None if every image has T of them."""
        if min(self.counts) == max(self.counts):
            return None
        counts = torch.tensor(self.counts, device=self.places.device)
        return torch.arange(self.places.shape[1], device=self.places.device) < counts[:, None]


def per_image(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """(N, T, ...), padded with 0, of the tokens of N images one after another."""
    return pad_sequence(list(rows.split(list(counts))), batch_first=True)


def join_levels(padded: Tensor, counts: Sequence[int]) -> Tensor:
    """The tokens of N images one after another: the inverse of :func:`per_image`."""
    return torch.cat([tokens[:count] for tokens, count in zip(padded, counts, strict=True)])


@contextmanager
def recorded(blocks: Sequence[nn.Module], layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Record levels while the tower runs: level -> its features, as the layers return them.

    The hooks are added for one call, so they run after those that DeepSpeed has put on the layers: under ZeRO-3 the
    recorded tensors are then those behind its own mark, through which a backward pass gathers the layer's parameters.
    The hidden states that transformers itself records may lie before that mark
    (tests/invariants/test_vlm_equivalence.py, the cases of ZeRO-3).
    """
    features: dict[int, Tensor] = {}

    def keep(level: int, module: nn.Module, inputs: Any, outputs: Any) -> None:
        features[level] = outputs[0] if isinstance(outputs, tuple) else outputs

    def keep_input(module: nn.Module, inputs: Any) -> None:
        features[0] = inputs[0]

    handles = [blocks[level - 1].register_forward_hook(partial(keep, level)) for level in layers if level]
    if 0 in layers:
        handles.append(blocks[0].register_forward_pre_hook(keep_input))
    try:
        yield features
    finally:
        for handle in handles:
            handle.remove()


def default_levels(last: int) -> tuple[int, ...]:
    """Four levels that end at ``last``, an eighth of the tower apart (at least 1); fewer in towers of less than four
    layers.

    17, 20, 23, 26 for LLaVA-OneVision (M3Diff, section 5.2), 20, 24, 28, 32 for Qwen2.5-VL and 15, 18, 21, 24 for
    InternVL3.
    """
    step = max(1, round(last / 8))
    return tuple(level for level in range(last - 3 * step, last + 1, step) if level > 0)


def check_levels(layers: Sequence[int], depth: int) -> None:
    """Check levels against a tower of ``depth`` layers.

    Raises:
        ValueError: it lacks one, or they are not in ascending order.
    """
    if not layers or list(layers) != sorted(set(layers)):
        raise ValueError(f"levels {tuple(layers)}: give one or more, in ascending order, none twice")
    if missing := [level for level in layers if not 0 <= level <= depth]:
        raise ValueError(
            f"levels {tuple(layers)}: the base model's vision tower has {depth} layers and no level {missing[0]}; take "
            f"levels from 0 to {depth}, or leave them empty for {default_levels(depth)}"
        )
