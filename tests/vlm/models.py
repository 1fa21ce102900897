"""Small models of each family."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks.tiny_vlm import TinyConfig, make_tiny
from idc.vlm.base import FoundBase, find_base, load_model
from idc.vlm.config import FAMILIES, BaseConfig

if TYPE_CHECKING:
    pass


TEXTS = (
    "the small red metal cube was added",
    "the large blue rubber sphere has moved",
    "there is no difference between the two images",
    "What changed between the two images? Answer in one sentence.",
    "First image (before): Second image (after): user assistant system",
)
every_family = pytest.mark.parametrize("kind", FAMILIES)


@cache
def tiny_folder(kind: str, side: int = 64) -> Path:
    """The folder of a small model."""
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{kind}-"))
    return make_tiny(TinyConfig(family=kind, side=side), TEXTS * 4, folder)


@cache
def found(kind: str) -> FoundBase:
    return find_base(BaseConfig(source=str(tiny_folder(kind))))


@cache
def model(kind: str) -> Any:
    """The model with its weights; tests must not change it."""
    return load_model(tiny_folder(kind), BaseConfig(source=str(tiny_folder(kind))))


def picture(seed: int, height: int = 64, width: int = 64) -> np.ndarray:
    """An image uint8 (H, W, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
