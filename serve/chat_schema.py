"""Requests and responses of OpenAI's chat completions and models, as far as they apply to a captioner. Fields that are
not OpenAI's are marked; its clients ignore them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from serve.backend import ModelStatus
from serve.schema import MAX_BEAMS, AssessedAnswer, ClosedModel, Parts

# -- requests -----------------------------------------------------------------------------------------------------


class _Open(BaseModel):
    """A request body that may have unknown fields: new versions of clients send more."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class ImageUrl(_Open):
    """Location of an image."""

    url: str = Field(min_length=1)
    """Data URL (``data:image/png;base64,...``)."""


class Part(_Open):
    """A part of a message, whose type names the field that it has."""

    type: Literal["text", "image_url", "refusal"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None

    @model_validator(mode="after")
    def _whole(self) -> Part:
        if self.type == "image_url" and self.image_url is None:
            raise ValueError('a part of type image_url needs "image_url": {"url": "data:image/png;base64,..."}')
        if self.type != "image_url" and self.image_url is not None:
            raise ValueError(
                f"a part of type {self.type} holds an image, which would be lost: make it a part of its own"
            )
        return self


Content = Annotated[
    list[Part] | None,
    BeforeValidator(
        lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content,
        json_schema_input_type=str | list[Part] | None,
    ),
]


class Message(_Open):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = None
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


_SEARCHED = "texts are searched for, not sampled"
_Penalty = Annotated[float | None, _only(None, 0, why=_SEARCHED)]


class ResponseFormat(_Open):
    """Format of the caption."""

    type: Annotated[str, _only("text", why="captions are plain text")] = "text"


Stop = Annotated[
    list[Annotated[str, Field(min_length=1)]] | None,
    BeforeValidator(
        lambda stop: [stop] if isinstance(stop, str) else stop, json_schema_input_type=str | list[str] | None
    ),
]


class ChatRequest(_Open):
    """A conversation with two images. Fields of the OpenAI interface that are not listed here are ignored."""

    model: str | None = Field(None, max_length=200)
    """A model name from ``GET /v1/models``; by default the first."""
    messages: list[Message] = Field(min_length=1)
    """The conversation; its last two images are the pair, before first."""
    n: int | None = Field(None, ge=1, le=MAX_BEAMS)
    """Number of different captions, each a choice; fewer if the search finds fewer. A model that answers gives one
    answer to a text, and several captions to images alone."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximal length of an answer in the model's tokens; captions have that of their model."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The same under its newer name, which takes precedence."""
    stop: Stop = Field(None, max_length=4)
    """Up to four texts; an answer or a caption ends before the first of them in it."""
    temperature: Annotated[float | None, _only(None, 0, 1, why=f"{_SEARCHED} (0 and 1 are taken)")] = None
    """Only 0 or 1, the default of the OpenAI interface: texts are searched for, not sampled."""
    presence_penalty: _Penalty = None
    """Only 0; likewise."""
    frequency_penalty: _Penalty = None
    """Only 0; likewise."""
    logit_bias: Annotated[dict[str, float] | None, _only(None, {}, why=_SEARCHED)] = None
    """Only empty; likewise."""
    stream: bool | None = None
    """Respond in chunks, by server-sent events."""
    stream_options: StreamOptions | None = None
    logprobs: Annotated[bool | None, _only(None, False, why="each choice has log_probability, their mean")] = None
    """Only false: tokens' probabilities are not available."""
    response_format: ResponseFormat | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, _only(None, "none", "auto", why="no tool is called")] = None
    """Only ``none`` or ``auto``: a captioner calls no tools."""
    ignore: Parts = ()
    """As of ``/v1/captions``: what does not count (not a field of the OpenAI interface)."""
    only: Parts = ()
    """The only part that counts; likewise."""


# -- responses ----------------------------------------------------------------------------------------------------


class Usage(ClosedModel):
    """Counts of tokens, also of those after ``stop``; of a model that reads no text 0 and the words of its captions."""

    prompt_tokens: int = 0
    completion_tokens: int
    total_tokens: int
    prompt_images: int = 2
    """Number of images read (not a field of the OpenAI interface)."""


class AnswerMessage(ClosedModel):
    """The turn of the captioner."""

    role: Literal["assistant"] = "assistant"
    content: str
    """The answer or the caption; before the first caption of a pair that the model is not familiar with, what
    ``objects`` says (``objects_text``)."""
    refusal: None = None


class Choice(ClosedModel):
    """An answer or a caption, the best first. ``confidence`` (geometric mean of the token probabilities, 0 to 1) and
    ``log_probability`` (natural logarithm, mean over the tokens) are not fields of the OpenAI interface."""

    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length"] = "stop"
    """``length`` if the text was cut off at ``max_tokens``."""
    logprobs: None = None
    confidence: float
    log_probability: float


class ChatAnswer(AssessedAnswer):
    """A chat completion. ``changed_probability`` to ``input_size`` are not fields of the OpenAI interface."""

    id: str
    """``chatcmpl-`` followed by the id of the request."""
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str
    """Version of the model: from the registry, or a hash of the artifact's contents."""
    choices: list[Choice]
    usage: Usage


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
        return cls(id=fields.pop("name"), **(fields.pop("capabilities") or {}), **fields)


class ModelList(ClosedModel):
    """The models, the default first."""

    object: Literal["list"] = "list"
    data: list[Model]
