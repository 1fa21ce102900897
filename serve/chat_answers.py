"""Answer: the response of ``/v1/chat/completions`` to an admitted job, as OpenAI's clients expect it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi.sse import format_sse_event
from starlette.responses import Response

from idc.captioning.contract import sentence_without_model
from idc.endpoint.stop_texts import before, settled
from serve.backend import PairResult
from serve.chat_schema import AnswerMessage, ChatAnswer, Choice, Chunk, ChunkChoice, Delta, LastChunk, Usage
from serve.errors import ApiError
from serve.pieces import Hear, pieces
from serve.schema import AssessedAnswer
from serve.service import AdmittedJob
from serve.streaming import Events, respond, server_sent_event

END_OF_STREAM = format_sse_event(data_str="[DONE]")
"""The last event of a stream."""


async def chat_answer(admitted: AdmittedJob) -> Response:
    """Caption an admitted job and respond with a :class:`~serve.chat_schema.ChatAnswer` or its stream.

    Raises:
        ApiError: the pair could not be captioned.
    """
    if admitted.job.stream:
        request_id = admitted.context.request_id
        return await respond(
            admitted.context,
            _events(admitted),
            lambda error: server_sent_event(error.body(request_id)),
            admitted.places,
        )
    with admitted.places:
        completion = await _answer(admitted, _common(admitted))
    return Response(completion.model_dump_json(), media_type="application/json")


async def _events(admitted: AdmittedJob) -> Events:
    """The pieces of an answer as they are generated, then the rest; captions are complete when they come."""
    common = _common(admitted)
    heard = sent = ""
    async with aclosing(pieces(lambda hear: _answer(admitted, common, hear))) as items:
        async for item in items:
            if isinstance(item, str):
                heard += item
                text = settled(heard.strip(), admitted.job.stop)
                if len(text) > len(sent):
                    for delta in _deltas(text[len(sent) :], first=not sent):
                        yield _chunk(common, 0, delta)
                    sent = text
            else:
                for chunk in _chunks(item.value, common, sent, admitted.job.include_usage):
                    yield chunk


def _common(admitted: AdmittedJob) -> dict[str, Any]:
    """The fields that an answer and all of its chunks have."""
    return {
        "id": f"chatcmpl-{admitted.context.request_id}",
        "created": int(time.time()),
        "model": admitted.model,
    }


async def _answer(admitted: AdmittedJob, common: dict[str, Any], hear: Hear | None = None) -> ChatAnswer:
    (result,) = await admitted.results(hear)
    if result.error is not None:
        side, _, why = result.error.partition(": ")
        if side in ("messages", "n"):
            raise ApiError(400, "not_answered", result.error, side)
        (pair,) = admitted.job.pairs
        field = dict(zip(("before", "after"), pair.fields, strict=True)).get(side)
        raise ApiError(400, "not_captioned", f"{field}: {why}" if field else result.error, field)
    return completion_of(result, common, admitted.job.stop, admitted.job.max_tokens)


def completion_of(
    result: PairResult, common: dict[str, Any], stop: Sequence[str] = (), max_words: int | None = None
) -> ChatAnswer:
    """A pair's captions, or the answer in a dialogue about it, as a chat completion.

    Args:
        max_words: of a caption.
    """
    described = result.description
    read, written = 0, sum(len(caption.caption.split()[:max_words]) for caption in result.captions)
    if described is not None and described.tokens is not None:
        read, written = described.tokens
    fields = {} if described is None else described.to_dict()
    choices = []
    if (said := result.answer) is not None:
        read, written = said.prompt_tokens, said.tokens
        fields = {"seen": None if said.seen is None else said.seen.to_dict()}
        text = before(said.text, stop)
        choices.append(
            Choice(
                index=0,
                message=AnswerMessage(content=text),
                finish_reason="length" if said.cut_off and text == said.text else "stop",
                confidence=said.confidence,
                log_probability=said.log_probability,
            )
        )
    for index, caption in enumerate(result.captions):
        text = before(caption.caption if index else _content(result), stop)
        cut_off = max_words is not None and len(text.split()) > max_words
        choices.append(
            Choice(
                index=index,
                message=AnswerMessage(content=" ".join(text.split()[:max_words]) if cut_off else text),
                finish_reason="length" if cut_off else "stop",
                confidence=caption.confidence,
                log_probability=caption.log_probability,
            )
        )
    return ChatAnswer(
        **common,
        system_fingerprint=result.version,
        choices=choices,
        usage=Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written),
        **{name: value for name, value in fields.items() if name in AssessedAnswer.model_fields},
    )


def _content(result: PairResult) -> str:
    """The best caption; of a pair that the model is not familiar with after what ``objects`` says."""
    described = result.description
    assert described is not None
    caption, sentence = described.best.caption, sentence_without_model(described.to_dict())
    return caption if sentence is None else f"{sentence}\nBy the model, which has not seen such images: {caption}"


def _deltas(text: str, first: bool) -> Iterator[Delta]:
    if first:
        yield Delta(role="assistant", content="")
    if text:
        yield Delta(content=text)


def _chunk(common: dict[str, Any], index: int, delta: Delta) -> bytes:
    return server_sent_event(Chunk(**common, choices=[ChunkChoice(index=index, delta=delta)]))


def _chunks(completion: ChatAnswer, common: dict[str, Any], sent: str, include_usage: bool) -> Iterator[bytes]:
    """A chat completion as the events of a stream, ``[DONE]`` at the end. Of the first choice, ``sent`` is sent."""
    assessed = completion.model_dump(include=set(AssessedAnswer.model_fields))
    for choice in completion.choices:
        for delta in _deltas(choice.message.content[len(sent) :], first=not sent):
            yield _chunk(common, choice.index, delta)
        sent = ""
        last = ChunkChoice(index=choice.index, delta=Delta(), finish_reason=choice.finish_reason)
        yield server_sent_event(
            LastChunk(**common, system_fingerprint=completion.system_fingerprint, choices=[last], **assessed)
        )
    if include_usage:
        yield server_sent_event(Chunk(**common, choices=[], usage=completion.usage))
    yield END_OF_STREAM
