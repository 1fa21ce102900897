"""Answer: the response of ``/v1/chat/completions`` to an admitted job, as OpenAI's clients expect it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from fastapi.sse import format_sse_event
from starlette.responses import Response

from serve.backend import ModelStatus, PairResult
from serve.chat_schema import AnswerMessage, ChatAnswer, Choice, Chunk, ChunkChoice, Delta, LastChunk, Usage
from serve.errors import ApiError
from serve.schema import AssessedAnswer, SeenAnswer
from serve.service import AdmittedJob
from serve.streaming import Events, event, respond


async def answer(admitted: AdmittedJob) -> Response:
    """Caption an admitted job and respond with a :class:`~serve.chat_schema.ChatAnswer` or its stream.

    Raises:
        ApiError: the pair could not be captioned.
    """
    if admitted.job.stream:
        request_id = admitted.context.request_id
        return await respond(
            admitted.context, _events(admitted), lambda error: event(error.body(request_id)), admitted.places
        )
    with admitted.places:
        found = await _answer(admitted)
    return Response(found.model_dump_json(), media_type="application/json")


async def _events(admitted: AdmittedJob) -> Events:
    for chunk in _chunks(await _answer(admitted), admitted.job.include_usage):
        yield chunk


async def _answer(admitted: AdmittedJob) -> ChatAnswer:
    (result,) = await admitted.results()
    if result.error is not None:
        side, _, why = result.error.partition(": ")
        if side in ("messages", "n"):
            raise ApiError(400, "not_answered", result.error, side)
        (pair,) = admitted.job.pairs
        field = dict(zip(("before", "after"), pair.fields, strict=True)).get(side)
        raise ApiError(400, "not_captioned", f"{field}: {why}" if field else result.error, field)
    return _completion(result, admitted.model, admitted.context.request_id, admitted.job.stop)


def _completion(result: PairResult, model: ModelStatus, request_id: str, stop: Sequence[str]) -> ChatAnswer:
    """A pair's captions, or the answer in a dialogue about it, as a chat completion."""
    read, written = result.tokens or (0, sum(len(one.caption.split()) for one in result.captions))
    choices = []
    if (said := result.answer) is not None:
        read, written = said.prompt_tokens, said.tokens
        text = _before(said.text, stop)
        choices.append(
            Choice(
                index=0,
                message=AnswerMessage(content=text),
                finish_reason="length" if said.cut_off and text == said.text else "stop",
                confidence=said.confidence,
                log_probability=said.log_probability,
            )
        )
    for index, one in enumerate(result.captions):
        message = AnswerMessage(content=_before(one.caption, stop))
        choices.append(
            Choice(index=index, message=message, confidence=one.confidence, log_probability=one.log_probability)
        )
    return ChatAnswer(
        id=f"chatcmpl-{request_id}",
        created=int(time.time()),
        model=model.name,
        system_fingerprint=model.version,
        choices=choices,
        usage=Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written),
        seen=None if result.seen is None else SeenAnswer(**result.seen.to_dict()),
        **({} if result.assessment is None else result.assessment.to_dict()),
    )


def _before(text: str, stop: Sequence[str]) -> str:
    """A text up to the first of the texts at which it ends."""
    return text[: min((at for at in map(text.find, stop) if at >= 0), default=None)]


def _chunks(completion: ChatAnswer, include_usage: bool) -> Iterator[bytes]:
    """A chat completion as the events of a stream, ``[DONE]`` at the end."""
    common = completion.model_dump(include={"id", "created", "model", "system_fingerprint"})
    assessed = completion.model_dump(include=set(AssessedAnswer.model_fields))
    for choice in completion.choices:
        for piece in (
            ChunkChoice(index=choice.index, delta=Delta(role="assistant", content="")),
            ChunkChoice(index=choice.index, delta=Delta(content=choice.message.content)),
        ):
            yield event(Chunk(**common, choices=[piece]))
        last = ChunkChoice(index=choice.index, delta=Delta(), finish_reason=choice.finish_reason)
        yield event(LastChunk(**common, choices=[last], **assessed))
    if include_usage:
        yield event(Chunk(**common, choices=[], usage=completion.usage))
    yield format_sse_event(data_str="[DONE]")
