"""Answer: the response of ``/v1/chat/completions`` to an admitted job, as OpenAI's clients expect it.

Built as mappings: validating our own values costs more than writing them. A chunk of a stream has the fields of a
:class:`~serve.chat_schema.ChatAnswer`, a ``delta`` in place of each ``message``, and the model's version and the
assessment in the last one of a choice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from fastapi.sse import format_sse_event
from pydantic_core import to_json
from starlette.responses import Response

from idc.captioning.contract import sentence_without_model
from idc.endpoint.stop_texts import before, settled
from serve.backend import PairResult
from serve.errors import ApiError
from serve.intake import ParsedRequest
from serve.pieces import Hear, pieces
from serve.schema import AssessedAnswer
from serve.service import AdmittedJob
from serve.streaming import Events, respond, server_sent_event

_ASSESSED = dict.fromkeys(AssessedAnswer.model_fields)
"""The assessment of an answer to a question, apart from ``input_size``."""


async def chat_answer(admitted: AdmittedJob) -> Response:
    """Caption an admitted job and respond with a :class:`~serve.chat_schema.ChatAnswer` or its stream.

    Raises:
        ApiError: the pair could not be captioned.
    """
    context = admitted.context
    common = {"id": f"chatcmpl-{context.request_id}", "created": int(time.time()), "model": context.model}
    if admitted.job.stream:
        return await respond(admitted, _events(admitted, common))
    with admitted.slots:
        completion = await _completion(admitted)
    return Response(to_json({**common, "object": "chat.completion", **completion}), media_type="application/json")


async def _events(admitted: AdmittedJob, common: dict[str, Any]) -> Events:
    """The pieces of an answer as they are generated, then the rest; captions are complete when they come."""
    common = {**common, "object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, str], finish_reason: str | None = None, **fields: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return server_sent_event({**common, "choices": [choice], **fields})

    def chunks(index: int, text: str, is_first: bool) -> Iterator[bytes]:
        if is_first:
            yield chunk(index, {"role": "assistant", "content": ""})
        if text:
            yield chunk(index, {"content": text})

    generated = sent = ""
    async with aclosing(pieces(lambda on_text: _completion(admitted, on_text))) as items:
        async for item in items:
            if isinstance(item, str):
                generated += item
                text = settled(generated.strip(), admitted.job.stop)
                if len(text) > len(sent):
                    for event in chunks(0, text[len(sent) :], not sent):
                        yield event
                    sent = text
                continue
            completion = item.value
            choices, usage = completion.pop("choices"), completion.pop("usage")
            for index, choice in enumerate(choices):
                for event in chunks(index, choice["message"]["content"][len(sent) :], not sent):  # sent: of an answer
                    yield event
                yield chunk(index, {}, choice["finish_reason"], **completion)
            if admitted.job.include_usage:
                yield server_sent_event({**common, "choices": [], "usage": usage})
    yield format_sse_event(data_str="[DONE]")


async def _completion(admitted: AdmittedJob, on_text: Hear | None = None) -> dict[str, Any]:
    """The fields of a :class:`~serve.chat_schema.ChatAnswer` that are known at its end."""
    (result,) = await admitted.results(on_text)
    if result.error is not None:
        side, _, why = result.error.partition(": ")
        if side in ("messages", "n"):
            raise ApiError(400, "not_answered", result.error, side)
        (pair,) = admitted.job.pairs
        field = dict(zip(("before", "after"), pair.fields, strict=True)).get(side)
        raise ApiError(400, "not_captioned", f"{field}: {why}" if field else result.error, field)
    choices, (read, written), fields = (_said if result.description is None else _captions)(result, admitted.job)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written, "prompt_images": 2}
    return {"system_fingerprint": result.version, "choices": choices, "usage": usage, **fields}


def _said(result: PairResult, job: ParsedRequest) -> tuple[list[Any], tuple[int, int], dict[str, Any]]:
    """The choice of an answer in a dialogue, the numbers of tokens read and written, and the assessment."""
    said = result.answer
    assert said is not None
    text = before(said.text, job.stop)
    choice = _choice(0, text, said.cut_off and text == said.text, said.confidence, said.log_probability)
    input_size = None if said.input_size is None else said.input_size.to_dict()
    return [choice], (said.prompt_tokens, said.tokens), {**_ASSESSED, "input_size": input_size}


def _captions(result: PairResult, job: ParsedRequest) -> tuple[list[Any], tuple[int, int], dict[str, Any]]:
    """The same of the captions, which end after ``max_tokens`` words; that of a pair that the model is not familiar
    with follows what ``objects`` says."""
    described, most = result.description, job.max_tokens
    assert described is not None
    fields = described.to_dict()
    choices = []
    for index, caption in enumerate(described.candidates):
        text = caption.caption
        if index == 0 and (sentence := sentence_without_model(fields)) is not None:
            text = f"{sentence}\nBy the model, which has not seen such images: {text}"
        text = before(text, job.stop)
        is_cut = most is not None and len(text.split()) > most
        text = " ".join(text.split()[:most]) if is_cut else text
        choices.append(_choice(index, text, is_cut, caption.confidence, caption.log_probability))
    words = sum(len(caption.caption.split()[:most]) for caption in described.candidates)
    return choices, described.tokens or (0, words), {name: fields[name] for name in _ASSESSED}


def _choice(index: int, text: str, is_cut: bool, confidence: float, log_probability: float) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": "length" if is_cut else "stop",
        "logprobs": None,
        "confidence": confidence,
        "log_probability": log_probability,
    }
