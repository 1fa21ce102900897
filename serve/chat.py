"""The interface of OpenAI's chat completions over a captioner, so that their clients work as they are.

A conversation becomes a pair: its last two images, in their order. The captioner reads no text: questions, history and
system messages are accepted and change nothing. What cannot be done and would be missed is refused (log-probabilities
of single tokens, forced tools, JSON output); what only tunes sampling (``temperature``, ``max_tokens``, ``seed``,
``stop``, ...) is ignored, since a caption is searched for, not sampled. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.sse import format_sse_event
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from idc.describe import Candidate
from serve.gate import visit_of
from serve.schema import ApiError, Captioned, EncodedPair, Options, Served
from serve.service import Service
from serve.streaming import Events, event, respond

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
    return [] if isinstance(content, str) else content


class Message(_Open):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Who speaks."""
    content: Annotated[list[Part] | None, BeforeValidator(_parts, json_schema_input_type=str | list[Part] | None)] = (
        None
    )
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


class ChatAnswer(_Closed):
    """A chat completion."""

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
    changed_probability: float | None = None
    """Calibrated probability that anything changed, or null (not a field of the OpenAI interface)."""


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


class Model(_Closed):
    """A model that can be asked for."""

    id: str
    """Its name in requests."""
    object: Literal["model"] = "model"
    """What it is."""
    created: int = 0
    """Always 0: not known."""
    owned_by: str = "idc"
    """Always ``idc``."""
    source: str
    """What the settings say: a folder, or a name of the registry."""
    version: str
    """What that is now: a version of the registry, or a folder."""
    error: str | None = None
    """Why it, or its newest version, cannot be served; null if all is well."""

    @classmethod
    def of(cls, served: Served) -> Model:
        """As the interface lists it."""
        return cls(id=served.name, source=served.source, version=served.version, error=served.error)


class ModelList(_Closed):
    """The models."""

    object: Literal["list"] = "list"
    """What it is."""
    data: list[Model]
    """The models, the default first."""


# -- from one to the other ----------------------------------------------------------------------------------------


def images(asked: ChatRequest) -> tuple[tuple[str, str], tuple[str, str]]:
    """The pair of a conversation: (field, URL) of the image before and of the image after.

    Raises:
        ApiError: 400, there are fewer than two images.
    """
    found = list(_images(asked))
    if len(found) < 2:
        raise ApiError(
            400,
            "two_images_needed",
            f"the conversation holds {len(found) or 'no'} image{'s' * (len(found) != 1)}, and a change is told of two: "
            "send the image before and the image after as two parts "
            '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}',
            "messages",
        )
    return found[-2], found[-1]


def _images(asked: ChatRequest) -> Iterator[tuple[str, str]]:
    for i, message in enumerate(asked.messages):
        for j, part in enumerate(message.content or []):
            if part.image_url is not None:
                yield f"messages.{i}.content.{j}.image_url.url", part.image_url.url


def check(asked: ChatRequest) -> None:
    """Refuse what cannot be done and would be missed.

    Raises:
        ApiError: 400, with the field.
    """
    if asked.logprobs:
        message = (
            "the log-probability of a caption is known as the mean over its tokens, not token by token: leave logprobs "
            "out and read log_probability of the choice"
        )
        raise ApiError(400, "unsupported", message, "logprobs")
    if asked.response_format is not None and asked.response_format.type != "text":
        message = f"a caption is plain text, not {asked.response_format.type}: leave response_format out"
        raise ApiError(400, "unsupported", message, "response_format.type")
    if asked.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "unsupported", "a captioner calls no tools: leave tool_choice out", "tool_choice")


def completion(result: Captioned, model: Served, request_id: str) -> ChatAnswer:
    """A pair's captions as a chat completion."""
    words = sum(len(text.split()) for text, _ in result.captions)
    choices = []
    for index, (text, mean) in enumerate(result.captions):
        confidence = Candidate(text, mean).confidence
        message = AnswerMessage(content=text)
        choices.append(Choice(index=index, message=message, confidence=confidence, log_probability=mean))
    return ChatAnswer(
        id=f"chatcmpl-{request_id}",
        created=int(time.time()),
        model=model.name,
        system_fingerprint=model.version,
        choices=choices,
        usage=Usage(completion_tokens=words, total_tokens=words),
        changed_probability=result.changed,
    )


def chunks(answer: ChatAnswer, include_usage: bool) -> Iterator[bytes]:
    """A chat completion as the events of a stream, ``[DONE]`` at the end."""
    common = answer.model_dump(include={"id", "created", "model", "system_fingerprint"})
    for choice in answer.choices:
        for piece in (
            ChunkChoice(index=choice.index, delta=Delta(role="assistant", content="")),
            ChunkChoice(index=choice.index, delta=Delta(content=choice.message.content)),
            ChunkChoice(index=choice.index, delta=Delta(), finish_reason="stop"),
        ):
            yield event(Chunk(**common, choices=[piece]))
    if include_usage:
        yield event(Chunk(**common, choices=[], usage=answer.usage))
    yield format_sse_event(data_str="[DONE]")


# -- the routes ---------------------------------------------------------------------------------------------------


def router(service: Service) -> APIRouter:
    """``/v1/chat/completions`` and ``/v1/models``."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI's interface"])

    @routes.post("/chat/completions", summary="Caption the last two images of a conversation")
    async def chat(request: Request) -> Response:
        """The interface of OpenAI's chat completions: messages in, the caption as the assistant's message out.

        The last two images of the conversation are the pair, the image before first; texts are not read. `n` asks for
        candidates. `temperature`, `max_tokens`, `seed`, `stop` and whatever else tunes sampling are accepted and
        ignored. `logprobs`, JSON formats and forced tools are refused.
        """
        return await _chat(request, service)

    @routes.get("/models", summary="The models", response_model=ModelList)
    async def models() -> ModelList:
        """The names that requests may ask for, the default first, and what they stand for now."""
        return ModelList(data=[Model.of(model) for model in service.backend.models()])

    @routes.get("/models/{name:path}", summary="One model", response_model=Model)
    async def model(name: str, request: Request) -> Model:
        """What a name stands for now."""
        visit_of(request.scope).route = "/v1/models/{name}"
        for found in service.backend.models():
            if found.name == name:
                return Model.of(found)
        raise service.unknown_model(name)

    return routes


async def _chat(request: Request, service: Service) -> Response:
    visit = visit_of(request.scope)
    asked = await service.intake.json(request, ChatRequest)
    check(asked)
    named = images(asked)
    visit.arrived_whole()
    model = service.model(asked.model)
    try:
        options = service.options(Options(candidates=asked.n or 1))
    except ApiError as error:  # it speaks of candidates
        error.message, error.param = error.message.replace("candidates", "n"), "n"
        raise
    visit.pairs = 1
    with ExitStack() as queue:
        queue.enter_context(service.queued(visit, 1))
        pair = EncodedPair(*[await service.intake.image(url, field) for field, url in named])

        async def answer() -> ChatAnswer:
            (result,) = await service.caption(visit, [pair], model, options)
            if result.error is not None:
                side, _, why = result.error.partition(": ")
                field = dict(zip(("before", "after"), (field for field, _ in named), strict=True)).get(side)
                raise ApiError(400, "not_captioned", f"{field}: {why}" if field else result.error, field)
            return completion(result, model, visit.request_id)

        if not asked.stream:
            return Response((await answer()).model_dump_json(), media_type="application/json")

        async def events() -> Events:
            for chunk in chunks(
                await answer(), asked.stream_options is not None and asked.stream_options.include_usage
            ):
                yield chunk

        def failed(error: ApiError) -> bytes:
            return event(error.body(visit.request_id))

        return await respond(visit, events(), failed, queue.pop_all())
