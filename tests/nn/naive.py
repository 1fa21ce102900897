"""Layers a second time, naively: from a module's weights by their names, one position and head at a time, in float64.

The second implementations of whole models are made of these (``naive.py`` next to the tests of a system).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

Vector = np.ndarray
Tokens = list[Vector]


def weights_of(module: nn.Module) -> dict[str, np.ndarray]:
    """The state of a module."""
    return {name: tensor.detach().double().numpy() for name, tensor in module.state_dict().items()}


class Layers:
    """The layers of a module.

    Args:
        weights: :func:`weights_of` it.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = weights

    def linear(self, name: str, x: Vector) -> Vector:
        out: Vector = self.weights[f"{name}.weight"] @ x
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def part(self, name: str, x: Vector, number: int, of: int) -> Vector:
        """One of ``of`` equal parts of a linear layer's outputs."""
        out: Vector = self.linear(name, x)
        size = len(out) // of
        return out[number * size : (number + 1) * size]

    def norm(self, name: str, x: Vector) -> Vector:
        """Layer norm."""
        variance = sum((value - x.mean()) ** 2 for value in x) / len(x)
        out: Vector = (x - x.mean()) / math.sqrt(variance + 1e-5)
        return out * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def convolution(self, name: str, x_CYX: np.ndarray, stride: int, pad: Sequence[int]) -> np.ndarray:
        """``pad``: zeros at the left, right, top and bottom."""
        weight = self.weights[f"{name}.weight"]
        side = weight.shape[-1]
        left, right, top, bottom = pad
        x_CYX = np.pad(x_CYX, ((0, 0), (top, bottom), (left, right)))
        rows, columns = ((size - side) // stride + 1 for size in x_CYX.shape[1:])
        out = np.zeros((len(weight), rows, columns))
        for row in range(rows):
            for column in range(columns):
                y, x = row * stride, column * stride
                window = x_CYX[:, y : y + side, x : x + side]
                for channel, kernel in enumerate(weight):
                    out[channel, row, column] = (kernel * window).sum()
        return out + self.weights[f"{name}.bias"][:, None, None] if f"{name}.bias" in self.weights else out

    def group_norm(self, name: str, x_CYX: np.ndarray, groups: int) -> np.ndarray:
        out = np.empty_like(x_CYX)
        for group in np.split(np.arange(len(x_CYX)), groups):
            values = x_CYX[group]
            centred = values - values.mean()
            out[group] = centred / math.sqrt((centred**2).mean() + 1e-5)
        scale, shift = (self.weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return out * scale + shift


def attention(query: Vector, keys: Tokens, values: Tokens, heads: int) -> Vector:
    """What one position finds in the positions that it sees, head after head."""
    size = len(query) // heads
    out = np.zeros(len(query))
    for head in range(heads):
        channels = slice(head * size, (head + 1) * size)
        shares = softmax(np.array([query[channels] @ key[channels] / math.sqrt(size) for key in keys]))
        for share, value in zip(shares, values, strict=True):
            out[channels] += share * value[channels]
    return out


def softmax(logits: Vector) -> Vector:
    exponentials: Vector = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def log_probability(logits: Vector, index: int) -> float:
    return math.log(softmax(logits)[index])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def quick_gelu(x: np.ndarray) -> np.ndarray:
    """CLIP's."""
    return x / (1 + np.exp(-1.702 * x))


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))
