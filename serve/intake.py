"""Parse: the body of a request becomes a :class:`ParsedRequest`, of either interface. No image is read here.

The elements of JSON are counted before it is parsed, and its nesting is measured afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jiter
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from idc.captioning.counted import Box
from idc.config import did_you_mean
from serve.backend import Options, RequestDialogue
from serve.chat_schema import ChatRequest
from serve.config import LimitsConfig
from serve.conversation import turns_of
from serve.errors import ApiError, too_many_pairs
from serve.schema import CaptionOptions, CaptionRequest

_MAX_TOKENS = 200_000
"""Maximal number of strings, lists and mappings in a JSON body; more take seconds to parse."""
_PARTS = ("ignore", "only")
"""Options whose values are boxes and masks."""

Body = TypeVar("Body", bound=BaseModel)
Source = str | UploadFile
"""An image in a request: text of a JSON body, or an uploaded file."""


@dataclass(frozen=True)
class PairSource:
    """The two images of a pair as the client sent them.

    Attributes:
        fields: how error messages refer to the two images.
        id: the client's own id of the pair.
        dialogue: the text of the conversation in which they were sent, if it has any.
    """

    before: Source
    after: Source
    fields: tuple[str, str] = ("before", "after")
    id: str | None = None
    dialogue: RequestDialogue | None = None


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request for captions.

    Attributes:
        model: name of the requested model; None for the default.
        single: whether the request has one pair by itself: if it cannot be captioned, the request fails.
        stream: whether to answer by server-sent events.
        candidates_field: how error messages refer to ``options.candidates``.
        include_usage: whether a streamed chat completion ends with its usage.
        stop: a chat completion's texts end before the first of these.
        max_tokens: most words of a chat completion's captions; None for no limit. Answers have that of the dialogue.
        ignore, only: parts of the images after that do not count, and that alone count.
    """

    model: str | None
    options: Options
    pairs: tuple[PairSource, ...]
    single: bool
    stream: bool
    candidates_field: str = "candidates"
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    ignore: tuple[Box | Source, ...] = ()
    only: tuple[Box | Source, ...] = ()


class Intake:
    """Parses the requests of both interfaces within the limits."""

    def __init__(self, limits: LimitsConfig):
        self._limits = limits

    @asynccontextmanager
    async def captions(self, request: Request) -> AsyncIterator[ParsedRequest]:
        """The job of a request to ``/v1/captions``, JSON or a form. Uploaded files are open inside the ``with``.

        Raises:
            ApiError: the body is refused, as in :meth:`_json` and :meth:`_form`.
        """
        if _content_type(request) == "multipart/form-data":
            form = await self._form(request)
            try:
                options, pairs = _of_form(form)
                ignore, only = ([file for file in form.getlist(name) if not isinstance(file, str)] for name in _PARTS)
                job = _job(options, pairs, len(pairs) == 1)
                yield replace(job, ignore=(*job.ignore, *ignore), only=(*job.only, *only))
            finally:
                await form.close()
            return
        body = await self._json(request, CaptionRequest)
        if body.pairs is None:
            yield _job(body, (PairSource(body.before or "", body.after or ""),), True)
        else:
            yield _job(body, _numbered((pair.before, pair.after, pair.id) for pair in body.pairs), False)

    async def chat(self, request: Request) -> ParsedRequest:
        """The job of a request to ``/v1/chat/completions``: the last two images of the conversation are the pair, and
        its text is the dialogue.

        Raises:
            ApiError: the body is refused, as in :meth:`_json`; 400 it has fewer than two images, or it requests
                something that a captioner does not support; 413 its text is too long.
        """
        body = await self._json(request, ChatRequest)
        _refuse_unsupported(body)
        pair = last_pair(body)
        return ParsedRequest(
            model=body.model,
            options=Options(candidates=body.n or 1),
            pairs=(replace(pair, dialogue=self._dialogue(body, pair)),),
            single=True,
            stream=bool(body.stream),
            candidates_field="n",
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            stop=tuple(body.stop or ()),
            max_tokens=body.max_completion_tokens or body.max_tokens,
            ignore=body.ignore,
            only=body.only,
        )

    def _dialogue(self, body: ChatRequest, pair: PairSource) -> RequestDialogue | None:
        limits = self._limits
        turns = turns_of(body, pair.fields)
        if len(turns) > limits.turns:
            message = f"messages: {len(turns)} turns exceed the limit of {limits.turns}; leave older turns out"
            raise ApiError(413, "too_many_turns", message, "messages")
        if sum(len(turn.text) for turn in turns) > limits.text_chars:
            message = f"messages: the text exceeds the limit of {limits.text_chars:,} characters; leave older turns out"
            raise ApiError(413, "text_too_long", message, "messages")
        wanted = body.max_completion_tokens or body.max_tokens
        return RequestDialogue(turns, wanted and min(wanted, limits.answer_tokens)) if turns else None

    async def _json(self, request: Request, schema: type[Body]) -> Body:
        """The body, validated by ``schema``.

        Raises:
            ApiError: 415 not JSON by its header, 400 no JSON or nested too deep, 413 too long, 422 not of the schema.
        """
        kind = _content_type(request)
        if kind != "application/json":
            message = f"the content type must be application/json, not {kind[:80] or 'none'!r}"
            raise ApiError(415, "not_json", message)
        _refuse_packed(request)
        # Not request.body(), which keeps the body next to its parsed values until the request is answered.
        value = _parsed(b"".join([chunk async for chunk in request.stream()]), self._limits.json_depth)
        try:
            return schema.model_validate(value, strict=True)
        except ValidationError as error:
            raise _invalid(error, schema) from None

    async def _form(self, request: Request) -> FormData:
        """The fields and files of a multipart body; the caller must close it.

        Raises:
            ApiError: 400 it is damaged, 413 it has too many parts.
        """
        _refuse_packed(request)
        most = 2 * self._limits.pairs + len(_PARTS)
        parser = MultiPartParser(request.headers, request.stream(), max_files=most, max_fields=32, max_part_size=4096)
        try:
            return await parser.parse()
        except MultiPartException as error:
            if error.message.startswith("Too many files"):
                raise too_many_pairs(self._limits) from None
            raise ApiError(400, "invalid_multipart", error.message) from None


def _job(body: CaptionOptions, pairs: tuple[PairSource, ...], single: bool) -> ParsedRequest:
    options = Options(body.beams, body.candidates, body.change_map, body.objects, body.polygons)
    return ParsedRequest(body.model, options, pairs, single, body.stream, ignore=body.ignore, only=body.only)


def _numbered(pairs: Iterator[tuple[Source, Source, str | None]]) -> tuple[PairSource, ...]:
    """Several pairs of one request; error messages refer to their images by index."""
    return tuple(
        PairSource(before, after, (f"pairs.{index}.before", f"pairs.{index}.after"), name)
        for index, (before, after, name) in enumerate(pairs)
    )


def _of_form(form: FormData) -> tuple[CaptionOptions, tuple[PairSource, ...]]:
    """Options and files of a form: as many ``before`` as ``after``, in the same order; without the files of masks."""
    files = {name: form.getlist(name) for name in ("before", "after")}
    texts: dict[str, Any] = {name: value for name, value in form.items() if name not in files}
    texts |= {name: [text for text in form.getlist(name) if isinstance(text, str)] for name in _PARTS}
    try:
        options = CaptionOptions.model_validate(texts)
    except ValidationError as error:
        raise _invalid(error, CaptionOptions) from None
    for name, values in files.items():
        if not values or any(isinstance(value, str) for value in values):
            message = f"{name}: must be uploaded as a file, as with curl -F {name}=@image.png"
            raise ApiError(422, "not_a_file", message, name)
    before, after = files["before"], files["after"]
    if len(before) != len(after):
        counts = f"{len(before)} files before and {len(after)} after"
        raise ApiError(422, "unequal_pairs", f"{counts}; send the same number of each", "after")
    if len(before) == 1:
        return options, (PairSource(before[0], after[0]),)
    return options, _numbered((first, second, None) for first, second in zip(before, after, strict=True))


def last_pair(body: ChatRequest) -> PairSource:
    """The pair of a conversation: its last two images, before first.

    Raises:
        ApiError: 400, there are fewer than two images, or more than two since the last answer.
    """
    urls = list(_image_urls(body))
    if len(urls) < 2:
        raise ApiError(
            400,
            "two_images_needed",
            f"the conversation holds {len(urls) or 'no'} image{'s' * (len(urls) != 1)}, but a caption needs two: "
            "send the image before and the image after as two parts "
            '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}',
            "messages",
        )
    answered = max((i for i, message in enumerate(body.messages) if message.role == "assistant"), default=-1)
    new = sum(int(field.split(".")[1]) > answered for field, _ in urls)
    if new > 2:
        raise ApiError(
            400,
            "too_many_images",
            f"the conversation holds {new} new images, but is about one pair: send one pair per request, or several "
            "to /v1/captions",
            "messages",
        )
    (before_field, before), (after_field, after) = urls[-2:]
    return PairSource(before, after, (before_field, after_field))


def _image_urls(body: ChatRequest) -> Iterator[tuple[str, str]]:
    """Field and URL of every image of a conversation."""
    for i, message in enumerate(body.messages):
        for j, part in enumerate(message.content or []):
            if part.type == "image_url" and part.image_url is not None:
                yield f"messages.{i}.content.{j}.image_url.url", part.image_url.url


def _refuse_unsupported(body: ChatRequest) -> None:
    """Refuse what a captioner does not support and a client would miss.

    Raises:
        ApiError: 400, with the field.
    """
    if body.logprobs:
        message = (
            "log-probabilities are not available per token: leave logprobs out and read log_probability of each "
            "choice, the mean over its tokens"
        )
        raise ApiError(400, "unsupported", message, "logprobs")
    if body.response_format is not None and body.response_format.type != "text":
        message = f"captions are plain text, not {body.response_format.type}: leave response_format out"
        raise ApiError(400, "unsupported", message, "response_format.type")
    if body.temperature not in (None, 0, 1):
        message = "texts are searched for, not sampled: leave temperature out, or set it to 0 or 1"
        raise ApiError(400, "unsupported", message, "temperature")
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(body, name):
            message = f"texts are searched for, not sampled: leave {name} out{' or set it to 0' * (name[0] != 'l')}"
            raise ApiError(400, "unsupported", message, name)
    if body.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "unsupported", "a captioner calls no tools: leave tool_choice out", "tool_choice")


def _content_type(request: Request) -> str:
    """The media type of a body, lower case, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _refuse_packed(request: Request) -> None:
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("", "identity"):
        message = f"Content-Encoding {packing[:80]!r} is not supported; send the body uncompressed"
        raise ApiError(415, "packed_body", message)


def _parsed(body: bytes, max_depth: int) -> Any:
    """The value of a JSON body. The parser itself refuses NaN, duplicate keys and more than 200 nested brackets."""
    if body.count(b'"') + body.count(b"[") + body.count(b"{") + body.count(b",") > _MAX_TOKENS:
        message = f"the JSON body has more than {_MAX_TOKENS:,} elements; send fewer pairs per request"
        raise ApiError(413, "json_too_long", message)
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        if "recursion" not in str(error):
            raise ApiError(400, "invalid_json", f"the body is not valid JSON: {str(error)[:200]}") from None
        depth = max_depth + 1
    else:
        depth = _depth(value)
    if depth > max_depth:
        raise ApiError(400, "json_too_deep", f"the JSON body is nested more than {max_depth} levels deep")
    return value


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _invalid(error: ValidationError, schema: type[BaseModel]) -> ApiError:
    """The first faults of a body, in words; values are left out because they may be images."""
    items = error.errors(include_url=False, include_input=False, include_context=False)
    lines = []
    for item in items[:5]:
        path = ".".join(str(part)[:80] for part in item["loc"])
        if item["type"] == "extra_forbidden":
            fields = list(schema.model_fields) if len(item["loc"]) == 1 else []
            lines.append(f"{path}: no such field{did_you_mean(str(item['loc'][-1])[:80], fields)}")
        else:
            lines.append(f"{path}: {item['msg']}" if path else item["msg"].removeprefix("Value error, "))
    if len(items) > len(lines):
        lines.append(f"and {len(items) - len(lines)} more faults")
    param = ".".join(str(part)[:80] for part in items[0]["loc"]) or None
    return ApiError(422, "invalid_request", "; ".join(lines), param)
