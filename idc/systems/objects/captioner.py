"""The captioner of what changed: objects by name where a detector recognises them, else regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from idc.captioning.contract import (
    Candidate,
    Capability,
    Captioner,
    Claim,
    Description,
    SearchOptions,
    Speed,
    beams_of,
)
from idc.captioning.objects_config import NONE, ObjectsConfig
from idc.systems.objects.claims import Changes, claims_of
from idc.systems.objects.comparison import Comparison, compare
from idc.systems.objects.detectors import Detector, embedded_installed, load_detector
from idc.systems.objects.exact import exact_changes, is_exact_pair
from idc.systems.objects.sentence import sentence_of
from idc.systems.objects.text import reads_text, word_claims
from idc.systems.objects.wording import (
    INCOMPARABLE,
    MOVED,
    REGION,
    light_sentence,
    region_sentence,
    unchanged_sentence,
)
from idc.training.artifact import read_artifact

_HIDDEN = "positions differ, and a change cannot be told from what the other view hides"


class ObjectsCaptioner(Captioner):
    """Names the objects that came, went or moved between two images, and the regions that differ; nothing is trained.

    The confidence is no probability of words. It is that of the least certain claim in the sentence: of a named object
    the detector's highest score, of a region r / (1 + r) for the ratio r of its largest difference to the threshold;
    1 / (1 + r) where nothing changed, and 0.5 where the images are not comparable.
    """

    capabilities: frozenset[Capability] = frozenset({"map"})
    trained_on: str | None = None

    compares_parts: bool = True

    def __init__(self, config: ObjectsConfig | None = None):
        self._config = config = config or ObjectsConfig()
        self._text = reads_text() if config.text is None else config.text

    @cached_property
    def _detector(self) -> Detector | None:
        """Loaded at the first pair that differs."""
        return None if self._config.detector == NONE else load_detector(self._config.detector, self._config.names)

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        """There is one candidate for each pair."""
        beams_of(options.beams, options.candidates, validated=1)
        return [
            self._described(before, after, counted, options.change_map)
            for before, after, counted in zip(befores, afters, options.counted or [None] * len(afters), strict=True)
        ]

    def _described(
        self, before: np.ndarray, after: np.ndarray, counted: np.ndarray | None, change_map: bool
    ) -> Description:
        if self._config.mode == "exact" or (self._config.mode == "auto" and is_exact_pair(before, after)):
            return _exact(before, after, counted, change_map, self._text)
        comparison = compare(before, after, counted)
        ratio = float(comparison.difference.max()) / comparison.threshold
        values = comparison.difference / (comparison.difference + comparison.threshold) if change_map else None
        if not comparison.comparable:
            return Description(
                (Candidate(INCOMPARABLE, math.log(0.5)),), change_map=values, regions=(), claims=(),
                objects_text=INCOMPARABLE, doubt="the two images are not comparable",
            )  # fmt: skip
        changes = Changes(comparison, before.shape[:2], after.shape[:2])
        words: list[Claim] = []
        # Strokes of letters are too thin for a region, and often for the difference: words may be all that changed.
        if (ratio > 1 or comparison.small) and not comparison.moved and self._text:
            words = word_claims(before, after, comparison.warp, counted)
        claims, explained = claims_of(changes, before, after, self._detector, self._config.names, words)
        if self._detector is None:
            text = _region_text(changes, words)
        else:
            if comparison.moved:
                # What the other view hides differs too, and only an object with a name is no mere background.
                claims = tuple(claim for claim in claims if claim.object != REGION)
            text = _sentence(claims, explained, comparison)
        confidence = min((claim.confidence for claim in claims), default=1 / (1 + ratio))
        doubt = _HIDDEN if comparison.moved and not (self._detector and claims) else None
        return Description(
            (Candidate(text, math.log(max(confidence, 1e-6))),),
            change_map=values, regions=tuple(changes.regions), claims=claims, objects_text=text, doubt=doubt,
        )  # fmt: skip


def _exact(
    before: np.ndarray, after: np.ndarray, counted: np.ndarray | None, change_map: bool, read_text: bool
) -> Description:
    changes = exact_changes(before, after, counted, read_text)
    confidence = min((claim.confidence for claim in changes.claims), default=1.0)
    return Description(
        (Candidate(changes.sentence, math.log(confidence)),), change_map=changes.difference if change_map else None,
        regions=changes.regions, claims=changes.claims, objects_text=changes.sentence,
    )  # fmt: skip


def load_captioner(path: Path | str, device: str = "cpu", speed: Speed = "auto") -> ObjectsCaptioner:
    """The captioner of an artifact; it runs on the CPU in any case.

    Raises:
        ValueError: it is not an artifact of this system.
    """
    saved = read_artifact(path, system="objects").config
    return ObjectsCaptioner(ObjectsConfig(**{name: saved[name] for name in ObjectsConfig.model_fields}))


def usual_captioner(config: ObjectsConfig | None = None) -> ObjectsCaptioner:
    """The captioner with these settings, loaded once per process; without a detector where none was chosen and none is
    installed."""
    settings = config or ObjectsConfig()
    if "detector" not in settings.model_fields_set and not embedded_installed():
        settings = settings.model_copy(update={"detector": NONE})
    if settings.model_fields_set & {"detector", "names"} and settings.detector != NONE:
        load_detector(settings.detector, settings.names)  # its errors before any pair
    return _shared(settings)


@lru_cache(maxsize=4)
def _shared(config: ObjectsConfig) -> ObjectsCaptioner:
    return ObjectsCaptioner(config)


def _region_text(changes: Changes, words: Sequence[Claim]) -> str:
    """The sentence without names of objects."""
    text = region_sentence(changes.regions, *_state(changes.comparison))
    if not words:
        return text
    of_words = sentence_of(words, explained=False)
    return f"{text} {of_words}" if changes.regions else of_words


def _sentence(claims: Sequence[Claim], explained: bool, comparison: Comparison) -> str:
    if not claims:
        return unchanged_sentence("Nothing", *_state(comparison))
    text = f"{sentence_of(claims, explained)}{light_sentence(comparison.light)}"
    return f"{MOVED} {text}" if comparison.moved else text


def _state(comparison: Comparison) -> tuple[bool, bool, bool, float]:
    return comparison.moved, comparison.small, comparison.shaded, comparison.light
