"""The systems, one folder each. This list is the only place that knows them all."""

from __future__ import annotations

import importlib
from types import ModuleType

SYSTEMS = ("procap",)


def load(name: str) -> ModuleType:
    """The ``task`` module of a system; every one offers ``load_captioner(artifact_dir)``.

    Raises:
        ValueError: if there is no such system.
    """
    if name not in SYSTEMS:
        raise ValueError(f"no system is called {name!r}; there are: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.task")
