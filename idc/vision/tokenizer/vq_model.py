"""diffusers' ``VQModel`` without the rest of diffusers, whose import takes longer than that of torch."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PACKAGES = tuple(f"diffusers.models.{name}" for name in ("autoencoders", "transformers", "unets"))
"""Packages that ``VQModel`` lies in or imports from. Each imports all models of its kind."""

_lock = threading.Lock()


@functools.cache
def vq_model() -> Any:
    """The class ``diffusers.VQModel``."""
    with _lock, _left_out():
        return importlib.import_module("diffusers.models.autoencoders.vq_model").VQModel


@contextmanager
def _left_out() -> Iterator[None]:
    """Context in which :data:`_PACKAGES` are empty, though their modules can be imported one by one; those that were
    imported before stay as they are. A later import finds all of them whole."""
    added = []
    try:
        for name in _PACKAGES:
            if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
                sys.modules[name] = importlib.util.module_from_spec(spec)  # not executed
                added.append(name)
        yield
    finally:
        for name in added:
            del sys.modules[name]
