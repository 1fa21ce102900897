"""The multi-scale differential perception module (MDP), equations (1) to (8) of M3Diff, section 4.2.

Unusual:

- It reads several levels of a vision tower for both images of a pair, and returns features of the shape of one level,
  which the projector reads in place of the tower's own: the language model sees no more tokens than before.
- (1) to (3) compare the images channel by channel at the same position; (4) to (6) attend over the whole image.
- "||" joins channels in (1), (3) and (7), and tokens in (5) and (6), "preserving spatial dimensions".
- (1) to (6) are applied `stacks` times; (7) and (8) mix the levels.
- It starts as almost nothing: F' is nearly the last level (`MdpConfig.start`).

Shapes: P pairs, T tokens of an image in the tower, d its width, L levels, S keys. `mask` (P, T) is True for tokens that
are there; None if all are. The images of a pair have the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.systems.m3diff.config import MdpConfig
from idc.vlm.family import Family

NEAR_ONE = 4.0
"""Score's bias at the start: sigmoid(4) = 0.982 for the last level, sigmoid(-4) = 0.018 for the others."""


class Attention(nn.Module):
    """Multi-head attention CA(queries, context); SA if there is no context. Both are normalised, the result is added to
    the queries."""

    def __init__(self, width: int, config: MdpConfig, itself: bool = False):
        super().__init__()
        self.heads, self.norm = config.heads, nn.LayerNorm(width)
        self.norm_context = None if itself else nn.LayerNorm(width)
        # Without biases: that of the keys changes no attention, so nothing would ever train it.
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, queries: Tensor, context: Tensor | None, mask: Tensor | None) -> Tensor:
        """(P, T, d) from ``queries`` (P, T, d) and ``context`` (P, S, d); ``mask`` of the keys (P, S)."""
        read = self.norm(queries)
        other = read if self.norm_context is None else self.norm_context(context)
        query, key, value = (
            part(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part, tokens in ((self.query, read), (self.key, other), (self.value, other))
        )
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=None if mask is None else mask[:, None, None]
        )
        output: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return queries + output


class Stack(nn.Module):
    """Equations (1) to (6) for one level, once."""

    def __init__(self, width: int, config: MdpConfig):
        super().__init__()
        self.gate = nn.Linear(2 * width, width, bias=False)  # W_m
        self.difference = nn.Linear(3 * width, width, bias=False)  # W_p
        self.attend_itself = Attention(width, config, itself=True)  # SA of (4)
        self.attend_images = Attention(width, config)  # CA of (5)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
        )  # fmt: skip
        self.attend_difference = Attention(width, config)  # CA of (6)
        if config.start == "near_base":
            nn.init.zeros_(self.attend_difference.out.weight)
            nn.init.zeros_(self.attend_difference.out.bias)

    def forward(self, first: Tensor, second: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """F~_1, F~_2 and dF (P, T, d), and how far F^_1 and F^_2 are apart (P, T), in [0, 1]."""
        lambda_1 = torch.sigmoid(self.gate(torch.cat((first, second), -1)))  # (1)
        lambda_2 = torch.sigmoid(self.gate(torch.cat((second, first), -1)))  # (1)
        hat_1, hat_2 = first * lambda_1, second * lambda_2  # (2)
        delta = self.difference(torch.cat((hat_1, hat_2, hat_1 - hat_2), -1))  # (3)
        delta_sa = self.attend_itself(delta, None, mask)  # (4)
        twice, thrice = (None if mask is None else mask.repeat(1, n) for n in (2, 3))
        delta_ca = self.attend_images(delta_sa, torch.cat((first, second, delta_sa), 1), thrice)  # (5), CA
        delta_ca = delta_ca + self.mlp(delta_ca)  # (5), MLP
        tilde_1 = self.attend_difference(first, torch.cat((first, delta_ca), 1), twice)  # (6)
        tilde_2 = self.attend_difference(second, torch.cat((second, delta_ca), 1), twice)  # (6)
        return tilde_1, tilde_2, delta, _relative_distance(hat_1, hat_2)


def _relative_distance(first: Tensor, second: Tensor) -> Tensor:
    """|a - b| / (|a| + |b|) over channels: 0 for equal features, at most 1."""
    first, second = first.detach().float(), second.detach().float()
    sizes = first.norm(dim=-1) + second.norm(dim=-1)
    # Clamped: features that are zero in both images are equal, not 0 / 0.
    return (first - second).norm(dim=-1) / sizes.clamp(min=torch.finfo(torch.float32).tiny)


class Score(nn.Module):
    """Equation (7): the weights of the L levels in the sum, which differ in their bias alone."""

    def __init__(self, width: int, config: MdpConfig, levels: int):
        super().__init__()
        self.norm = nn.LayerNorm(3 * width)
        self.hidden = nn.Linear(3 * width, width)
        self.out = nn.Linear(width, width, bias=False)
        start = torch.zeros(levels, width)
        if config.start == "near_base":
            nn.init.zeros_(self.out.weight)
            start -= NEAR_ONE
            start[-1] = NEAR_ONE
        self.bias = nn.Parameter(start)

    def forward(self, tilde_1: Tensor, tilde_2: Tensor, delta: Tensor, level: int, mask: Tensor | None) -> Tensor:
        """Score (P, 1, d) of a level."""
        joined = torch.cat((tilde_1, tilde_2, delta), -1)
        if mask is None:
            pooled = joined.mean(1)
        else:
            pooled = (joined * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logit = self.out(F.gelu(self.hidden(self.norm(pooled))))
        return torch.sigmoid(logit + self.bias[level])[:, None]  # (7)


class Perceived(NamedTuple):
    """Result of the module for pairs.

    Attributes:
        features: F'_1 and F'_2 in turn (2P, T, d).
        apart: how far the gated features of equation (2) are apart at the last level, token by token (P, T), in [0, 1];
            those of the first stack, in which a token has not yet read others.
    """

    features: Tensor
    apart: Tensor


class Mdp(nn.Module):
    """The module for a tower of width d, of which L ``layers`` are read (:meth:`idc.vlm.family.Family.levels`)."""

    def __init__(self, width: int, layers: Sequence[int], config: MdpConfig):
        super().__init__()
        self.layers, self.self_compare = tuple(layers), config.compares == "itself"
        self.stacks = nn.ModuleList(Stack(width, config) for _ in range(config.stacks))
        self.score = Score(width, config, len(layers))

    def blocks(self) -> list[nn.Module]:
        """The parts with most of the work, each called once a level."""
        return list(self.stacks)

    def forward(self, levels: Sequence[Tensor], mask: Tensor | None) -> Perceived:
        """Perceive differences in ``levels``: F_1 and F_2 of the pairs in turn, of each level (2P, T, d)."""
        kind = self.score.bias.dtype
        # Each image is compared with the next one, or with itself: twice as many pairs of equal images.
        before, after = (slice(None), slice(None)) if self.self_compare else (slice(0, None, 2), slice(1, None, 2))
        pair_mask = None if mask is None else mask[before]
        total: list[Tensor] = []
        apart = None
        for number, level in enumerate(levels):
            first, second = level[before].to(kind), level[after].to(kind)
            apart = None
            for stack in self.stacks:
                first, second, delta, far = stack(first, second, pair_mask)
                apart = far if apart is None else apart
            score = self.score(first, second, delta, number, pair_mask)
            weighted = [score * first, score * second]
            total = [a + b for a, b in zip(total, weighted, strict=True)] if total else weighted  # (8)
        assert apart is not None
        if self.self_compare:
            return Perceived(total[0], apart[0::2])
        return Perceived(torch.stack(total, 1).flatten(0, 1), apart)


def default_levels(last: int) -> tuple[int, ...]:
    """Four levels that end at ``last``, an eighth of the tower apart (at least 1); fewer in towers of less than four
    layers. See :attr:`MdpConfig.levels`."""
    step = max(1, round(last / 8))
    return tuple(level for level in range(last - 3 * step, last + 1, step) if level > 0)


def levels_of(config: MdpConfig, family: Family) -> tuple[int, ...]:
    """The levels of a base model's tower that are read. ValueError: they are not in ascending order, the tower lacks
    one, or the last is not the one that the projector reads."""
    read, depth = family.read_level, family.depth
    levels = default_levels(read) if config.levels is None else config.levels
    if not levels or list(levels) != sorted(set(levels)):
        raise ValueError(f"mdp.levels={levels}: give one or more, in ascending order, none twice")
    if missing := [level for level in levels if not 0 <= level <= depth]:
        raise ValueError(
            f"mdp.levels={levels}: the base model's vision tower has {depth} layers and no level {missing[0]}; take "
            f"levels from 0 to {depth}, or leave them empty for {default_levels(depth)}"
        )
    if config.start == "near_base" and levels[-1] != read:
        raise ValueError(
            f"mdp.levels={levels}: the base model's projector reads level {read}; with mdp.start=near_base it must be "
            "the last one"
        )
    return levels


def new_mdp(config: MdpConfig, family: Family) -> Mdp:
    """The module for a base model, with new weights. ValueError: as :func:`levels_of`, or the heads do not divide
    the tower's width."""
    levels = levels_of(config, family)
    if family.tower_width % config.heads:
        raise ValueError(
            f"mdp.heads={config.heads} does not divide the width of the base model's vision tower, {family.tower_width}"
        )
    return Mdp(family.tower_width, levels, config)


def encode_pairs(model: Any, family: Family, mdp: Mdp, pixels: Mapping[str, Tensor]) -> tuple[Any, list[Tensor]]:
    """Features of pairs' images with the module between tower and projector, as :meth:`idc.vlm.family.Family.encode`
    has them; and per pair the columns row, column and :attr:`Perceived.apart` of its tokens (T, 3), float32.
    ``pixels``: before and after in turn; those of a pair have equal grids."""
    levels = family.levels(model, pixels, mdp.layers)
    assert list(levels.counts[0::2]) == list(levels.counts[1::2]), "the images of a pair have different grids"
    perceived = mdp(levels.features, levels.mask)
    encoded = family.project(model, pixels, levels, perceived.features.to(levels.features[-1].dtype))
    apart = torch.cat((levels.patch_coordinates[0::2].float(), perceived.apart[..., None]), -1)
    return encoded, [pair[:count] for pair, count in zip(apart, levels.counts[0::2], strict=True)]
