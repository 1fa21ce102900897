"""Weights that are not those that were stored."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from idc.training.artifact import WEIGHTS


def disturbed_copy(artifact: Path, out: Path) -> Path:
    """A copy of an artifact whose weight matrices have noise of half their deviation; returns it."""
    shutil.copytree(artifact, out)
    random = torch.Generator().manual_seed(0)
    state = load_file(out / WEIGHTS)
    for name, value in state.items():
        if value.is_floating_point() and value.ndim > 1:
            state[name] = value + 0.5 * value.std() * torch.randn(value.shape, generator=random)
    save_file(state, out / WEIGHTS)
    return out
