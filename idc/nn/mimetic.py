"""Initialisation of self-attention that compares: it subtracts from each token the content of similar tokens."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def compare_(packed: Tensor, out: Tensor, heads: int) -> None:
    """Initialise the weights of a self-attention, in place.

    Mimetic initialisation (Trockman and Kolter, 2023, "Mimetic Initialization of Self-Attention Layers"), with stronger
    diagonals: the product of query and key weights of a head is near 1.5 I, that of value and output weights near
    -0.8 I, each with noise of 0.3. Tokens at the same place in other frames have a similar position embedding, so the
    first layers compute differences between frames.

    Args:
        packed: queries, keys and values, (3 * D, D).
        out: the output projection, (D, D).
        heads: number of attention heads; divides D.
    """
    width = out.shape[1]
    head = width // heads
    eye, noise = torch.eye(width), 0.3 * width**-0.5
    queries, keys, values = packed.chunk(3)
    # Each of two factors gets the root of the singular values, so their product is the drawn matrix (of queries and
    # keys: its best approximation of a head's rank).
    for index in range(heads):
        rows = slice(index * head, (index + 1) * head)
        left, size, right = torch.linalg.svd(noise * torch.randn(width, width) + 1.5 * eye)
        queries[rows] = (left[:, :head] * size[:head].sqrt()).T
        keys[rows] = right[:head] * size[:head].sqrt().unsqueeze(1)
    left, size, right = torch.linalg.svd(noise * torch.randn(width, width) - 0.8 * eye)
    values.copy_(right * size.sqrt().unsqueeze(1))
    out.copy_(left * size.sqrt())
