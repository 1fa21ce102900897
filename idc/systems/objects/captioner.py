"""The captioner of regions that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from idc.captioning.contract import Candidate, Capability, Captioner, Description, SearchOptions, Speed, beams_of
from idc.captioning.objects_config import NONE, ObjectsConfig
from idc.systems.objects.comparison import compare
from idc.systems.objects.detectors import embedded_installed, load_detector
from idc.systems.objects.text import reads_text, text_sentence
from idc.systems.objects.wording import INCOMPARABLE, region_of, region_sentence
from idc.training.artifact import read_artifact


class ObjectsCaptioner(Captioner):
    """Names the regions in which two images differ; nothing is trained.

    The confidence is no probability of words: it is r / (1 + r) for the ratio r of the largest difference to the
    threshold, or 1 / (1 + r) where no region changed, and 0.5 where the images are not comparable.
    """

    capabilities: frozenset[Capability] = frozenset({"map"})
    trained_on: str | None = None

    compares_parts: bool = True

    def __init__(self, config: ObjectsConfig | None = None):
        self._config = config = config or ObjectsConfig()
        self._text = reads_text() if config.text is None else config.text

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        """There is one candidate for each pair."""
        beams_of(options.beams, options.candidates, validated=1)
        return [
            _described(before, after, options.change_map, self._text)
            for before, after in zip(befores, afters, strict=True)
        ]


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
    if "detector" in settings.model_fields_set and settings.detector != NONE:
        load_detector(settings.detector, settings.names)  # its errors before any pair
    return _shared(settings)


@lru_cache(maxsize=4)
def _shared(config: ObjectsConfig) -> ObjectsCaptioner:
    return ObjectsCaptioner(config)


def _described(before: np.ndarray, after: np.ndarray, change_map: bool, read_text: bool) -> Description:
    comparison = compare(before, after)
    ratio = float(comparison.difference.max()) / comparison.threshold
    values = comparison.difference / (comparison.difference + comparison.threshold) if change_map else None
    if not comparison.comparable:
        return Description(
            (Candidate(INCOMPARABLE, math.log(0.5)),),
            change_map=values, regions=(), objects_text=INCOMPARABLE, doubt="the two images are not comparable",
        )  # fmt: skip
    regions = tuple(
        region_of(mask, comparison.before, comparison.after, after.shape[:2]) for mask in comparison.regions
    )
    text = region_sentence(regions, comparison.moved, comparison.small, comparison.shaded, comparison.light)
    words = ""
    # Strokes of letters are too thin for a region, and often for the difference: words may be all that changed.
    if (ratio > 1 or comparison.small) and not comparison.moved and read_text:
        words = text_sentence(before, after, comparison.warp)
        text = f"{text} {words}".rstrip() if regions or not words else words
    confidence = ratio / (1 + ratio) if regions or words else 1 / (1 + ratio)
    doubt = "positions differ, and a change cannot be told from what the other view hides" if comparison.moved else None
    return Description(
        (Candidate(text, math.log(confidence)),),
        change_map=values, regions=regions, objects_text=text, doubt=doubt,
    )  # fmt: skip
