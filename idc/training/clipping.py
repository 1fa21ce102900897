"""Clipping of gradients: one norm for all groups of parameters together, or of a group by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from idc.training.config import TrainConfig

CLIP_NORM = "clip_norm"
"""Key of a group's own limit, which no optimizer knows."""


class ClippedPart(NamedTuple):
    """Parameters with one norm.

    Attributes:
        name: of the group; empty for all groups without a limit of their own.
        limit: of the norm; 0 does not clip.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    limit: float


def clipped_parts(groups: Sequence[Mapping[str, Any]], train: TrainConfig) -> list[ClippedPart]:
    """All groups without a limit of their own together, then each other group."""
    shared = [parameter for group in groups if group[CLIP_NORM] is None for parameter in group["params"]]
    single = [
        ClippedPart(group["name"], group["params"], group[CLIP_NORM])
        for group in groups
        if group[CLIP_NORM] is not None
    ]
    return [*([ClippedPart("", shared, train.clip_norm)] if shared else []), *single]


def clip_gradients(parts: Sequence[ClippedPart]) -> list[Tensor]:
    """Clip the gradients of whole parameters; the norm of each part before. Without a limit it is only measured."""
    return [torch.nn.utils.clip_grad_norm_(part.parameters, part.limit or float("inf")) for part in parts]


def clip_deepspeed_gradients(parts: Sequence[ClippedPart], zero_stage: int) -> list[Tensor]:
    """As :func:`clip_gradients`, for parameters that DeepSpeed holds."""
    from deepspeed import utils

    # ZeRO-3 has functions for a rank's part; those for whole gradients fail there where the last part is padded.
    local = zero_stage == 3
    read, write = (
        (utils.safe_get_local_grad, utils.safe_set_local_grad)
        if local
        else (utils.safe_get_full_grad, utils.safe_set_full_grad)
    )
    norms = []
    for part in parts:
        gradients = [(parameter, grad) for parameter in part.parameters if (grad := read(parameter)) is not None]
        norm = torch.nn.utils.get_total_norm([grad for _, grad in gradients])
        if local:
            square = norm.square()
            dist.all_reduce(square)
            norm = square.sqrt()
        norms.append(norm)
        if part.limit:
            scale = (part.limit / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
            for parameter, grad in gradients:
                write(parameter, grad * scale)
    return norms


def total_norm(norms: Sequence[Tensor]) -> Tensor:
    """The norm of all parts together."""
    return torch.stack(list(norms)).norm() if len(norms) > 1 else norms[0]


def norms_by_name(parts: Sequence[ClippedPart], norms: Sequence[Tensor]) -> dict[str, Tensor]:
    """The norms of the groups that have a limit of their own."""
    return {part.name: norm for part, norm in zip(parts, norms, strict=True) if part.name}
