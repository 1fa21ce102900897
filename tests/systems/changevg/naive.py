"""Equations (5) to (14) of the paper a second time, from the weights of our model alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Batch norm by running statistics of a map (C, Y, X)."""
    return F.batch_norm(
        x[None], *(state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    )[0]


def conv(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """A convolution (1x1 or 3x3, same size)."""
    return F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], padding="same")


def deconv(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """A transposed convolution of kernel 4: twice the size."""
    return F.conv_transpose2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride=2, padding=1)


def fused(state: dict[str, Tensor], name: str, first: Tensor, second: Tensor) -> Tensor:
    """(5) to (7)."""
    alpha = conv(state, f"{name}.difference", second - first)
    alpha = alpha + (first * second).sum(0) / (first.norm(dim=0) * second.norm(dim=0))
    mixed = conv(state, f"{name}.fuse.0", torch.cat([first, alpha, second]))
    return conv(state, f"{name}.fuse.3", F.relu(norm(state, f"{name}.fuse.1", mixed)))


def mask_logits(state: dict[str, Tensor], levels: list[Tensor], refined: Tensor) -> Tensor:
    """(9) to (11) before the sigmoid, at half the image's size; ``levels``: the fused maps, of which (8) refined the
    last."""
    d = deconv(state, "map.finer.3", refined)
    for level in (2, 1, 0):
        d = deconv(state, f"map.finer.{level}", torch.cat([levels[level], d]))
    return conv(state, "map.head", d)


def transformed(state: dict[str, Tensor], first: Tensor, second: Tensor) -> Tensor:
    """(12) to (14), as tokens (S, E)."""
    x_1 = conv(state, "memory.join", torch.cat([first, second]))
    inner = conv(state, "memory.residual.1", conv(state, "memory.residual.0", x_1))
    x_2 = F.relu(norm(state, "memory.residual.2", inner))
    return (x_1 + conv(state, "memory.residual.4", x_2)).flatten(1).T
