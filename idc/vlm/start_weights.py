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

_FASTEST, _SHARPNESS, _CONTENT = 7, 5.0, 0.1
"""Of the comparing head: rotary frequencies used, amplitude of the biases, factor of the query and key weights."""
_TOKEN_SCALE = 0.65
"""Root mean square of an image's tokens after a projector of :func:`lively_weights`: of GELU of standard normals."""


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


@torch.no_grad()
def comparing_head(model: Any, offset: int, generator: torch.Generator) -> None:
    """Let the first head of the language model's first layer compare each token with the one ``offset`` before it: with
    the same position in the other image, for the tokens of a pair's second image.

    Biases of queries and keys alone place the attention: with b on the fastest rotary frequencies of the query, and b
    turned by ``offset`` positions as the key, their product is largest at that distance, whatever the tokens are. The
    head then subtracts what it reads, in a random subspace of its width.

    Args:
        model: after :func:`lively_weights`; its language model has rotary positions in one dimension, and biases of
            queries and keys.
    """
    language = model.model.language_model
    attention = language.layers[0].self_attn
    size = attention.head_dim
    turns = language.rotary_emb.inv_freq.cpu() * offset
    half = torch.zeros(size // 2)
    half[:_FASTEST] = _SHARPNESS
    attention.q_proj.weight[:size] *= _CONTENT
    attention.k_proj.weight[:size] *= _CONTENT
    attention.q_proj.bias[:size] = torch.cat([half, half])
    attention.k_proj.bias[:size] = torch.cat(
        [half * turns.cos() - half * turns.sin(), half * turns.cos() + half * turns.sin()]
    )
    width = attention.v_proj.weight.shape[1]
    subspace, _ = torch.linalg.qr(torch.randn(width, size, generator=generator))  # (width, size), orthonormal columns
    attention.v_proj.weight[:size] = subspace.T
    attention.o_proj.weight[:, :size] = -_TOKEN_SCALE * subspace


def _sines(positions: int, width: int) -> Tensor:
    """(positions, width): of the positions of a square grid, row by row; half of the width is the row's, half the
    column's. The wavelengths are from half the grid to eight times that."""
    side = math.isqrt(positions)
    assert side * side == positions, f"{positions} places are no square"
    assert width % 4 == 0
    count = width // 4
    at = 4 * math.pi * torch.arange(side) / side
    angles = at[:, None] * 2.0 ** (-5 * torch.arange(count) / count)
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([axis[:, None].expand(side, side, -1), axis[None].expand(side, side, -1)], dim=-1)
    return _POSITIONS * grid.reshape(positions, width)
