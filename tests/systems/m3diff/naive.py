"""A second implementation of equations (1) to (8), one pair and one level at a time.

It shares nothing with the module but the names of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
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

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def attention(self, name: str, queries: Tokens, context: Tokens | None) -> Tokens:
        """Each query looks at every token of the context; without one, at the queries themselves."""
        read = [self.norm(f"{name}.norm", token) for token in queries]
        others = read if context is None else [self.norm(f"{name}.norm_context", token) for token in context]
        q, k, v = (
            self.linear(f"{name}.{part}", torch.stack(tokens)).unflatten(1, (self.config.heads, -1)).transpose(0, 1)
            for part, tokens in (("query", read), ("key", others), ("value", others))
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        return list(torch.stack(queries) + self.linear(f"{name}.out", mixed))

    def gated(self, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """F^_1 and F^_2 of a token, (1) and (2)."""
        hat_1 = a * self.linear(f"{name}.gate", torch.cat([a, b])).sigmoid()
        hat_2 = b * self.linear(f"{name}.gate", torch.cat([b, a])).sigmoid()
        return hat_1, hat_2

    def stack(self, name: str, first: Tokens, second: Tokens) -> tuple[Tokens, Tokens, Tokens]:
        delta = []
        for a, b in zip(first, second, strict=True):
            hat_1, hat_2 = self.gated(name, a, b)
            delta.append(self.linear(f"{name}.difference", torch.cat([hat_1, hat_2, hat_1 - hat_2])))  # (3)
        delta_sa = self.attention(f"{name}.attend_itself", delta, None)  # (4)
        attended = self.attention(f"{name}.attend_images", delta_sa, [*first, *second, *delta_sa])
        delta_ca = []
        for token in attended:  # (5)
            inner = self.linear(f"{name}.mlp.1", self.norm(f"{name}.mlp.0", token))
            delta_ca.append(token + self.linear(f"{name}.mlp.3", F.gelu(inner)))
        tilde_1, tilde_2 = (
            self.attention(f"{name}.attend_difference", image, [*image, *delta_ca])  # (6)
            for image in (first, second)
        )
        return tilde_1, tilde_2, delta

    def __call__(self, levels: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """F'_1 and F'_2, (2, T, d), of F_1 and F_2 (T, d) of each level."""
        sums = [torch.zeros_like(features).double() for features in levels[0]]
        for number, features in enumerate(levels):
            first, second = (list(image.double()) for image in features)
            for stack in range(self.config.stacks):
                first, second, delta = self.stack(f"stacks.{stack}", first, second)
            tokens = [torch.cat(token) for token in zip(first, second, delta, strict=True)]
            hidden = self.linear("score.hidden", self.norm("score.norm", torch.stack(tokens).mean(0)))
            out = self.linear("score.out", F.gelu(hidden))
            score = (out + self.weights["score.bias"][number]).sigmoid()  # (7)
            for total, image in zip(sums, (first, second), strict=True):
                total += score * torch.stack(image)  # (8)
        return torch.stack(sums).float()
