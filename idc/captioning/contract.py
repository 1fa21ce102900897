"""What a captioner tells about a pair besides its caption: the contract between the systems and all that use them.

Every system's ``load_captioner(artifact, device)`` returns a :class:`Describer`. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from idc.metrics.changes import says_no_change

MAP_SIDE = 1024
"""Longer side of a drawn change map at most, in pixels."""
FAMILIAR_FROM = 0.02
"""Familiarity from which a pair counts as one of the training domain; about this share of the domain's own pairs is
below it (false alarms)."""
UNSURE_BETWEEN = (0.25, 0.75)
"""Calibrated probabilities of a change in this open interval decide nothing: the verdict is "unsure"."""

Verdict = Literal["changed", "unchanged", "unsure"]


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
class Assessment:
    """How far the description of a pair can be trusted; every API reports these fields under these names.

    Attributes:
        changed_probability, familiarity, familiar, verdict, verdict_text, warning: as in :class:`Description`.
    """

    changed_probability: float | None
    familiarity: float | None
    familiar: bool | None
    verdict: Verdict
    verdict_text: str | None
    warning: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dict with the field names that every API uses."""
        return asdict(self)


@dataclass(frozen=True)
class Description:
    """What is told of one pair.

    Attributes:
        candidates: best first, no text twice; at least one.
        changed: the probability that anything changed at all, calibrated on held-out pairs; None if the artifact was
            never calibrated.
        change_map: float32 (Y, X) in [0, 1] over the image after, at the model's own resolution; None if not asked for.
        evidence: what else the system sees, by name, of whether anything changed, beside its words; for calibration.
        familiarity: share of held-out pairs of the training domain that are at least as far from the training images as
            this one, in (0, 1] (a p-value, :mod:`idc.captioning.familiarity`); None if that was never fitted.
        trained_on: what the model was trained on, for the warning; None if the artifact does not record it.
    """

    candidates: tuple[Candidate, ...]
    changed: float | None = None
    change_map: np.ndarray | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    familiarity: float | None = None
    trained_on: str | None = None

    @property
    def best(self) -> Candidate:
        """The first candidate."""
        return self.candidates[0]

    @property
    def familiar(self) -> bool | None:
        """Whether the pair looks like one of the training domain: a familiarity of at least :data:`FAMILIAR_FROM`."""
        return None if self.familiarity is None else self.familiarity >= FAMILIAR_FROM

    @property
    def warning(self) -> str | None:
        """For a pair that is not familiar: that the answer cannot be trusted, and what the model was trained on."""
        if self.familiar is not False:
            return None
        seen = "other images than these" if self.trained_on is None else self.trained_on
        return f"This model has only seen {seen}. Do not trust it here."

    @property
    def verdict(self) -> Verdict:
        """Whether anything changed, from both the best caption and the calibrated probability.

        "unsure" if the probability is in :data:`UNSURE_BETWEEN`, or is on the other side of it than the caption.
        Without a probability the caption alone decides.
        """
        if self.verdict_text is not None:
            return "unsure"
        return "unchanged" if says_no_change(self.best.caption) else "changed"

    @property
    def verdict_text(self) -> str | None:
        """Why the verdict is "unsure", with both readings; None for the other verdicts."""
        if self.changed is None:
            return None
        low, high = UNSURE_BETWEEN
        unchanged = says_no_change(self.best.caption)
        if self.changed <= low if unchanged else self.changed >= high:
            return None
        reads = "says that nothing changed" if unchanged else "names a change"
        probability = f"the calibrated probability that anything changed is {100 * self.changed:.0f} %"
        if low < self.changed < high:
            return f"the caption {reads}, and {probability}, too near one half to decide"
        return f"the caption {reads}, but {probability}"

    @property
    def assessment(self) -> Assessment:
        """How far the description can be trusted."""
        return Assessment(
            changed_probability=self.changed,
            familiarity=self.familiarity,
            familiar=self.familiar,
            verdict=self.verdict,
            verdict_text=self.verdict_text,
            warning=self.warning,
        )


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
    """Beams of a search for ``candidates`` captions: those asked for, else as many as the artifact was validated with,
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
        imagined_meaningful: whether its frames are trained to show the change. Frames that no loss ties to the change
            are a curiosity, which a page folds away.
        trained_on: short English text, as "This model has only seen {trained_on}."; None if the artifact does not
            record it.
    """

    can_imagine: bool
    imagined_meaningful: bool
    trained_on: str | None

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
            beams: of the search, 1 is greedy; by default what the artifact was validated with, or as many as there are
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
            ValueError: the artifact cannot imagine.
        """
        ...
