"""``auto``: the trained captioner for pairs that it is familiar with, ``objects`` for all others. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from idc.captioning.contract import (
    CAPABILITIES,
    FAMILIAR_FROM,
    Answer,
    Capability,
    Captioner,
    Description,
    SearchOptions,
    beams_of,
    equal_outside,
)
from idc.captioning.familiarity import Familiarity


class AutoCaptioner(Captioner):
    """Two captioners, of which each pair gets one: :attr:`Description.captioner` names it. Either is loaded when the
    first pair needs it. Without a fitted ``familiarity`` of the trained captioner nobody can tell which pairs are
    unlike the training images; then it captions all."""

    compares_parts: bool = True

    def __init__(
        self,
        trained_name: str,
        load_trained: Callable[[], Captioner],
        familiarity: Familiarity | None,
        untrained_name: str,
        load_untrained: Callable[[], Captioner],
    ) -> None:
        self.trained_name, self.untrained_name, self.familiarity = trained_name, untrained_name, familiarity
        self._load_trained, self._load_untrained = load_trained, load_untrained

    @cached_property
    def trained(self) -> Captioner:
        return self._load_trained()

    @cached_property
    def untrained(self) -> Captioner:
        return self._load_untrained()

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        """Change maps, which the other captioner always has, and answers if the trained one has them."""
        return frozenset(filter(self.can, CAPABILITIES))

    def can(self, capability: Capability) -> bool:
        """Loads the trained captioner only where it decides."""
        return capability == "map" or (capability == "answer" and self.trained.can(capability))

    @property
    def trained_on(self) -> str | None:  # type: ignore[override]
        return self.trained.trained_on

    def answer(self, *arguments: Any, **options: Any) -> list[Answer]:
        """By the trained captioner."""
        return self.trained.answer(*arguments, **options)

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        beams_of(options.beams, options.candidates, validated=1)
        counted = options.counted or [None] * len(afters)
        familiar = [self._familiar(*pair) for pair in zip(befores, afters, counted, strict=True)]
        descriptions: list[Description | None] = [None] * len(afters)
        for chosen, name in ((True, self.trained_name), (False, self.untrained_name)):
            indices = [index for index, value in enumerate(familiar) if value is chosen]
            if not indices:
                continue
            captioner = self.trained if chosen else self.untrained
            described = captioner.describe(
                [befores[index] for index in indices],
                [afters[index] for index in indices],
                beams=options.beams,
                candidates=options.candidates,
                change_map=options.change_map and captioner.can("map"),
                counted=[counted[index] for index in indices],
            )
            for index, description in zip(indices, described, strict=True):
                descriptions[index] = replace(description, captioner=name)
        return [description for description in descriptions if description is not None]

    def _familiar(self, before: np.ndarray, after: np.ndarray, counted: np.ndarray | None) -> bool:
        if self.familiarity is None:
            return True
        return self.familiarity(equal_outside(before, after, counted), after) >= FAMILIAR_FROM
