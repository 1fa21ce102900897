"""Requests and answers of OpenAI's chat completions and models, as far as a captioner has use for them.

Fields that are not of their interface say so; their clients let such fields pass.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from serve.schema import AssessedAnswer, Served

# -- what is asked ------------------------------------------------------------------------------------------------


class _Open(BaseModel):
    """Clients send more fields than these from version to version."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class ImageUrl(_Open):
    """Where an image is."""

    url: str = Field(min_length=1)
    """Data URL (``data:image/png;base64,...``), or https URL of an allowed host."""


class Part(_Open):
    """A part of a message."""

    type: Literal["text", "image_url", "refusal"]
    """What it is; texts and refusals are not read."""
    image_url: ImageUrl | None = None
    """Of an ``image_url``: where the image is."""

    @model_validator(mode="after")
    def _whole(self) -> Part:
        if self.type == "image_url" and self.image_url is None:
            raise ValueError('a part of type image_url needs "image_url": {"url": "data:image/png;base64,..."}')
        return self


def _parts(content: Any) -> Any:
    """The parts of a content; a text alone has none that is read."""
    return [] if isinstance(content, str) else content


Content = Annotated[list[Part] | None, BeforeValidator(_parts, json_schema_input_type=str | list[Part] | None)]


class Message(_Open):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Who speaks."""
    content: Content = None
    """A text, or parts; the last two images of all messages are the pair."""


class StreamOptions(_Open):
    """How a stream ends."""

    include_usage: bool = False
    """With a chunk that holds ``usage``."""


class ResponseFormat(_Open):
    """What the answer's text is."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    """Only ``text`` is written."""


class ChatRequest(_Open):
    """A conversation with two images. Fields of the OpenAI interface that are not listed here are ignored."""

    model: str | None = Field(None, max_length=200)
    """A name of ``GET /v1/models``; by default the first."""
    messages: list[Message] = Field(min_length=1)
    """The conversation; its last two images are the pair, before first."""
    n: int | None = Field(None, ge=1)
    """Captions wanted, each different: as many choices, or fewer if the search finds fewer."""
    stream: bool | None = None
    """Answer in chunks, as server-sent events."""
    stream_options: StreamOptions | None = None
    """How a stream ends."""
    logprobs: bool | None = None
    """Refused if true: of a caption only the mean over its tokens is known, see ``log_probability`` of a choice."""
    response_format: ResponseFormat | None = None
    """Refused unless ``text``."""
    tool_choice: str | dict[str, Any] | None = None
    """Refused if it forces a call: a captioner calls no tools."""


# -- what is answered ---------------------------------------------------------------------------------------------


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Usage(_Closed):
    """What was counted. The numbers are words and images, not a language model's tokens."""

    prompt_tokens: int = 0
    """Always 0: no text of the conversation is read."""
    completion_tokens: int
    """Words of all captions answered, as separated by spaces."""
    total_tokens: int
    """The sum."""
    prompt_images: int = 2
    """Images read (not a field of the OpenAI interface)."""


class AnswerMessage(_Closed):
    """The captioner's turn."""

    role: Literal["assistant"] = "assistant"
    """Who speaks."""
    content: str
    """The caption."""
    refusal: None = None
    """Always null."""


class Choice(_Closed):
    """A caption."""

    index: int
    """Its place, the best first."""
    message: AnswerMessage
    """The caption."""
    finish_reason: Literal["stop"] = "stop"
    """Always ``stop``."""
    logprobs: None = None
    """Always null."""
    confidence: float
    """The geometric mean of the tokens' probabilities, 0 to 1 (not a field of the OpenAI interface)."""
    log_probability: float
    """Natural logarithm, mean over the tokens (not a field of the OpenAI interface)."""


class ChatAnswer(AssessedAnswer):
    """A chat completion. ``changed_probability`` to ``warning`` are no fields of the OpenAI interface."""

    id: str
    """``chatcmpl-`` and the request's id."""
    object: Literal["chat.completion"] = "chat.completion"
    """What it is."""
    created: int
    """Seconds since 1970."""
    model: str
    """The name it was asked by."""
    system_fingerprint: str
    """What that name stood for: a version of the registry, or a folder."""
    choices: list[Choice]
    """The captions, best first."""
    usage: Usage
    """What was counted."""


def _is_none(value: Any) -> bool:
    return value is None


class Delta(_Closed):
    """A piece of a message."""

    role: Literal["assistant"] | None = Field(None, exclude_if=_is_none)
    """In a choice's first chunk."""
    content: str | None = Field(None, exclude_if=_is_none)
    """In a choice's second chunk: the whole caption, since the search ends with all of it."""


class ChunkChoice(_Closed):
    """A piece of a choice."""

    index: int
    """Of the choice."""
    delta: Delta
    """What it adds."""
    finish_reason: Literal["stop"] | None = None
    """``stop`` in a choice's last chunk."""
    logprobs: None = None
    """Always null."""


class Chunk(_Closed):
    """A piece of a streamed chat completion."""

    id: str
    """The same in all chunks."""
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    """What it is."""
    created: int
    """The same in all chunks."""
    model: str
    """The name it was asked by."""
    system_fingerprint: str
    """What that name stood for."""
    choices: list[ChunkChoice]
    """One, or none in the chunk with ``usage``."""
    usage: Usage | None = Field(None, exclude_if=_is_none)
    """In the last chunk, if asked for."""


class LastChunk(Chunk, AssessedAnswer):
    """The last chunk of a choice: also how far the captions can be trusted (no fields of the OpenAI interface)."""


class Model(_Closed):
    """A model that can be asked for. The fields from ``source`` on are no fields of the OpenAI interface."""

    id: str
    """Its name in requests."""
    object: Literal["model"] = "model"
    """What it is."""
    created: int = 0
    """Always 0: not known."""
    owned_by: str = "idc"
    """Always ``idc``."""
    version: str
    """What the name stands for now: a version of the registry, or a hash of the artifact's contents."""
    error: str | None = None
    """Why it cannot be served, or null."""
    newer_error: str | None = None
    """Why a newer version of it is not served, while this one goes on serving; or null."""
    trained_on: str | None = None
    """The images it was trained on, in words; null if the artifact does not record it, or until a replica runs."""
    can_imagine: bool | None = None
    """Whether it answers ``imagine``; null until a replica runs."""
    imagined_meaningful: bool | None = None
    """Whether it is trained to show the change in its imagined frames; if not, they mean nothing. Null until a replica
    runs."""

    @classmethod
    def of(cls, served: Served) -> Model:
        """As the interface lists it."""
        return cls(
            id=served.name,
            version=served.version,
            error=served.error,
            newer_error=served.newer_error,
            **({} if served.abilities is None else asdict(served.abilities)),
        )


class ModelList(_Closed):
    """The models."""

    object: Literal["list"] = "list"
    """What it is."""
    data: list[Model]
    """The models, the default first."""
