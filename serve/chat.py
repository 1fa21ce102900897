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

from fastapi import APIRouter
from fastapi.sse import format_sse_event
from starlette.requests import Request
from starlette.responses import Response

from serve.chat_schema import (
    AnswerMessage,
    ChatAnswer,
    ChatRequest,
    Choice,
    Chunk,
    ChunkChoice,
    Delta,
    LastChunk,
    Model,
    ModelList,
    Usage,
)
from serve.gate import visit_of
from serve.schema import ApiError, AssessedAnswer, Captioned, EncodedPair, Options, Served
from serve.service import Service
from serve.streaming import Events, event, respond


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
            if part.type == "image_url" and part.image_url is not None:
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
    words = sum(len(one.caption.split()) for one in result.captions)
    choices = []
    for index, one in enumerate(result.captions):
        message = AnswerMessage(content=one.caption)
        choices.append(
            Choice(index=index, message=message, confidence=one.confidence, log_probability=one.log_probability)
        )
    return ChatAnswer(
        id=f"chatcmpl-{request_id}",
        created=int(time.time()),
        model=model.name,
        system_fingerprint=model.version,
        choices=choices,
        usage=Usage(completion_tokens=words, total_tokens=words),
        **({} if result.assessment is None else result.assessment.to_dict()),
    )


def chunks(answer: ChatAnswer, include_usage: bool) -> Iterator[bytes]:
    """A chat completion as the events of a stream, ``[DONE]`` at the end."""
    common = answer.model_dump(include={"id", "created", "model", "system_fingerprint"})
    assessment = answer.model_dump(include=set(AssessedAnswer.model_fields))
    for choice in answer.choices:
        for piece in (
            ChunkChoice(index=choice.index, delta=Delta(role="assistant", content="")),
            ChunkChoice(index=choice.index, delta=Delta(content=choice.message.content)),
        ):
            yield event(Chunk(**common, choices=[piece]))
        last = ChunkChoice(index=choice.index, delta=Delta(), finish_reason="stop")
        yield event(LastChunk(**common, choices=[last], **assessment))
    if include_usage:
        yield event(Chunk(**common, choices=[], usage=answer.usage))
    yield format_sse_event(data_str="[DONE]")


def router(service: Service) -> APIRouter:
    """``/v1/chat/completions`` and ``/v1/models``."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI's interface"])

    @routes.post(
        "/chat/completions",
        summary="Caption the last two images of a conversation",
        responses={200: {"model": ChatAnswer}},
    )
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
            with_usage = asked.stream_options is not None and asked.stream_options.include_usage
            for chunk in chunks(await answer(), with_usage):
                yield chunk

        def failed(error: ApiError) -> bytes:
            return event(error.body(visit.request_id))

        return await respond(visit, events(), failed, queue.pop_all())
