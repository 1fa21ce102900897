"""A second implementation of equations (1) to (8), token by token and head by head, in Python's own numbers.

It shares nothing with the module but the names of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from idc.systems.m3diff.config import MdpConfig

Vector = list[float]
Tokens = list[Vector]


def plus(a: Sequence[float], b: Sequence[float]) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def linear(weight: list[Vector], bias: Vector | None, x: Vector) -> Vector:
    made = [sum(w * value for w, value in zip(row, x, strict=True)) for row in weight]
    return made if bias is None else plus(made, bias)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


class Naive:
    """The module, for one pair.

    Args:
        weights: of the module's state dict, as lists.
    """

    def __init__(self, weights: Mapping[str, Any], config: MdpConfig):
        self.weights, self.config = weights, config

    def norm(self, name: str, x: Vector) -> Vector:
        if self.config.blocks == "plain":
            return x
        mean = sum(x) / len(x)
        variance = sum((value - mean) ** 2 for value in x) / len(x)
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return [(v - mean) / math.sqrt(variance + 1e-5) * s + b for v, s, b in zip(x, scale, shift, strict=True)]

    def linear(self, name: str, x: Vector) -> Vector:
        return linear(self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"), x)

    def attention(self, name: str, queries: Tokens, q_places: Tokens, context: Tokens | None, places: Tokens) -> Tokens:
        """Each query looks at every token of the context; without one, at the queries themselves."""
        read = [self.norm(f"{name}.norm", token) for token in queries]
        others = read if context is None else [self.norm(f"{name}.norm_context", token) for token in context]
        keys = [self.linear(f"{name}.key", plus(token, place)) for token, place in zip(others, places, strict=True)]
        values = [self.linear(f"{name}.value", token) for token in others]
        found = []
        for token, place, before in zip(read, q_places, queries, strict=True):
            query = self.linear(f"{name}.query", plus(token, place))
            size = len(query) // self.config.heads
            joined: Vector = []
            for head in range(self.config.heads):
                part = slice(head * size, (head + 1) * size)
                logits = [sum(a * b for a, b in zip(query[part], key[part], strict=True)) for key in keys]
                shares = [math.exp((logit - max(logits)) / math.sqrt(size)) for logit in logits]
                total = sum(shares)
                for channel in range(part.start, part.stop):
                    joined.append(sum(s / total * v[channel] for s, v in zip(shares, values, strict=True)))
            made = self.linear(f"{name}.out", joined)
            found.append(plus(before, made) if self.config.blocks == "pre_norm" else made)
        return found

    def stack(self, name: str, first: Tokens, second: Tokens, places: Tokens) -> tuple[Tokens, Tokens, Tokens]:
        delta = []
        for a, b in zip(first, second, strict=True):
            gate_1 = [sigmoid(x) for x in self.linear(f"{name}.gate", [*a, *b])]  # (1)
            gate_2 = [sigmoid(x) for x in self.linear(f"{name}.gate", [*b, *a])]
            hat_1 = [x * g for x, g in zip(a, gate_1, strict=True)]  # (2)
            hat_2 = [x * g for x, g in zip(b, gate_2, strict=True)]
            apart = [x - y for x, y in zip(hat_1, hat_2, strict=True)]
            delta.append(self.linear(f"{name}.difference", [*hat_1, *hat_2, *apart]))  # (3)
        delta_sa = self.attention(f"{name}.attend_itself", delta, places, None, places)  # (4)
        attended = self.attention(f"{name}.attend_images", delta_sa, places, [*first, *second, *delta_sa], places * 3)
        delta_ca = []
        for token in attended:  # (5)
            inner = [gelu(x) for x in self.linear(f"{name}.mlp.1", self.norm(f"{name}.mlp.0", token))]
            made = self.linear(f"{name}.mlp.3", inner)
            delta_ca.append(plus(token, made) if self.config.blocks == "pre_norm" else made)
        tildes = [
            self.attention(f"{name}.attend_difference", one, places, [*one, *delta_ca], places * 2)  # (6)
            for one in (first, second)
        ]
        return tildes[0], tildes[1], delta

    def __call__(self, levels: Sequence[tuple[Tokens, Tokens]], places: Sequence[tuple[int, int]]) -> list[Tokens]:
        """F'_1 and F'_2."""
        width = len(levels[0][0][0])
        sines = [self.sines(place, width) if self.config.positions == "sines" else [0.0] * width for place in places]
        sums = [[[0.0] * width for _ in sines] for _ in range(2)]
        for number, (first, second) in enumerate(levels):
            own, bias = (0, number) if self.config.shared else (number, 0)
            sets = 1 if self.config.shared else len(levels)
            for stack in range(self.config.stacks):
                first, second, delta = self.stack(f"stacks.{stack * sets + own}", first, second, sines)
            tokens = [[*a, *b, *c] for a, b, c in zip(first, second, delta, strict=True)]
            pooled = [sum(column) / len(tokens) for column in zip(*tokens, strict=True)]
            hidden = [gelu(x) for x in self.linear(f"scores.{own}.hidden", self.norm(f"scores.{own}.norm", pooled))]
            made = plus(self.linear(f"scores.{own}.out", hidden), self.weights[f"scores.{own}.bias"][bias])
            score = [sigmoid(x) for x in made]  # (7)
            for image, tokens in enumerate((first, second)):
                for token, found in zip(tokens, sums[image], strict=True):
                    for channel, value in enumerate(token):  # (8)
                        found[channel] += score[channel if len(score) > 1 else 0] * value
        return sums

    @staticmethod
    def sines(place: tuple[int, int], width: int) -> Vector:
        quarter = width // 4
        made: Vector = []
        for where in place:
            for wave in (math.sin, math.cos):
                made += _waves(wave, where, quarter)
        return made + [0.0] * (width - len(made))


def _waves(wave: Callable[[float], float], where: int, count: int) -> Vector:
    return [wave(where / 10_000 ** (number / count)) for number in range(count)]
