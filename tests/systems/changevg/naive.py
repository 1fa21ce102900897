"""Equations (5) to (14) of the paper a second time, from the weights of our model alone: position by position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Batch norm by running statistics of a map (C, Y, X)."""
    mean, variance, weight, bias = (
        state[f"{name}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def conv(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """A convolution (1x1 or 3x3, same size) as a sum over shifts."""
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    size, (_, height, width) = weight.shape[2], x.shape
    padded = F.pad(x, (size // 2,) * 4)
    out = bias.view(-1, 1, 1).expand(-1, height, width).clone()
    for dy in range(size):
        for dx in range(size):
            window = padded[:, dy : dy + height, dx : dx + width]
            out += torch.einsum("oc,cyx->oyx", weight[:, :, dy, dx], window)
    return out


def deconv(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """A transposed convolution of kernel 4, stride 2 and padding 1: every position adds its kernel."""
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    _, height, width = x.shape
    out = torch.zeros(weight.shape[1], 2 * height + 2, 2 * width + 2)
    for row in range(height):
        for column in range(width):
            kernel = torch.einsum("i,iokl->okl", x[:, row, column], weight)
            out[:, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] += kernel
    return out[:, 1:-1, 1:-1] + bias.view(-1, 1, 1)


def fused(state: dict[str, Tensor], name: str, first: Tensor, second: Tensor) -> Tensor:
    """(5) to (7)."""
    alpha = conv(state, f"{name}.difference", second - first)
    for row in range(first.shape[1]):
        for column in range(first.shape[2]):
            one, two = first[:, row, column], second[:, row, column]
            alpha[:, row, column] += (one @ two) / (one.norm() * two.norm())
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
