"""Requests and responses of both interfaces: what FastAPI validates and its document describes. Imports no torch.

Responses are written as mappings (:mod:`serve.captions`, :mod:`serve.chat`): validating our own values costs more than
writing them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from idc.captioning.contract import Claim, Region, Verdict
from idc.captioning.counts import counts_of
from idc.captioning.criteria import criteria_text
from idc.captioning.region_of_interest import areas_of
from idc.util.option_values import listed
from serve.backend import ModelStatus, ObjectsOption, Options, PolygonsOption

_MAX_BEAMS = 8
"""Most captions of a pair, and widest search."""
_MAX_PARTS = 64
"""Most boxes and masks of ``ignore``, and of ``only``."""
_BOX_CHARS = 256
"""Characters of a box as a text, on average."""
_SEARCHED = "texts are searched for, not sampled"


class ClosedModel(BaseModel):
    """A request or response whose fields are all named in its schema."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class _Open(BaseModel):
    """A request body that may have unknown fields: new versions of OpenAI's clients send more."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


def _parts(values: Any) -> tuple[Any, ...]:
    """Boxes, and masks as files or data URLs, of the values of a field."""
    values = values if isinstance(values, list | tuple) else [values]
    texts = [value for value in values if isinstance(value, str) and not value.startswith("data:")]
    if len(values) > _MAX_PARTS or sum(map(len, texts)) > _MAX_PARTS * _BOX_CHARS:  # before they are parsed
        raise ValueError(f"more than {_MAX_PARTS} boxes and masks, or {_BOX_CHARS} characters for each as a text")
    masks = [value for value in values if hasattr(value, "read")]
    parts = (*areas_of([value for value in values if not hasattr(value, "read")]), *masks)
    if len(parts) > _MAX_PARTS:
        raise ValueError(f"{len(parts)} boxes and masks exceed the limit of {_MAX_PARTS}")
    return parts


def _counts(value: Any) -> Any:
    """What counts, of names in a list or a text; no files of this machine."""
    words = listed(value)
    texts = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not texts or len(words) > _MAX_PARTS or sum(map(len, words)) > _MAX_PARTS * _BOX_CHARS:
        raise ValueError(f"give at most {_MAX_PARTS} names, as in scene or person,car")
    return counts_of(words, files=False)


_Box = Annotated[list[float], Field(min_length=4, max_length=4)]
_Parts = Annotated[tuple[Any, ...], BeforeValidator(_parts, json_schema_input_type=list[_Box] | str)]
_FormParts = Annotated[tuple[Any, ...], BeforeValidator(_parts, json_schema_input_type=list[UploadFile | str])]
_Counts = Annotated[Any, BeforeValidator(_counts, json_schema_input_type=list[str] | str)]
_Criteria = Annotated[str, Field(max_length=4000), AfterValidator(criteria_text)]
_Beams = Annotated[int, Field(ge=1, le=_MAX_BEAMS)]


class CaptionForm(ClosedModel):
    """A multipart form: one pair or several, and options."""

    before: list[UploadFile] = Field(min_length=1)
    """The image file before; of several pairs one each, in order."""
    after: list[UploadFile] = Field(min_length=1)
    """The image file after, likewise."""
    model: str | None = Field(None, max_length=200)
    """A model name from ``GET /v1/models``; by default the first."""
    beams: _Beams | None = None
    """Beam width of the search, 1 for greedy; by default the width that the model was validated with."""
    candidates: _Beams = 1
    """Captions per pair; ``beams`` must be at least as large (and is raised to it if omitted)."""
    change_map: bool = False
    """Also return a map of where the pair changed."""
    objects: ObjectsOption = Options.objects
    """Also say what ``objects`` says: never, for pairs that the model is not familiar with, or always."""
    ignore: _FormParts = ()
    """What does not count, in all pairs: boxes ``[[left, top, right, bottom], ...]`` in pixels of the image after, or
    as shares from 0 to 1; or masks, image files that are white there."""
    only: _FormParts = ()
    """The only part that counts, in all pairs; likewise."""
    counts: _Counts = None
    """What counts as a change, by names: presets such as ``scene``, kinds such as ``words``, classes of objects such as
    ``person``, sizes such as ``0.5%`` or ``20px``; by default everything."""
    criteria: _Criteria | None = None
    """The same in own words, or ``c3:`` and the name of a context of C3-Bench, for a model that reads language."""
    polygons: PolygonsOption = "never"
    """Also return the changes as polygons in longitude and latitude: never, of pairs of two GeoTIFFs, or always, where
    other images are refused. The model needs a change map, the server rasterio."""
    stream: bool = False
    """Respond by server-sent events, pair by pair."""


class ImageUrl(_Open):
    url: str = Field(min_length=1)
    """Data URL (``data:image/png;base64,...``)."""


class ContentPart(_Open):
    """A part of a message, whose type names the field that it has."""

    type: Literal["text", "image_url", "refusal"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None

    @model_validator(mode="after")
    def _whole(self) -> ContentPart:
        if (self.type == "image_url") == (self.image_url is not None):
            return self
        if self.image_url is None:
            raise ValueError('a part of type image_url needs "image_url": {"url": "data:image/png;base64,..."}')
        raise ValueError(f"a part of type {self.type} holds an image, which would be lost: make it a part of its own")


def _text_as(wrap: Callable[[str], Any], json_type: Any) -> BeforeValidator:
    """Takes a text alone for the list that it stands for."""
    return BeforeValidator(
        lambda value: [wrap(value)] if isinstance(value, str) else value, json_schema_input_type=json_type
    )


class Message(_Open):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        list[ContentPart] | None, _text_as(lambda text: {"type": "text", "text": text}, str | list[ContentPart] | None)
    ] = Field(None, fail_fast=True)
    """A text or parts; the last two images of all messages are the pair. Messages of tools are not read."""


class StreamOptions(_Open):
    """Whether a stream ends with a chunk that contains ``usage``."""

    include_usage: bool = False


def _only(*accepted: Any, why: str) -> AfterValidator:
    """Refuses other values of a parameter without which a client would get something else than it asked for."""

    def check(value: Any) -> Any:
        if value not in accepted:
            raise ValueError(f"{why}; leave it out")
        return value

    return AfterValidator(check)


class ResponseFormat(_Open):
    type: Annotated[str, _only("text", why="captions are plain text")] = "text"


class ChatRequest(_Open):
    """A conversation with two images. Fields of the OpenAI interface that are not listed here are ignored."""

    model: str | None = Field(None, max_length=200)
    """A model name from ``GET /v1/models``; by default the first."""
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    """The conversation; its last two images are the pair, before first."""
    n: _Beams | None = None
    """Number of different captions, each a choice; fewer if the search finds fewer. To a text there is one answer."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximal length of an answer in the model's tokens; captions have that of their model."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The same under its newer name, which takes precedence."""
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, _text_as(str, str | list[str] | None)] = Field(
        None, max_length=4
    )
    """Up to four texts; an answer or a caption ends before the first of them in it."""
    temperature: Annotated[float | None, _only(None, 0, 1, why=f"{_SEARCHED} (0 and 1 are taken)")] = None
    """Only 0 or 1, the default of the OpenAI interface: texts are searched for, not sampled."""
    presence_penalty: Annotated[float | None, _only(None, 0, why=_SEARCHED)] = None
    """Only 0; likewise."""
    frequency_penalty: Annotated[float | None, _only(None, 0, why=_SEARCHED)] = None
    """Only 0; likewise."""
    logit_bias: Annotated[dict[str, Any] | None, _only(None, {}, why=_SEARCHED)] = None
    """Only empty; likewise."""
    stream: bool | None = None
    """Respond in chunks, by server-sent events."""
    stream_options: StreamOptions | None = None
    logprobs: Annotated[bool | None, _only(None, False, why="each choice has log_probability, their mean")] = None
    """Only false: tokens' probabilities are not available."""
    response_format: ResponseFormat | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, _only(None, "none", "auto", why="no tool is called")] = None
    """Only ``none`` or ``auto``: a captioner calls no tools."""
    ignore: _Parts = ()
    """As of ``/v1/captions``: what does not count (not a field of the OpenAI interface)."""
    only: _Parts = ()
    """The only part that counts; likewise."""
    counts: _Counts = None
    """As of ``/v1/captions``: what counts as a change."""
    criteria: _Criteria | None = None
    """The same in own words; likewise."""


class CandidateAnswer(ClosedModel):
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
    """How far the captions of a pair can be trusted. All is null without a caption, except the size for an answer."""

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
    chosen: str | None = None
    """Why ``auto`` chose it."""
    objects_text: str | None = None
    """What changed as ``objects`` says it, to be read before the caption of an unfamiliar pair; null if not asked."""
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
    """PNG as data URL, 8-bit grey, at the model's resolution: 0, or the number of the class in ``counts``, from 1."""
    counts: list[ClassAnswer]
    """The classes of the model, also those without a region."""


class SceneAnswer(ClosedModel):
    """The changes of two GeoTIFFs on the ground, and the images as the model got them (PNGs as data URLs)."""

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
    """The change as values with probabilities: ``type``, ``before``, ``after``; null for models without them."""
    change_map: str | None = None
    """PNG as data URL, 8-bit grey, white where the pair changed, shaped as the image after; null unless requested."""
    classes: ClassesAnswer | None = None
    """What kinds of thing changed, next to a change map; null for models without classes."""
    scene: SceneAnswer | None = None
    """The changes on the ground, of two GeoTIFFs; null unless polygons are requested."""
    regions: list[Region] | None = None
    """The regions in which the images differ, the largest first; null if they were not looked for."""
    error: str | None = None
    """Why the pair has no caption, in a request for several pairs; a request for one pair fails with status 400."""


class Timing(ClosedModel):
    """Milliseconds from the complete request to the response, and of the slowest batch; pairs of the largest batch."""

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


class ChatAnswer(AssessedAnswer):
    """A chat completion of the OpenAI interface, with ``changed_probability`` to ``input_size`` beside its fields."""

    id: str
    """``chatcmpl-`` followed by the id of the request."""
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str
    """Version of the model, as of ``/v1/captions``."""
    choices: list[dict[str, Any]]
    """Answers or captions, the best first: ``index``, ``message`` (its ``content`` is the text; the first caption of an
    unfamiliar pair begins with ``objects_text``), ``finish_reason`` (``length`` if it was cut off at ``max_tokens``),
    and, not of the OpenAI interface, ``confidence`` and ``log_probability``."""
    usage: dict[str, int]
    """Tokens, also of those after ``stop``; of a model that reads no text 0 and the words of its captions."""


class Model(ClosedModel):
    """A served model. The fields from ``version`` on are not fields of the OpenAI interface."""

    id: str
    """Model name in requests."""
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "idc"
    version: str
    """Current version of the model: from the registry, or a hash of the artifact's contents."""
    error: str | None = None
    """Why the model cannot be served, or its newest version, while this one continues to serve; or null."""
    trained_on: str | None = None
    """The training images in words; null if the artifact does not record them, or until a replica runs."""
    can_map: bool | None = None
    """Whether the option ``change_map`` is supported; null until a replica runs."""
    can_answer: bool | None = None
    """Whether the model reads the text of conversations and answers questions; null until a replica runs."""

    @classmethod
    def of(cls, status: ModelStatus) -> Model:
        """The entry of a model in the list."""
        fields = asdict(status)
        return cls(id=fields.pop("name"), **fields)


class ModelList(ClosedModel):
    """The models, the default first."""

    object: Literal["list"] = "list"
    data: list[Model]


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
