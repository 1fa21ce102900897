"""The systems, one folder each. This list is the only place that knows them all."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idc.captioning.contract import Describer

SYSTEMS = ("procap",)

_NOT_ENTERED = frozenset({"artifact", "checkpoints", "best", "mlartifacts"})
"""Folders of runs that hold no further runs; MLflow's are copies."""


def load(name: str) -> ModuleType:
    """The ``task`` module of a system; every one offers ``load_captioner(artifact_dir, device)``.

    Raises:
        ValueError: if there is no such system.
    """
    if name not in SYSTEMS:
        raise ValueError(f"no system is called {name!r}; there are: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.task")


def load_captioner(artifact: str, device: str = "cpu") -> Describer:
    """The captioner of an artifact, of whatever system.

    Raises:
        ValueError: it is not an artifact of a captioner.
    """
    from idc.training.artifact import read_artifact

    captioner: Describer = load(read_artifact(artifact).system).load_captioner(artifact, device=device)
    return captioner


def is_captioner(artifact: str) -> bool:
    """Whether an artifact is a captioner of one of the systems; loads no torch.

    Raises:
        ValueError: it is not a whole artifact.
    """
    from idc.training.artifact import read_artifact

    found = read_artifact(artifact)
    if found.system not in SYSTEMS:
        return False
    return bool(importlib.import_module(f"idc.systems.{found.system}.config").is_captioner(found.config))


def newest_captioner(runs: str = "runs") -> str | None:
    """The artifact of the captioner that was written last in a folder of runs; None if there is none."""
    found: list[tuple[float, str]] = []
    for folder, names, _ in os.walk(runs):
        path = Path(folder) / "artifact"
        if "artifact" in names and (path / "config.json").is_file():
            found.append(((path / "config.json").stat().st_mtime, str(path)))
        names[:] = [name for name in names if name not in _NOT_ENTERED and not name.startswith(".")]
    for _, artifact in sorted(found, reverse=True):
        try:
            if is_captioner(artifact):
                return artifact
        except ValueError:  # damaged or half copied; an older one may be whole
            continue
    return None
