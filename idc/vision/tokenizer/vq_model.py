"""diffusers' ``VQModel`` without the rest of diffusers, whose import takes three times as long as that of torch."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PACKAGES = tuple(f"diffusers.models.{name}" for name in ("autoencoders", "transformers", "unets"))
"""Packages that ``VQModel`` lies in or imports from. Each imports all models of its kind."""

_COMPILER = "torch._dynamo"
"""Imported by diffusers for the sake of ``torch.compile``; it does without where there is none."""

_lock = threading.Lock()


@functools.cache
def vq_model() -> Any:
    """The class ``diffusers.VQModel``."""
    with _lock, _left_out():
        return importlib.import_module("diffusers.models.autoencoders.vq_model").VQModel


@contextmanager
def _left_out() -> Iterator[None]:
    """Context in which :data:`_COMPILER` cannot be imported and :data:`_PACKAGES` are empty, though their modules can
    be imported one by one; not where they were imported before. A later import finds all of them whole."""
    import torch  # noqa: F401  its own import must find everything

    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None: not importable
    own = []
    try:
        if _COMPILER not in modules:
            modules[_COMPILER] = None
            own.append(_COMPILER)
        for name in _PACKAGES:
            if name not in modules and (spec := importlib.util.find_spec(name)) is not None:
                modules[name] = importlib.util.module_from_spec(spec)  # not executed
                own.append(name)
        yield
    finally:
        for name in own:
            del modules[name]
