"""Random weights from which a small model learns to see within minutes.

The random weights of transformers' classes are those of large models: a deviation of 0.02 in every layer, towers whose
layers begin at a tenth of their strength, positions at zero. A narrow model then passes next to nothing from its image
to its answers, and the language model learns the sentences long before the tower learns anything.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

_POSITIONS = 0.5
"""Amplitude of the sines of the tower's positions; patches have a deviation of about 1."""


@torch.no_grad()
def lively_weights(model: Any, generator: torch.Generator) -> None:
    """Draw all weights of a model anew so that every layer keeps the scale of its input.

    Matrices and kernels have the deviation 1 / sqrt(inputs), embeddings 1 / sqrt(width); biases, norms and class tokens
    stay as they are; layer scales are 1; learned positions of a tower are sines of row and column.
    """
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.Conv3d)):
            module.weight.normal_(0.0, module.weight[0].numel() ** -0.5, generator=generator)
        elif isinstance(module, nn.Embedding):
            if name.endswith(("position_embedding", "pos_embed")):
                module.weight.copy_(_sines(*module.weight.shape))
            else:
                module.weight.normal_(0.0, module.weight.shape[1] ** -0.5, generator=generator)
    for name, parameter in model.named_parameters():
        if name.endswith((".lambda_1", ".lambda_2")):
            parameter.fill_(1.0)
        elif name.endswith(".position_embeddings"):  # of the class token and the patches
            parameter[0, 1:] = _sines(*parameter[0, 1:].shape)


def _sines(places: int, width: int) -> Tensor:
    """(places, width): of the places of a square grid, row by row; half of the width is the row's, half the column's.
    The wavelengths are from half the grid to eight times that."""
    side = math.isqrt(places)
    assert side * side == places, f"{places} places are no square"
    assert width % 4 == 0
    count = width // 4
    at = 4 * math.pi * torch.arange(side) / side
    angles = at[:, None] * 2.0 ** (-5 * torch.arange(count) / count)
    one = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([one[:, None].expand(side, side, -1), one[None].expand(side, side, -1)], dim=-1)
    return _POSITIONS * grid.reshape(places, width)
