"""Parse: the body of a request of either interface becomes a :class:`ParsedRequest`. No image is read here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.datastructures import UploadFile

from idc.captioning.counted import Box
from serve.backend import Options, RequestDialogue
from serve.chat_schema import ChatRequest
from serve.config import LimitsConfig
from serve.conversation import turns_of
from serve.errors import ApiError
from serve.schema import CaptionForm

Source = str | UploadFile
"""An image in a request: a data URL, or an uploaded file."""


@dataclass(frozen=True)
class PairSource:
    """The two images of a pair as the client sent them.

    Attributes:
        fields: how error messages refer to the two images.
        dialogue: the text of the conversation in which they were sent, if it has any.
    """

    before: Source
    after: Source
    fields: tuple[str, str] = ("before", "after")
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


def of_form(form: CaptionForm) -> ParsedRequest:
    """The job of a form: as many images before as after, in the same order.

    Raises:
        ApiError: 422, the numbers differ.
    """
    before, after = form.before, form.after
    if len(before) != len(after):
        counts = f"{len(before)} files before and {len(after)} after"
        raise ApiError(422, "unequal_pairs", f"{counts}; send the same number of each", "after")
    single = len(before) == 1
    pairs = tuple(
        PairSource(*files, ("before", "after") if single else (f"pairs.{index}.before", f"pairs.{index}.after"))
        for index, files in enumerate(zip(before, after, strict=True))
    )
    options = Options(form.beams, form.candidates, form.change_map, form.objects, form.polygons)
    return ParsedRequest(form.model, options, pairs, single, form.stream, ignore=form.ignore, only=form.only)


def of_chat(body: ChatRequest, limits: LimitsConfig) -> ParsedRequest:
    """The job of a conversation: its last two images are the pair, and its text is the dialogue.

    Raises:
        ApiError: 400 it has fewer than two images, or it requests something that a captioner does not support; 413 its
            text is too long.
    """
    _refuse_unsupported(body)
    pair = last_pair(body)
    return ParsedRequest(
        model=body.model,
        options=Options(candidates=body.n or 1),
        pairs=(PairSource(pair.before, pair.after, pair.fields, _dialogue(body, pair, limits)),),
        single=True,
        stream=bool(body.stream),
        candidates_field="n",
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        stop=tuple(body.stop or ()),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        ignore=body.ignore,
        only=body.only,
    )


def _dialogue(body: ChatRequest, pair: PairSource, limits: LimitsConfig) -> RequestDialogue | None:
    turns = turns_of(body, pair.fields)
    if len(turns) > limits.turns:
        message = f"messages: {len(turns)} turns exceed the limit of {limits.turns}; leave older turns out"
        raise ApiError(413, "too_many_turns", message, "messages")
    if sum(len(turn.text) for turn in turns) > limits.text_chars:
        message = f"messages: the text exceeds the limit of {limits.text_chars:,} characters; leave older turns out"
        raise ApiError(413, "text_too_long", message, "messages")
    wanted = body.max_completion_tokens or body.max_tokens
    return RequestDialogue(turns, wanted and min(wanted, limits.answer_tokens)) if turns else None


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
