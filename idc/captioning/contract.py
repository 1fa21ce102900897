"""The contract between the systems and everything that uses a captioner: captions, confidences, change maps, verdicts.

Every system's ``load_captioner(artifact, device, speed)`` returns a :class:`Captioner`. What only some
captioners can do is a capability: without it the method raises :class:`Unsupported`. Imports no torch, and at the top
nothing that is slow to import: the settings of most commands import this module, and `--help` needs no image.

Long because what a captioner returns and what it can do are one contract, read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from idc.captioning.claims import Claim as Claim
from idc.captioning.claims import ClaimKind as ClaimKind
from idc.captioning.claims import Region as Region
from idc.captioning.claims import json_able
from idc.captioning.criteria import criteria_text
from idc.data.schema import Turn

if TYPE_CHECKING:
    import numpy as np

    from idc.captioning.counts import Counts
    from idc.data.pdf import PlacedWord

Images = Sequence["np.ndarray"]
"""The images before, or after, of some pairs: uint8 RGB (H, W, 3) of any sizes."""

MAP_SIDE = 1024
"""Maximum length of a drawn change map's longer side, in pixels."""
FAMILIAR_FROM = 0.02
"""Smallest familiarity at which a pair counts as one of the training domain; about this share of the domain's own pairs
is below it (false alarms)."""
UNSURE_BETWEEN = (0.25, 0.75)
"""For calibrated probabilities of a change in this open interval the verdict is "unsure"."""

Verdict = Literal["changed", "unchanged", "unsure"]
Speed = Literal["auto", "exact", "fast", "bf16"]
Capability = Literal["map", "score", "sample", "answer"]

CAPABILITIES: dict[Capability, str] = {
    "map": "compute a change map",
    "score": "compute the probability of given captions",
    "sample": "sample captions at random",
    "answer": "answer questions about a pair",
}
"""Capability -> what a captioner with it can do."""


class Candidate(NamedTuple):
    """A caption with its log-probability: natural logarithm, mean over the generated tokens, end token included."""

    caption: str
    log_probability: float

    @property
    def confidence(self) -> float:
        """The geometric mean of the tokens' probabilities, in [0, 1]."""
        return math.exp(min(0.0, self.log_probability))

    def to_dict(self) -> dict[str, Any]:
        return {"caption": self.caption, "confidence": self.confidence, "log_probability": self.log_probability}


class CaptionScore(NamedTuple):
    """The log-probability of a given caption: natural logarithm, sum over its tokens, end token included."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        return self.total / self.tokens


class InputSize(NamedTuple):
    """Height and width, in pixels, at which the model saw the images of a pair, without what was padded."""

    before: tuple[int, int]
    after: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        return {"before": list(self.before), "after": list(self.after)}


@dataclass(frozen=True)
class Answer:
    """The captioner's message in a dialogue about a pair. ``log_probability``: see :class:`Candidate`;
    ``prompt_tokens``: number that the model read, image tokens included; ``cut_off``: it ended at the maximum length
    and not by an end token."""

    text: str
    log_probability: float
    tokens: int
    prompt_tokens: int
    cut_off: bool = False
    input_size: InputSize | None = None

    @property
    def confidence(self) -> float:
        return Candidate(self.text, self.log_probability).confidence


class ClassMap(NamedTuple):
    """What kind of thing changed: uint8 (Y, X) over the image after, at the model's own resolution, of indices into
    ``names``, of which the first is what did not change."""

    classes: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """The description of one pair.

    Attributes:
        candidates: at least one, best first, no text twice.
        changed: probability that anything changed, calibrated on held-out pairs; None without a calibration.
        change_map: float32 (Y, X) in [0, 1] over the image after, at the model's own resolution; None if not requested.
        class_map: the class of every pixel, if a change map is requested; None for a captioner without classes.
        evidence: the system's further evidence of a change, by name; input of the calibration.
        familiarity: share of held-out pairs of the training domain that are at least as unusual as this one, in (0, 1]
            (a p-value, :mod:`idc.captioning.familiarity`); None if it was never fitted.
        trained_on: training data, for the warning; None if the artifact does not record it.
        attributes: what changed, JSON-able: ``type``, and ``before`` and ``after``, each None or the changed object's
            ``size``, ``color``, ``material`` and ``shape``; each a ``value`` with its ``probability``.
        input_size: at what size the model saw the images.
        tokens: numbers of tokens that were read and written for the candidates, where a text is read.
        regions: in which the images differ, the largest first; None if they were not looked for.
        claims, objects_text: what changed by the captioner ``objects``, as data and as its sentence; None if it was not
            asked.
        captioner, chosen: name of the captioner that wrote the caption, and why it, where the one that was asked chose
            it (``auto``).
        doubt: why the captioner itself could not decide whether anything changed; None if it could.
        note: on the images themselves, for the warning; None for usual ones.
    """

    candidates: tuple[Candidate, ...]
    changed: float | None = None
    change_map: np.ndarray | None = None
    class_map: ClassMap | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    familiarity: float | None = None
    trained_on: str | None = None
    attributes: Mapping[str, Any] | None = None
    input_size: InputSize | None = None
    tokens: tuple[int, int] | None = None
    regions: tuple[Region, ...] | None = None
    claims: tuple[Claim, ...] | None = None
    objects_text: str | None = None
    captioner: str | None = None
    chosen: str | None = None
    doubt: str | None = None
    note: str | None = None

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dict with the field names that every API uses; without maps, which are images."""
        return {
            **self.best.to_dict(),
            **self.assessment,
            "captioner": self.captioner,
            "chosen": self.chosen,
            "input_size": self.input_size and self.input_size.to_dict(),
            "attributes": self.attributes,
            "regions": json_able(self.regions),
            "claims": json_able(self.claims),
            "objects_text": self.objects_text,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }

    @property
    def familiar(self) -> bool | None:
        """Whether the pair resembles the training domain: a familiarity of at least :data:`FAMILIAR_FROM`."""
        return None if self.familiarity is None else self.familiarity >= FAMILIAR_FROM

    @property
    def warning(self) -> str | None:
        """Warning for a pair that is not familiar, with the training data, and on the images; None for others."""
        if self.familiar is not False:
            return self.note
        seen = "other images than these" if self.trained_on is None else self.trained_on
        return " ".join(filter(None, [f"This model has only seen {seen}. Do not trust it here.", self.note]))

    @property
    def verdict(self) -> Verdict:
        """Whether anything changed, from the best caption and the calibrated probability: "unsure" if the pair is not
        familiar, or the probability is in :data:`UNSURE_BETWEEN` or contradicts the caption. Without a probability the
        caption alone decides, unless the captioner itself could not (:attr:`doubt`)."""
        if self.verdict_text is not None:
            return "unsure"
        return "unchanged" if self._reads_unchanged else "changed"

    @property
    def verdict_text(self) -> str | None:
        """Reason of the verdict "unsure"; None for the other verdicts."""
        if self.familiar is False:
            return "the images are unlike those that the model was trained on"
        if self.changed is None:
            return self.doubt
        low, high = UNSURE_BETWEEN
        unchanged = self._reads_unchanged
        if self.changed <= low if unchanged else self.changed >= high:
            return None
        reads = "says that nothing changed" if unchanged else "names a change"
        probability = f"the calibrated probability that anything changed is {100 * self.changed:.0f} %"
        if low < self.changed < high:
            return f"the caption {reads}, and {probability}, too near one half to decide"
        return f"the caption {reads}, but {probability}"

    @property
    def _reads_unchanged(self) -> bool:
        from idc.metrics.change_types import says_no_change

        return says_no_change(self.best.caption)

    @property
    def assessment(self) -> dict[str, Any]:
        """How far the description can be trusted, JSON-able, with the field names that every API uses."""
        return {
            "changed_probability": self.changed,
            "familiarity": self.familiarity,
            "familiar": self.familiar,
            "verdict": self.verdict,
            "verdict_text": self.verdict_text,
            "warning": self.warning,
        }


def assessment_text(fields: Mapping[str, Any]) -> str:
    """What is written behind a caption: "confidence 83 %; changed (probability of a change 97 %)". Without the
    confidence where no model wrote the caption. ``fields``: of :meth:`Description.to_dict`, or a row of a table."""
    verdict = fields["verdict"]
    if fields["verdict_text"] is not None:
        verdict = f"{verdict}: {fields['verdict_text']}"
    elif fields["changed_probability"] is not None:
        verdict = f"{verdict} (probability of a change {100 * fields['changed_probability']:.0f} %)"
    if fields["caption"] == fields["objects_text"]:
        return str(verdict)
    return f"confidence {100 * fields['confidence']:.0f} %; {verdict}"


def sentence_without_model(fields: Mapping[str, Any]) -> str | None:
    """What `objects` says, as the sentence to show before a caption that is not to be trusted; None for other captions.
    ``fields``: as in :func:`assessment_text`."""
    if fields["familiar"] is not False or fields["objects_text"] is None:
        return None
    return f"objects: {fields['objects_text']}"


def draw_map(change_map: np.ndarray, size: Sequence[int], side: int = MAP_SIDE) -> np.ndarray:
    """Draw a change map (Y, X) at the height and width ``size`` of an image, or smaller, so that no side is longer than
    ``side``: uint8 grey (H, W), 255 for 1."""
    import numpy as np

    from idc.metrics.change_maps import upsample

    scale = min(1.0, side / max(size))
    values = upsample(change_map, [max(1, round(length * scale)) for length in size])
    return (255 * values.clip(0, 1)).round().astype(np.uint8)


def number_of_pairs(befores: Images, afters: Images) -> int:
    """Number of pairs of a batch; a ValueError without as many images before as after."""
    if len(befores) != len(afters):
        raise ValueError(f"{len(befores)} before and {len(afters)} after images: give as many of each")
    return len(befores)


def equal_outside(before: np.ndarray, after: np.ndarray, region_of_interest: np.ndarray | None) -> np.ndarray:
    """The image before with the pixels of the image after where differences do not count (bool (H, W) over the image
    after); images of other sizes are stretched."""
    if region_of_interest is None:
        return before
    import cv2
    import numpy as np

    shape = before.shape[1::-1]
    other = after if after.shape == before.shape else cv2.resize(after, shape, interpolation=cv2.INTER_AREA)
    inside = cv2.resize(region_of_interest.astype(np.uint8), shape, interpolation=cv2.INTER_NEAREST) > 0
    return np.where(inside[..., None], before, other)


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a captioner; pairs with equal options may share a batch. A ValueError refuses fewer beams than
    candidates, and less than one of either."""

    beams: int | None = None
    """Of the search, 1 is greedy; None for the number that the artifact was validated with, or for as many as there are
    candidates, if these are more."""
    candidates: int = 1
    """Maximum number of captions of a pair."""
    change_map: bool = False
    """Also compute change maps (capability "map")."""
    counts: Counts | None = None
    """What counts as a change; None for everything."""
    criteria: str | None = None
    """The same in own words, or a context of :mod:`idc.captioning.criteria`, for a model that reads language."""
    words: tuple[tuple[PlacedWord, ...], tuple[PlacedWord, ...]] | None = None
    """The words of two drawn images, where they are known and ``objects`` need not read them."""

    def __post_init__(self) -> None:
        beams, candidates = self.beams, self.candidates
        if candidates < 1 or (beams is not None and beams < 1):
            raise ValueError(f"beams and candidates must be at least 1, got beams={beams}, candidates={candidates}")
        if beams is not None and beams < candidates:
            raise ValueError(
                f"candidates={candidates} need as many beams, got beams={beams}; ask for beams={candidates}, or for "
                "none"
            )
        if self.criteria is not None:
            criteria_text(self.criteria)

    def beams_of(self, validated: int) -> int:
        """Beams of the search of an artifact that was validated with this number."""
        return max(validated, self.candidates) if self.beams is None else self.beams

    def check(self, captioner: Captioner) -> None:
        """Refuse, by :class:`Unsupported` or another ValueError, what a captioner cannot do."""
        if self.change_map:
            require(captioner, "map")
        if self.counts is not None and not captioner.reads_counts:
            raise ValueError(
                "counts: this captioner names whatever it takes for a change; name another, as objects or a "
                "vision-language model"
            )
        if self.criteria is not None and not captioner.reads_criteria:
            raise ValueError(
                "criteria: this captioner reads no language; name a vision-language model, or use counts with objects"
            )

    @property
    def paragraph(self) -> str:
        """What a model is told of what counts; empty for everything."""
        criteria = None if self.criteria is None else criteria_text(self.criteria)
        return " ".join(filter(None, [self.counts.prompt() if self.counts else None, criteria]))


class Unsupported(ValueError):
    """A captioner lacks a capability."""

    def __init__(self, captioner: Captioner, capability: Capability) -> None:
        others = ", ".join(sorted(captioner.capabilities)) or "none"
        super().__init__(
            f"{capability}: this captioner cannot {CAPABILITIES[capability]} (its capabilities: {others}); leave the "
            "option out, or use another artifact"
        )


class Captioner(Protocol):
    """A loaded captioner. Images are uint8 RGB (H, W, 3) of any sizes; one call is one batch. A system's class inherits
    it and implements :meth:`_describe`.

    Attributes:
        capabilities: which optional parts it has (:data:`CAPABILITIES`).
        trained_on: short English text, as in "This model has only seen {trained_on}."; None if the artifact does not
            record it.
    """

    capabilities: frozenset[Capability]
    trained_on: str | None = None
    asks_change: bool = False
    """Whether a captioner of dialogues is also asked, per pair, if anything changed: evidence
    (:data:`idc.captioning.calibration.YES`) for a calibration that is fitted, or that reads it."""
    reads_counts: bool = False
    """Whether it reads :attr:`SearchOptions.counts`."""
    reads_criteria: bool = False
    """Whether it reads :attr:`SearchOptions.criteria`."""
    gains_from_batch: bool = True
    """Whether pairs take less time in a batch than alone. Else a server describes them one by one, so that none waits
    for the end of a batch."""

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def __call__(self, befores: Images, afters: Images) -> list[str]:
        return [description.best.caption for description in self.describe(befores, afters)]

    def describe(
        self,
        befores: Images,
        afters: Images,
        options: SearchOptions = SearchOptions(),
        *,
        region_of_interest: Sequence[np.ndarray | None] | None = None,
    ) -> list[Description]:
        """Captions with confidences, one description per pair.

        Args:
            region_of_interest: per pair, bool (H, W) over the image after, where differences count; None for all.

        Raises:
            ValueError: not as many images before as after.
        """
        if not number_of_pairs(befores, afters):
            return []
        if region_of_interest is None:
            return self._describe(befores, afters, options)
        return self._describe_regions(befores, afters, options, region_of_interest)

    def _describe(self, befores: Images, afters: Images, options: SearchOptions) -> list[Description]:
        """:meth:`describe` of at least one pair."""
        ...

    def _describe_regions(
        self, befores: Images, afters: Images, options: SearchOptions, region_of_interest: Sequence[np.ndarray | None]
    ) -> list[Description]:
        """As :meth:`_describe`, of regions: by default of images that are made equal outside."""
        equal = [equal_outside(*pair) for pair in zip(befores, afters, region_of_interest, strict=True)]
        return self._describe(equal, afters, options)

    def score(self, befores: Images, afters: Images, captions: Sequence[Sequence[str]]) -> list[list[CaptionScore]]:
        """Capability "score": the log-probability of each of a pair's captions under the model, by teacher forcing.
        That of a caption which the model itself generated equals the probability of its :class:`Candidate`."""
        raise Unsupported(self, "score")

    def sample(
        self, befores: Images, afters: Images, n: int, *, temperature: float = 1.0, seed: int = 0
    ) -> list[list[Candidate]]:
        """Capability "sample": ``n`` captions per pair, drawn token by token from logits divided by ``temperature``;
        texts may repeat. Their log-probabilities are always those at temperature 1. Equal seeds and batches give equal
        samples."""
        raise Unsupported(self, "sample")

    def answer(
        self,
        befores: Images,
        afters: Images,
        dialogues: Sequence[Sequence[Turn]],
        *,
        max_tokens: int | None = None,
        on_text: Sequence[Callable[[str], None] | None] | None = None,
    ) -> list[Answer]:
        """Capability "answer": the next message in a dialogue about each pair, by greedy search; one call is one
        batch.

        Args:
            dialogues: per pair an optional system turn, then user and assistant in turn, the last one the user's. Two
                :data:`idc.data.schema.IMAGE` marks in the users' turns stand for the images, before first; without
                marks both come first. A user's turn may be the two marks alone: the captioner's own request for a
                caption takes its place.
            max_tokens: maximum number of generated tokens; by default the captioner's own.
            on_text: per dialogue a function to call with each piece of its message as soon as it is generated, or None.
                The pieces are a beginning of the message's text; some captioners have none.

        Raises:
            ValueError: a dialogue is longer than the model can read, or its text has marks in it that the model
                reserves; the other dialogues of the batch are not answered either.
        """
        raise Unsupported(self, "answer")


def require(captioner: Captioner, capability: Capability) -> Captioner:
    """The captioner, if it has a capability; else :class:`Unsupported` is raised."""
    if not captioner.can(capability):
        raise Unsupported(captioner, capability)
    return captioner
