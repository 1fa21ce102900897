"""The systems, one folder each. This list is the only place that knows them all."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idc.describe import Describer

SYSTEMS = ("procap",)


def load(name: str) -> ModuleType:
    """The ``task`` module of a system; every one offers ``load_captioner(artifact_dir, device)``.

    Raises:
        ValueError: if there is no such system.
    """
    if name not in SYSTEMS:
        raise ValueError(f"no system is called {name!r}; there are: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.task")


def load_captioner(artifact: str, device: str = "cpu") -> Describer:
    """The captioner of an artefact, of whatever system.

    Raises:
        ValueError: it is not an artefact of a captioner.
    """
    from idc.training.artifact import read_artifact

    captioner: Describer = load(read_artifact(artifact).system).load_captioner(artifact, device=device)
    return captioner
