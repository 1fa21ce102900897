"""Requests and answers of the HTTP interface, and what passes between its front and the replicas. Imports no torch.

An image in JSON is a data URL (``data:image/png;base64,...``), plain base64, or an https URL of an allowed host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from idc.captioning.contract import Assessment, Candidate, Verdict

# -- between the front and the replicas ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """How pairs are to be captioned; pairs with equal options go through the model together.

    Attributes:
        beams: of the search; None for what the artifact was validated with.
        candidates: captions a pair.
        change_map: also say where.
        imagine: also show frames between the images.
    """

    beams: int | None = None
    candidates: int = 1
    change_map: bool = False
    imagine: bool = False


@dataclass(frozen=True)
class EncodedPair:
    """Two image files, as they came."""

    before: bytes
    after: bytes


@dataclass(frozen=True)
class Captioned:
    """What became of a pair.

    Attributes:
        captions: best first; empty if there is an ``error``.
        assessment: how far the captions can be trusted; None if there is an ``error``.
        change_map: PNG, 8-bit grey, of the size of the image after (its longer side at most 1024), or None.
        frames: PNGs from before to after, or None.
        error: why the pair has no caption: ``"before: ..."`` or ``"after: ..."``, for the user.
        model_ms: how long the model took for the batch that the pair was in.
        batch: pairs in that batch.
    """

    captions: tuple[Candidate, ...] = ()
    assessment: Assessment | None = None
    change_map: bytes | None = None
    frames: tuple[bytes, ...] | None = None
    error: str | None = None
    model_ms: float = 0.0
    batch: int = 0


@dataclass(frozen=True)
class Abilities:
    """What a loaded model reports of itself.

    Attributes:
        trained_on: training data, as in :class:`idc.captioning.contract.Captioner`.
        can_imagine: whether it has the capability "imagine".
        imagined_meaningful: whether a loss ties the generated frames to the change.
    """

    trained_on: str | None
    can_imagine: bool
    imagined_meaningful: bool


@dataclass(frozen=True)
class Served:
    """A model that can be asked for, as clients see it: without paths and addresses of this machine.

    Attributes:
        name: in requests.
        version: what the name stands for now: ``models:/captioner/7``, or of a folder ``sha256:1f2e3d4c5b6a``.
        error: why it cannot be served, or None.
        newer_error: why a newer version of it is not served, while ``version`` goes on serving; or None.
        abilities: what the version was trained on and can do; None if that is not known (yet).
    """

    name: str
    version: str
    error: str | None = None
    newer_error: str | None = None
    abilities: Abilities | None = None


class Busy(Exception):
    """The replicas take no more for now, or cannot; the text says why if it is not their queues: 503, Retry-After."""


class Backend(Protocol):
    """What the front asks for captions: replicas on Ray Serve, or (in tests) a captioner in this process."""

    def models(self) -> list[Served]:
        """The models, the default first."""
        ...

    async def caption(self, pairs: list[EncodedPair], model: str, options: Options) -> list[Captioned]:
        """The pairs' captions, in their order. ``model`` is a name of :meth:`models`.

        Raises:
            Busy: the queues are full.
            ValueError: the model cannot do what the options ask.
        """
        ...

    async def ready(self) -> str | None:
        """None if requests can be served, else why not."""
        ...

    async def replicas(self) -> dict[str, int]:
        """Replicas that run, by the deployment's name."""
        ...


# -- the HTTP interface -------------------------------------------------------------------------------------------


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Pair(_Closed):
    """A pair of images."""

    before: str = Field(min_length=1)
    """The image before: data URL, base64, or https URL of an allowed host."""
    after: str = Field(min_length=1)
    """The image after."""
    id: str | None = Field(None, max_length=200)
    """Comes back with the answer."""


class CaptionOptions(_Closed):
    """What is wanted of pairs; in a multipart form each is a field of its name."""

    model: str | None = Field(None, max_length=200)
    """A name of ``GET /v1/models``; by default the first."""
    beams: int | None = Field(None, ge=1)
    """Beams of the search, 1 is greedy; by default what the model was validated with."""
    candidates: int = Field(1, ge=1)
    """Captions a pair; more than one needs as many beams (and raises ``beams`` to it, if none are given)."""
    change_map: bool = False
    """Also answer a picture of where it changed."""
    imagine: bool = False
    """Also answer frames that the model imagines between the images."""
    stream: bool = False
    """Answer as server-sent events, pair by pair."""


class CaptionRequest(CaptionOptions):
    """One pair (``before``, ``after``) or several (``pairs``), and what is wanted."""

    before: str | None = Field(None, min_length=1)
    """The image before, of a request for one pair."""
    after: str | None = Field(None, min_length=1)
    """The image after."""
    pairs: list[Pair] | None = Field(None, min_length=1)
    """Several pairs."""

    @model_validator(mode="after")
    def _one_way(self) -> CaptionRequest:
        single = (self.before is not None, self.after is not None)
        if self.pairs is not None and any(single):
            raise ValueError("give either before and after, or pairs")
        if self.pairs is None and not all(single):
            raise ValueError("give before and after (one pair), or pairs")
        return self


class CandidateAnswer(_Closed):
    """A caption."""

    caption: str
    """The text."""
    confidence: float
    """The geometric mean of the tokens' probabilities, 0 to 1."""
    log_probability: float
    """Natural logarithm, mean over the tokens."""


class AssessedAnswer(_Closed):
    """How far the captions of a pair can be trusted. Every field is null if there is no caption."""

    changed_probability: float | None = None
    """Calibrated probability that anything changed; null if the model was never calibrated."""
    familiarity: float | None = None
    """Share of held-out pairs of the training domain that are at least as far from the training pairs as this one, 0 to
    1; null if the model was never calibrated for it."""
    familiar: bool | None = None
    """Whether the pair looks like one of the training domain; null like ``familiarity``."""
    verdict: Verdict | None = None
    """Whether anything changed: ``unsure`` where caption and ``changed_probability`` disagree, or where the probability
    is too near one half."""
    verdict_text: str | None = None
    """Why the verdict is ``unsure``, in words; otherwise null."""
    warning: str | None = None
    """Why this pair's answer cannot be trusted: the model has not seen such images; null if there is no such reason."""


class PairAnswer(AssessedAnswer):
    """What is told of a pair."""

    index: int
    """Its place in the request."""
    id: str | None = None
    """As the request has it."""
    caption: str | None = None
    """The best candidate's text; null if there is an error."""
    confidence: float | None = None
    """Of the best candidate."""
    log_probability: float | None = None
    """Of the best candidate."""
    candidates: list[CandidateAnswer] = []
    """All captions, best first."""
    change_map: str | None = None
    """PNG as data URL, 8-bit grey, white where it changed, of the shape of the image after; if asked for."""
    frames: list[str] | None = None
    """PNGs as data URLs, from before to after; if asked for."""
    error: str | None = None
    """Why there is no caption (a request for several pairs; one pair alone answers with status 400)."""


class Timing(_Closed):
    """Where the time went, in milliseconds."""

    total_ms: float
    """From the whole request to the answer."""
    model_ms: float
    """In the model, the longest of the batches that the pairs were in."""
    largest_batch: int
    """Pairs in the largest of these batches, others' pairs among them."""


class StreamEnd(_Closed):
    """The last event of a stream; the rest of the answer to a :class:`CaptionRequest`."""

    request_id: str
    """Also in the header X-Request-ID and in the logs."""
    model: str
    """The name it was asked by."""
    version: str
    """What that name stood for: a version of the registry, or a hash of the artifact's contents."""
    timing: Timing
    """Where the time went."""


class CaptionAnswer(StreamEnd):
    """The answer to a :class:`CaptionRequest`."""

    results: list[PairAnswer]
    """One a pair, in their order."""


class State(_Closed):
    """The answer to a probe."""

    status: str
    """``ok`` or ``ready``."""


class ErrorBody(_Closed):
    """What is wrong, in the shape of the OpenAI interface."""

    message: str
    """For people, with the fix."""
    type: str
    """Of which kind: ``invalid_request_error``, ``authentication_error``, ``not_found_error``, ``server_error``, ..."""
    param: str | None = None
    """The field: ``pairs.3.before``."""
    code: str
    """For programs: ``image_too_large``, ``not_an_image``, ``unknown_model``, ..."""


class ErrorAnswer(_Closed):
    """The answer to a request that failed."""

    error: ErrorBody
    """What is wrong."""
    request_id: str
    """Also in the header X-Request-ID and in the logs."""


class ApiError(Exception):
    """Ends a request with an :class:`ErrorAnswer`."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, retry_after_s: int | None = None
    ):
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after_s = retry_after_s

    def body(self, request_id: str) -> dict[str, Any]:
        """The JSON of the answer."""
        kinds = {
            401: "authentication_error",
            403: "authentication_error",
            404: "not_found_error",
            429: "rate_limit_error",
        }
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = ErrorBody(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorAnswer(error=error, request_id=request_id).model_dump()
