"""Layers a second time, naively: from a module's weights by their names, one position and head at a time, in float64;
convolutions and norms are torch's.

The second implementations of whole models are made of these (``naive.py`` next to the tests of a system).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    def tensors(self, name: str) -> list[Tensor]:
        """Weight and, if there is one, bias."""
        names = (f"{name}.{part}" for part in ("weight", "bias"))
        return [torch.from_numpy(self.weights[part]) for part in names if part in self.weights]

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
        out: Vector = F.layer_norm(torch.from_numpy(x).double(), x.shape, *self.tensors(name)).numpy()
        return out

    def convolution(self, name: str, x_CYX: np.ndarray, stride: int, pad: Sequence[int]) -> np.ndarray:
        """``pad``: zeros at the left, right, top and bottom."""
        padded = F.pad(torch.from_numpy(x_CYX).double()[None], list(pad))
        return F.conv2d(padded, *self.tensors(name), stride=stride)[0].numpy()

    def group_norm(self, name: str, x_CYX: np.ndarray, groups: int) -> np.ndarray:
        return F.group_norm(torch.from_numpy(x_CYX).double()[None], groups, *self.tensors(name))[0].numpy()


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
