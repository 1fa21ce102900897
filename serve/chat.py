"""``/v1/chat/completions``: a conversation becomes a job, and its result a completion or a stream for OpenAI's clients.

A chunk of a stream has the fields of a :class:`~serve.schema.ChatAnswer`, a ``delta`` in place of each ``message``, and
the model's version and the assessment in the last one of a choice.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any

from fastapi.sse import format_sse_event
from starlette.responses import Response

from idc.captioning.contract import Answer, Candidate, SearchOptions, sentence_without_model
from idc.data.schema import IMAGE, Turn
from idc.endpoint.stop_texts import before, settled
from serve.backend import Options, RequestDialogue, TextCallback, pieces
from serve.config import LimitsConfig
from serve.errors import ApiError
from serve.intake import PairSource, ParsedRequest
from serve.schema import AssessedAnswer, ChatRequest, Message
from serve.service import AdmittedJob
from serve.streaming import Events, respond, respond_events, server_sent_event

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role of a message -> role of its turn; tools' messages are not read."""
_TWO_NEEDED = (
    "but a caption needs two: send the image before and the image after as two parts "
    '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
)
_UNASSESSED = dict.fromkeys(AssessedAnswer.model_fields)


def of_chat(body: ChatRequest, limits: LimitsConfig) -> ParsedRequest:
    """The job of a conversation.

    Raises:
        ApiError: 400 it has fewer than two images or more than two since the last answer; 413 its text is too long.
    """
    urls = {
        (i, j): part.image_url.url
        for i, message in enumerate(body.messages)
        for j, part in enumerate(message.content or ())
        if part.image_url is not None
    }
    if len(urls) < 2:
        message = f"the conversation holds {len(urls) or 'no'} image{'s' * (not urls)}, {_TWO_NEEDED}"
        raise ApiError(400, "two_images_needed", message, "messages")
    answered = max((i for i, message in enumerate(body.messages) if message.role == "assistant"), default=-1)
    if (new := sum(i > answered for i, _ in urls)) > 2:
        message = (
            f"the conversation holds {new} new images, but is about one pair: send one pair per request, or several"
        )
        raise ApiError(400, "too_many_images", f"{message} to /v1/captions", "messages")
    pair = list(urls)[-2:]
    turns = _turns(body.messages, pair)
    for code, count, most, unit in (
        ("too_many_turns", len(turns), limits.turns, "turns"),
        ("text_too_long", sum(len(turn.text) for turn in turns), limits.text_chars, "characters"),
    ):
        if count > most:
            message = f"messages: {count:,} {unit} exceed the limit of {most:,}; leave older turns out"
            raise ApiError(413, code, message, "messages")
    longest = body.max_completion_tokens or body.max_tokens
    dialogue = RequestDialogue(turns, longest and min(longest, limits.answer_tokens)) if turns else None
    first, second = (f"messages.{i}.content.{j}.image_url.url" for i, j in pair)
    return ParsedRequest(
        model=body.model,
        options=Options(SearchOptions(candidates=body.n or 1, counts=body.counts, criteria=body.criteria)),
        pairs=(PairSource(urls[pair[0]], urls[pair[1]], (first, second), dialogue),),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        stop=tuple(body.stop or ()),
        ignore=body.ignore,
        only=body.only,
    )


def _turns(messages: Sequence[Message], pair: Collection[tuple[int, int]]) -> tuple[Turn, ...]:
    """The turns of a conversation, as :meth:`idc.captioning.contract.Captioner.answer` takes them if
    :func:`serve.backend.fault_of` has none to name; none if the conversation has no text.

    System messages become the first turn, and messages of one role in a row one turn. The pair's images have a mark in
    the user's turn in which they were sent, or, sent by others, in the next one; older images have none.

    Args:
        pair: the positions of the pair's images: number of the message, and of its part.
    """
    said: list[tuple[str, str]] = []
    marks = 0  # images that were sent in a turn of others
    for i, message in enumerate(messages):
        role, texts, after_text = _ROLES.get(message.role), [], False
        for j, part in enumerate(message.content or ()):
            text = part.text or part.refusal
            if part.image_url is not None:
                texts.append(IMAGE * ((i, j) in pair))
                after_text = False
            elif text:
                texts.append("\n" * after_text + text)  # texts in a row are lines
                after_text = True
        text = "".join(texts)
        if role == "user":
            text, marks = IMAGE * marks + text, 0
        else:
            marks += sum(number == i for number, _ in pair)
            text = text.replace(IMAGE, "")
        if (role == "user" and text) or (role is not None and text.strip()):
            said.append((role, text))
    if not any(text.replace(IMAGE, "").strip() for _, text in said):
        return ()
    if marks:  # nobody asks after them
        said.append(("user", IMAGE * marks))
    said.sort(key=lambda turn: turn[0] != "system")
    return tuple(
        Turn(role, "\n".join(text for _, text in turns)) for role, turns in groupby(said, key=lambda turn: turn[0])
    )


async def chat_answer(admitted: AdmittedJob) -> Response:
    """Caption an admitted job and respond with a :class:`~serve.schema.ChatAnswer` or its stream."""
    context = admitted.context
    common = {"id": f"chatcmpl-{context.request_id}", "created": int(time.time()), "model": context.model}
    if admitted.job.stream:
        return await respond_events(context, _events(admitted, {**common, "object": "chat.completion.chunk"}))
    return await respond(context, {**common, "object": "chat.completion", **await _completion(admitted)})


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


async def _completion(admitted: AdmittedJob, on_text: TextCallback | None = None) -> dict[str, Any]:
    """The fields of a :class:`~serve.schema.ChatAnswer` that are known at its end."""
    (result,) = await admitted.results(on_text)
    if result.error is not None:
        side, _, why = result.error.partition(": ")
        if side in ("messages", "n"):
            raise ApiError(400, "not_answered", result.error, side)
        field = admitted.job.pairs[0].field_of(result.error)
        raise ApiError(400, "not_captioned", f"{field}: {why}" if field else result.error, field)
    finish, answer = "stop", result.answer
    if answer is not None:
        candidates: Sequence[Answer | Candidate] = [answer]
        texts, read, written = [answer.text], answer.prompt_tokens, answer.tokens
        if answer.cut_off and before(answer.text, admitted.job.stop) == answer.text:
            finish = "length"
        assessed = {**_UNASSESSED, "input_size": answer.input_size and answer.input_size.to_dict()}
    else:
        assert result.description is not None
        candidates, fields = result.captions, result.description.to_dict()
        texts = [candidate.caption for candidate in result.captions]
        read, written = result.description.tokens or (0, sum(len(text.split()) for text in texts))
        if (sentence := sentence_without_model(fields)) is not None:
            texts[0] = f"{sentence}\nBy the model, which has not seen such images: {texts[0]}"
        assessed = {name: fields[name] for name in _UNASSESSED}
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": before(text, admitted.job.stop), "refusal": None},
            "finish_reason": finish,
            "logprobs": None,
            "confidence": candidate.confidence,
            "log_probability": candidate.log_probability,
        }
        for index, (text, candidate) in enumerate(zip(texts, candidates, strict=True))
    ]
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written, "prompt_images": 2}
    return {"system_fingerprint": result.version, "choices": choices, "usage": usage, **assessed}
