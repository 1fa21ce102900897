"""Answer: the response of ``/v1/chat/completions`` to an admitted job, as OpenAI's clients expect it.

Built as mappings: validating our own values costs more than writing them. A chunk of a stream has the fields of a
:class:`~serve.chat_schema.ChatAnswer`, a ``delta`` in place of each ``message``, and the model's version and the
assessment in the last one of a choice.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any

from fastapi.sse import format_sse_event
from pydantic_core import to_json
from starlette.responses import Response

from idc.captioning.contract import sentence_without_model
from idc.endpoint.stop_texts import before, settled
from serve.errors import ApiError
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
        return await respond(context, _events(admitted, {**common, "object": "chat.completion.chunk"}))
    completion = await _completion(admitted)
    return Response(to_json({**common, "object": "chat.completion", **completion}), media_type="application/json")


async def _events(admitted: AdmittedJob, common: dict[str, Any]) -> Events:
    """The pieces of an answer as they are generated, then the rest; captions are complete when they come."""

    def chunk(index: int, delta: dict[str, str], finish_reason: str | None = None, **fields: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return server_sent_event({**common, "choices": [choice], **fields})

    generated = sent = ""
    async with aclosing(pieces(lambda on_text: _completion(admitted, on_text))) as items:
        async for item in items:
            if isinstance(item, str):
                generated += item
                text = settled(generated.strip(), admitted.job.stop)
                if len(text) > len(sent):
                    if not sent:
                        yield chunk(0, {"role": "assistant", "content": ""})
                    yield chunk(0, {"content": text[len(sent) :]})
                    sent = text
                continue
            completion = item.value
            choices, usage = completion.pop("choices"), completion.pop("usage")
            for index, choice in enumerate(choices):
                if not sent:
                    yield chunk(index, {"role": "assistant", "content": ""})
                if rest := choice["message"]["content"][len(sent) :]:  # only an answer, of one choice, was sent before
                    yield chunk(index, {"content": rest})
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
    stop = admitted.job.stop
    if result.description is None:
        answer = result.answer
        assert answer is not None
        text, read, written = before(answer.text, stop), answer.prompt_tokens, answer.tokens
        finish = "length" if answer.cut_off and text == answer.text else "stop"
        choices = [_choice(0, text, answer.confidence, answer.log_probability, finish)]
        size = None if answer.input_size is None else answer.input_size.to_dict()
        assessed = {**_ASSESSED, "input_size": size}
    else:
        candidates, fields = result.description.candidates, result.description.to_dict()
        texts = [candidate.caption for candidate in candidates]
        read, written = result.description.tokens or (0, sum(len(text.split()) for text in texts))
        if (sentence := sentence_without_model(fields)) is not None:
            texts[0] = f"{sentence}\nBy the model, which has not seen such images: {texts[0]}"
        choices = [
            _choice(index, before(text, stop), candidate.confidence, candidate.log_probability)
            for index, (text, candidate) in enumerate(zip(texts, candidates, strict=True))
        ]
        assessed = {name: fields[name] for name in _ASSESSED}
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written, "prompt_images": 2}
    return {"system_fingerprint": result.version, "choices": choices, "usage": usage, **assessed}


def _choice(
    index: int, text: str, confidence: float, log_probability: float, finish_reason: str = "stop"
) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": finish_reason,
        "logprobs": None,
        "confidence": confidence,
        "log_probability": log_probability,
    }
