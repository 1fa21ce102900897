"""What a captioner tells about a pair besides its caption: the contract between the systems and all that use them.

Every system's ``load_captioner(artifact, device)`` returns a :class:`Describer`. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

MAP_SIDE = 1024
"""Longer side of a drawn change map at most, in pixels."""


class Candidate(NamedTuple):
    """A caption and how sure the model is of its words.

    Attributes:
        caption: the text.
        log_probability: natural logarithm, mean over the generated tokens, the end token included.
    """

    caption: str
    log_probability: float

    @property
    def confidence(self) -> float:
        """The geometric mean of the tokens' probabilities, in [0, 1]."""
        return math.exp(min(0.0, self.log_probability))

    def told(self) -> dict[str, Any]:
        """Caption, confidence and log-probability by name, as all interfaces tell them."""
        return {"caption": self.caption, "confidence": self.confidence, "log_probability": self.log_probability}


@dataclass(frozen=True)
class Description:
    """What is told of one pair.

    Attributes:
        candidates: best first, no text twice; at least one.
        changed: the probability that anything changed at all, calibrated on held-out pairs; None if the artefact was
            never calibrated.
        change_map: float32 (Y, X) in [0, 1] over the image after, at the model's own resolution; None if not asked for.
        evidence: what else the system sees, by name, of whether anything changed, beside its words; for calibration.
    """

    candidates: tuple[Candidate, ...]
    changed: float | None = None
    change_map: np.ndarray | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> Candidate:
        """The first candidate."""
        return self.candidates[0]


def upsample(change_map: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """A change map (Y, X) bilinearly at another height and width, float32."""
    from PIL import Image

    floats = Image.fromarray(change_map.astype(np.float32))
    return np.asarray(floats.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def draw_map(change_map: np.ndarray, size: Sequence[int], side: int = MAP_SIDE) -> np.ndarray:
    """A change map (Y, X) over an image.

    Args:
        size: height and width of the image.
        side: the longer side at most.

    Returns:
        uint8 grey (H, W), 255 for 1; smaller than the image, in its shape, if that is larger than ``side``.
    """
    scale = min(1.0, side / max(size))
    values = upsample(change_map, [max(1, round(length * scale)) for length in size])
    return (255 * values.clip(0, 1)).round().astype(np.uint8)


def beams_of(beams: int | None, candidates: int, validated: int) -> int:
    """Beams of a search for ``candidates`` captions: those asked for, else as many as the artefact was validated with,
    or as many as there are to be candidates, if that is more.

    Raises:
        ValueError: fewer beams than candidates are asked for, or less than one of either.
    """
    if candidates < 1 or (beams is not None and beams < 1):
        raise ValueError(f"beams and candidates must be at least 1, got beams={beams}, candidates={candidates}")
    if beams is not None and beams < candidates:
        raise ValueError(
            f"candidates={candidates} need as many beams, got beams={beams}; ask for beams={candidates}, or leave "
            "beams out"
        )
    return max(validated, candidates) if beams is None else beams


class Describer(Protocol):
    """A captioner in use. Images are uint8 RGB (H, W, 3) of any sizes; a call is one batch.

    Attributes:
        can_imagine: whether :meth:`imagine` has something to show.
    """

    can_imagine: bool

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        """One caption a pair."""
        ...

    def describe(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        *,
        beams: int | None = None,
        candidates: int = 1,
        change_map: bool = False,
    ) -> list[Description]:
        """Captions with confidences. The best is what :meth:`__call__` says, if the beams are the same.

        Args:
            beams: of the search, 1 is greedy; by default what the artefact was validated with, or as many as there are
                to be candidates, if that is more.
            candidates: captions a pair at most; more than one needs as many beams.
            change_map: also say where.

        Raises:
            ValueError: more candidates than beams.
        """
        ...

    def imagine(self, before: np.ndarray, after: np.ndarray) -> list[np.ndarray]:
        """Frames from before to after as the model sees them, uint8 (Y, X, 3).

        Raises:
            ValueError: the artefact cannot imagine.
        """
        ...
