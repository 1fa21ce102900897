"""A captioner from a function, without a model: the whole contract for tests of what uses a captioner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from idc.captioning.contract import Candidate, Capability, Captioner, Description


class ToyCaptioner(Captioner):
    """Captions pairs by ``say(befores, afters)``; it has no optional capability."""

    capabilities: frozenset[Capability] = frozenset()
    trained_on: str | None = None

    def __init__(self, say: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[str]]) -> None:
        self._say = say

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        return self._say(befores, afters)

    def describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], *options: Any, **region: Any
    ) -> list[Description]:
        return [Description((Candidate(text, -0.5),)) for text in self(befores, afters)]
