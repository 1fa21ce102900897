"""The systems, one folder each. This list is the only place that knows them all."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SYSTEMS = ("procap",)


def load(name: str) -> ModuleType:
    """The ``task`` module of a system; every one offers ``load_captioner(artifact_dir)``.

    Raises:
        ValueError: if there is no such system.
    """
    if name not in SYSTEMS:
        raise ValueError(f"no system is called {name!r}; there are: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.task")


def load_captioner(artifact: str, device: str = "cpu") -> Callable[[list[np.ndarray], list[np.ndarray]], list[str]]:
    """The captioner of an artefact, of whatever system: before and after images to one caption a pair.

    Raises:
        ValueError: it is not an artefact of a captioner.
    """
    from idc.training.artifact import read_artifact

    return load(read_artifact(artifact).system).load_captioner(artifact, device=device)
