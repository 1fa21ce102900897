"""``auto``: the trained captioner for pairs that it is familiar with, ``objects`` for all others. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from idc.captioning.contract import (
    FAMILIAR_FROM,
    Answer,
    Capability,
    Captioner,
    Description,
    SearchOptions,
    beams_of,
    equal_outside,
    require,
)
from idc.captioning.familiarity import Familiarity
from idc.systems import OBJECTS


class AutoCaptioner(Captioner):
    """Two captioners, of which each pair gets one: :attr:`Description.captioner` names it.

    Without a fitted familiarity nobody can tell which pairs are unlike the training images; then the trained captioner
    captions all.

    Args:
        name: of the trained captioner.
        load: loads it; called when the first pair is familiar to it.
        familiarity: of the trained captioner.
        untrained: the captioner of all other pairs.
    """

    compares_parts: bool = True

    def __init__(
        self, name: str, load: Callable[[], Captioner], familiarity: Familiarity | None, untrained: Captioner
    ) -> None:
        self.name, self.familiarity, self.untrained = name, familiarity, untrained
        self._load = load

    @cached_property
    def trained(self) -> Captioner:
        """The trained captioner."""
        return self._load()

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]  # without loading it at the start
        return self.trained.capabilities

    @property
    def trained_on(self) -> str | None:  # type: ignore[override]
        return self.trained.trained_on

    @property
    def frames_meaningful(self) -> bool:
        """As the trained captioner's."""
        return require(self.trained, "imagine").frames_meaningful

    def imagine(self, before: np.ndarray, after: np.ndarray) -> list[np.ndarray]:
        """By the trained captioner."""
        return require(self.trained, "imagine").imagine(before, after)

    def answer(self, *arguments: Any, **options: Any) -> list[Answer]:
        """By the trained captioner."""
        return require(self.trained, "answer").answer(*arguments, **options)

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        beams_of(options.beams, options.candidates, validated=1)
        counted = options.counted or [None] * len(afters)
        familiar = [self._familiar(*pair) for pair in zip(befores, afters, counted, strict=True)]
        descriptions: list[Description | None] = [None] * len(afters)
        for chosen, name in ((True, self.name), (False, OBJECTS)):
            indices = [index for index, value in enumerate(familiar) if value is chosen]
            if not indices:
                continue
            described = (self.trained if chosen else self.untrained).describe(
                [befores[index] for index in indices],
                [afters[index] for index in indices],
                beams=options.beams,
                candidates=options.candidates,
                change_map=options.change_map,
                counted=[counted[index] for index in indices],
            )
            for index, description in zip(indices, described, strict=True):
                descriptions[index] = replace(description, captioner=name)
        return [description for description in descriptions if description is not None]

    def _familiar(self, before: np.ndarray, after: np.ndarray, counted: np.ndarray | None) -> bool:
        if self.familiarity is None:
            return True
        return self.familiarity(equal_outside(before, after, counted), after) >= FAMILIAR_FROM
