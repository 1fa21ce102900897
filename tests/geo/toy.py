"""A captioner without a model for drawn pairs: what differs changed; red is a building, everything else a road."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from idc.captioning.contract import Candidate, Capability, Captioner, ClassMap, Description, SearchOptions

NAMES = ("background", "road", "building")


class DifferenceCaptioner(Captioner):
    """Its change map is 1 where a channel differs by more than 30.

    Args:
        classes: it has class maps.
        log: a file that gets a line for each pair.
        pause: seconds per batch.
    """

    capabilities: frozenset[Capability] = frozenset({"map"})
    trained_on: str | None = None

    def __init__(self, classes: bool = False, log: Path | None = None, pause: float = 0.0) -> None:
        self.classes, self.log, self.pause = classes, log, pause

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        assert options.change_map
        time.sleep(self.pause)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write("pair\n" * len(befores))
        return [self._described(before, after) for before, after in zip(befores, afters, strict=True)]

    def _described(self, before: np.ndarray, after: np.ndarray) -> Description:
        assert before.shape == after.shape
        changed = abs(before.astype(int) - after).max(axis=2) > 30
        red = after[..., 0].astype(int) > after[..., 1].astype(int) + 60
        text = "a building appeared" if (changed & red).any() else "a road appeared"
        extras: dict[str, Any] = {}
        if self.classes:
            extras["class_map"] = ClassMap(np.where(changed, np.where(red, 2, 1), 0).astype(np.uint8), NAMES)
        caption = text if changed.any() else "there is no change"
        return Description((Candidate(caption, -0.1),), change_map=changed.astype(np.float32), **extras)


class CaptionerWithoutMap(DifferenceCaptioner):
    """It has no capability."""

    capabilities: frozenset[Capability] = frozenset()
