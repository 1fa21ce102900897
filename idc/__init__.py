"""Image difference captioning: the pure library (no Ray, no MLflow)."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idc.api import Caption as Caption
    from idc.api import LoadedCaptioner as LoadedCaptioner
    from idc.api import evaluate as evaluate
    from idc.api import load as load

__version__ = "0.1.0"

SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "4000"
"""How often a thread of torch asks whether the others are ready before it sleeps. The library's own number, 300,000, is
milliseconds in which it keeps a core from the work of others: beside busy processes a step takes longer, at times many
times as long (BENCHMARKS.md). Read when torch is loaded."""
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)

PUBLIC = ("Caption", "LoadedCaptioner", "evaluate", "load")
"""Names of :mod:`idc.api`, which is imported when one of them is first used: importing the package loads nothing."""


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(importlib.import_module("idc.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
