"""The systems, one folder each: the only list of them, and their lazy loading."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idc.captioning.contract import Captioner, Dtype

SYSTEMS = ("procap",)

_NOT_ENTERED = frozenset({"artifact", "checkpoints", "best", "mlartifacts"})
"""Folders of runs that are not searched for runs; MLflow's are copies."""


def load(name: str) -> ModuleType:
    """The ``task`` module of a system; every one has ``load_captioner(artifact, device, dtype, speed)``.

    Raises:
        ValueError: there is no such system.
    """
    if name not in SYSTEMS:
        raise ValueError(f"unknown system {name!r}; available: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.task")


def load_captioner(
    artifact: str, device: str = "cpu", dtype: Dtype = "float32", speed: Mapping[str, bool] | None = None
) -> Captioner:
    """Load the captioner of an artifact of any system.

    Args:
        device: torch device, e.g. ``cuda``.
        dtype: number format of matrix products and convolutions.
        speed: optimisations of the system to switch on or off, by name.

    Raises:
        ValueError: it is not an artifact of a captioner, or the system does not have an optimisation.
    """
    from idc.training.artifact import read_artifact

    if faults := list(optimisation_faults(artifact, speed or {})):
        raise ValueError("\n".join(faults))
    system = load(read_artifact(artifact).system)
    captioner: Captioner = system.load_captioner(artifact, device=device, dtype=dtype, speed=speed or {})
    return captioner


def optimisation_faults(artifact: str, speed: Mapping[str, bool]) -> Iterator[str]:
    """Optimisations that an artifact's system does not have: the names are the fields of ``SpeedConfig`` in its
    ``config.py``; a system without one has none. Loads no torch.

    Raises:
        ValueError: it is not a whole artifact.
    """
    from idc.config import did_you_mean
    from idc.training.artifact import read_artifact

    system = read_artifact(artifact).system
    if not speed or system not in SYSTEMS:
        return
    schema = getattr(importlib.import_module(f"idc.systems.{system}.config"), "SpeedConfig", None)
    known = list(schema.model_fields) if schema is not None else []
    for name in speed:
        if name not in known:
            choice = f"it has: {', '.join(known)}" if known else "it has none"
            yield f"speed.{name}: {system} has no such optimisation{did_you_mean(name, known)}; {choice}"


def is_captioner(artifact: str) -> bool:
    """Whether an artifact is a captioner of one of the systems. Loads no torch.

    Raises:
        ValueError: it is not a whole artifact.
    """
    from idc.training.artifact import read_artifact

    found = read_artifact(artifact)
    if found.system not in SYSTEMS:
        return False
    return bool(importlib.import_module(f"idc.systems.{found.system}.config").is_captioner(found.config))


def newest_captioner(runs: str = "runs") -> str | None:
    """The most recently written captioner artifact in a folder of runs; None if there is none."""
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
