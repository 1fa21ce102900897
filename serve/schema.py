"""Requests and responses of ``/v1/captions``, probes and errors. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import UploadFile
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from idc.captioning.contract import Claim, Region, Verdict
from idc.captioning.counted import parts_of
from serve.backend import ObjectsOption, Options, PolygonsOption

MAX_BEAMS = 8
"""Most captions of a pair, and widest search."""
MAX_PARTS = 64
"""Most boxes and masks of ``ignore``, and of ``only``."""


def _parts(values: Any) -> tuple[Any, ...]:
    """Boxes, and masks as files or data URLs, of the values of a field."""
    values = values if isinstance(values, list | tuple) else [values]
    masks = [value for value in values if hasattr(value, "read")]
    parts = (*parts_of([value for value in values if not hasattr(value, "read")]), *masks)
    if len(parts) > MAX_PARTS:
        raise ValueError(f"{len(parts)} boxes and masks exceed the limit of {MAX_PARTS}")
    return parts


_Box = Annotated[list[float], Field(min_length=4, max_length=4)]
Parts = Annotated[tuple[Any, ...], BeforeValidator(_parts, json_schema_input_type=list[_Box] | str)]
"""Parts of the image after: boxes, and masks."""
FormParts = Annotated[tuple[Any, ...], BeforeValidator(_parts, json_schema_input_type=list[UploadFile | str])]
"""The same in a form."""


class ClosedModel(BaseModel):
    """A request or response whose fields are all named in its schema."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class CaptionForm(ClosedModel):
    """A multipart form: one pair or several, and options."""

    before: list[UploadFile] = Field(min_length=1)
    """The image file before; of several pairs one each, in order."""
    after: list[UploadFile] = Field(min_length=1)
    """The image file after, likewise."""
    model: str | None = Field(None, max_length=200)
    """A model name from ``GET /v1/models``; by default the first."""
    beams: int | None = Field(None, ge=1, le=MAX_BEAMS)
    """Beam width of the search, 1 for greedy; by default the width that the model was validated with."""
    candidates: int = Field(1, ge=1, le=MAX_BEAMS)
    """Captions per pair; ``beams`` must be at least as large (and is raised to it if omitted)."""
    change_map: bool = False
    """Also return a map of where the pair changed."""
    objects: ObjectsOption = Options.objects
    """Also say what ``objects`` says, without training: never, for pairs that the model is not familiar with, or
    always."""
    ignore: FormParts = ()
    """What does not count, in all pairs: boxes ``[[left, top, right, bottom], ...]`` in pixels of the image after, or
    as shares from 0 to 1; or masks, image files that are white there."""
    only: FormParts = ()
    """The only part that counts, in all pairs; likewise."""
    polygons: PolygonsOption = "never"
    """Also return the changes as polygons in longitude and latitude: never, of pairs of two GeoTIFFs, or always, where
    other images are refused. The model needs a change map, the server rasterio."""
    stream: bool = False
    """Respond by server-sent events, pair by pair."""


class CandidateAnswer(ClosedModel):
    """A caption."""

    caption: str
    confidence: float
    """The geometric mean of the tokens' probabilities, 0 to 1."""
    log_probability: float
    """Natural logarithm, mean over the tokens."""


class InputSizeAnswer(ClosedModel):
    """Height and width in pixels at which the model saw the images; larger ones were resized to it."""

    before: list[int] = Field(min_length=2, max_length=2)
    after: list[int] = Field(min_length=2, max_length=2)


class AssessedAnswer(ClosedModel):
    """How far the captions of a pair can be trusted. Every field is null if there is no caption; in an answer to a
    question only ``input_size`` is not."""

    changed_probability: float | None = None
    """Calibrated probability that anything changed; null if the model is not calibrated."""
    familiarity: float | None = None
    """Share of held-out pairs of the training domain that are at least as far from the training pairs as this one, 0 to
    1; null if the model is not calibrated for it."""
    familiar: bool | None = None
    """Whether the pair resembles the training domain; null if ``familiarity`` is null."""
    verdict: Verdict | None = None
    """Whether anything changed; ``unsure`` if the model is not familiar with the pair, if caption and
    ``changed_probability`` disagree, or if the probability is too close to one half."""
    verdict_text: str | None = None
    """Why the verdict is ``unsure``, in words; otherwise null."""
    warning: str | None = None
    """Why the result cannot be trusted: the model has not seen such images; otherwise null."""
    captioner: str | None = None
    """The captioner that ``auto`` chose: ``objects``, or a trained one; null of another model."""
    objects_text: str | None = None
    """What changed as ``objects`` says it, which nothing was trained for; to be read before the caption of a pair that
    the model is not familiar with. Null if it was not asked."""
    claims: list[Claim] | None = None
    """The same as data; null if it was not asked."""
    input_size: InputSizeAnswer | None = None
    """At what size the model saw the images; null if it does not report it."""


class ClassAnswer(ClosedModel):
    """A class of what changed, with the number of its regions."""

    name: str
    count: int
    share: float
    """Share of the image's area that it covers, 0 to 1."""
    positions: list[str]
    """The cell of a 3x3 grid of each region, such as ``top left corner``."""


class ClassesAnswer(ClosedModel):
    """What kinds of thing changed, and where."""

    map: str
    """PNG as data URL, 8-bit grey, at the model's own resolution, over the image after: 0 where nothing changed, else
    the number of the class in ``counts``, from 1 on."""
    counts: list[ClassAnswer]
    """The classes of the model, also those without a region."""


class SceneAnswer(ClosedModel):
    """The changes of a pair of GeoTIFFs on the ground, and the images as the model got them (PNGs as data URLs, their
    longer side at most 1024)."""

    sentence: str
    """Number, areas and positions of the changes, in words."""
    geojson: dict[str, Any]
    """A feature collection in longitude and latitude (EPSG:4326). Properties of a feature: ``class``, ``area_m2``,
    ``score``, ``position``, ``caption``, ``confidence``. With ``left_out`` if there are more than 1,000."""
    before: str
    after: str


class PairAnswer(AssessedAnswer):
    """The result of a pair: its best caption and what is known about it, or why it has none."""

    index: int
    """Index of the pair in the request."""
    caption: str | None = None
    confidence: float | None = None
    log_probability: float | None = None
    candidates: list[CandidateAnswer] = []
    """All captions, best first."""
    attributes: dict[str, Any] | None = None
    """The change as values with probabilities: ``type``, and the changed object's attributes ``before`` and
    ``after``; null for models that only write captions."""
    change_map: str | None = None
    """PNG as data URL, 8-bit grey, white where the pair changed, with the shape of the image after; null unless
    requested."""
    classes: ClassesAnswer | None = None
    """What kinds of thing changed, next to a change map; null for models without classes."""
    scene: SceneAnswer | None = None
    """The changes on the ground, of two GeoTIFFs; null unless polygons are requested."""
    regions: list[Region] | None = None
    """The regions in which the images differ, the largest first; null if they were not looked for."""
    error: str | None = None
    """Why the pair has no caption, in a request for several pairs; a request for one pair fails with status 400."""


class Timing(ClosedModel):
    """Milliseconds from the complete request to the response, and of the model for the slowest batch with one of the
    pairs; the size of the largest of these batches, including pairs of other requests."""

    total_ms: float
    model_ms: float
    largest_batch: int


class StreamEnd(ClosedModel):
    """The last event of a stream; a :class:`CaptionAnswer` without its results."""

    request_id: str
    """Also in the header X-Request-ID and in the log."""
    model: str
    version: str
    """Version of the model: from the registry, or a hash of the artifact's contents."""
    timing: Timing


class CaptionAnswer(StreamEnd):
    """The response to a :class:`CaptionForm`, with one result per pair, in order."""

    results: list[PairAnswer]


class State(ClosedModel):
    """The response to a probe: ``ok`` or ``ready``."""

    status: str


class ErrorBody(ClosedModel):
    """An error in the shape of the OpenAI interface."""

    message: str
    """For people: what failed and what to do."""
    type: str
    """Kind of error: ``invalid_request_error``, ``authentication_error``, ``not_found_error``, ``server_error``, ..."""
    param: str | None = None
    """The faulty field, such as ``pairs.3.before``; null if there is none."""
    code: str
    """For programs: ``image_too_large``, ``not_an_image``, ``unknown_model``, ..."""


class ErrorAnswer(ClosedModel):
    """The response to a failed request; its id is also in the header X-Request-ID and in the log."""

    error: ErrorBody
    request_id: str
