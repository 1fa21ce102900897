"""A second implementation of equations (1) to (8), one token, one head and one level at a time.

It shares nothing with the module but the names of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from idc.systems.m3diff.config import MdpConfig

Tokens = list[Tensor]


class Naive:
    """The module, for one pair.

    Args:
        weights: the module's state dict.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: MdpConfig):
        self.weights, self.config = {name: tensor.double() for name, tensor in weights.items()}, config
        self.residual = config.blocks == "pre_norm"

    def norm(self, name: str, x: Tensor) -> Tensor:
        if not self.residual:
            return x
        scaled = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0)

    def attention(self, name: str, queries: Tokens, q_sines: Tokens, context: Tokens | None, sines: Tokens) -> Tokens:
        """Each query looks at every token of the context; without one, at the queries themselves."""
        read = [self.norm(f"{name}.norm", token) for token in queries]
        others = read if context is None else [self.norm(f"{name}.norm_context", token) for token in context]
        keys = [self.linear(f"{name}.key", token + sine) for token, sine in zip(others, sines, strict=True)]
        values = [self.linear(f"{name}.value", token) for token in others]
        mixed = []
        for token, sine, before in zip(read, q_sines, queries, strict=True):
            query, joined = self.linear(f"{name}.query", token + sine), torch.zeros_like(token)
            size = len(query) // self.config.heads
            for start in range(0, len(query), size):
                part = slice(start, start + size)
                shares = torch.stack([query[part] @ key[part] / math.sqrt(size) for key in keys]).softmax(0)
                joined[part] = sum(share * value[part] for share, value in zip(shares, values, strict=True))
            out = self.linear(f"{name}.out", joined)
            mixed.append(before + out if self.residual else out)
        return mixed

    def stack(self, name: str, first: Tokens, second: Tokens, sines: Tokens) -> tuple[Tokens, Tokens, Tokens]:
        delta = []
        for a, b in zip(first, second, strict=True):
            hat_1 = a * self.linear(f"{name}.gate", torch.cat([a, b])).sigmoid()  # (1), (2)
            hat_2 = b * self.linear(f"{name}.gate", torch.cat([b, a])).sigmoid()
            delta.append(self.linear(f"{name}.difference", torch.cat([hat_1, hat_2, hat_1 - hat_2])))  # (3)
        delta_sa = self.attention(f"{name}.attend_itself", delta, sines, None, sines)  # (4)
        attended = self.attention(f"{name}.attend_images", delta_sa, sines, [*first, *second, *delta_sa], sines * 3)
        delta_ca = []
        for token in attended:  # (5)
            inner = self.linear(f"{name}.mlp.1", self.norm(f"{name}.mlp.0", token))
            out = self.linear(f"{name}.mlp.3", torch.nn.functional.gelu(inner))
            delta_ca.append(token + out if self.residual else out)
        tilde_1, tilde_2 = (
            self.attention(f"{name}.attend_difference", image, sines, [*image, *delta_ca], sines * 2)  # (6)
            for image in (first, second)
        )
        return tilde_1, tilde_2, delta

    def __call__(self, levels: Sequence[tuple[Tensor, Tensor]], places: Sequence[Sequence[int]]) -> Tensor:
        """F'_1 and F'_2, (2, T, d), of F_1 and F_2 (T, d) of each level."""
        width = levels[0][0].shape[1]
        sines = [self.sines(place, width) for place in places]
        sums = [torch.zeros_like(features).double() for features in levels[0]]
        for number, features in enumerate(levels):
            weights_of, bias = (0, number) if self.config.shared else (number, 0)
            sets = 1 if self.config.shared else len(levels)
            first, second = (list(image.double()) for image in features)
            for stack in range(self.config.stacks):
                first, second, delta = self.stack(f"stacks.{stack * sets + weights_of}", first, second, sines)
            tokens = [torch.cat(token) for token in zip(first, second, delta, strict=True)]
            name = f"scores.{weights_of}"
            hidden = self.linear(f"{name}.hidden", self.norm(f"{name}.norm", torch.stack(tokens).mean(0)))
            out = self.linear(f"{name}.out", torch.nn.functional.gelu(hidden))
            score = (out + self.weights[f"{name}.bias"][bias]).sigmoid()  # (7)
            for total, image in zip(sums, (first, second), strict=True):
                total += score * torch.stack(image)  # (8)
        return torch.stack(sums).float()

    def sines(self, place: Sequence[int], width: int) -> Tensor:
        sines = torch.zeros(width, dtype=torch.float64)
        if self.config.positions == "sines":
            quarter = width // 4
            angles = [where / 10_000 ** (number / quarter) for where in place for number in range(quarter)]
            for start, angle in enumerate(angles):
                at = start if start < quarter else start + quarter
                sines[at], sines[at + quarter] = math.sin(angle), math.cos(angle)
        return sines
