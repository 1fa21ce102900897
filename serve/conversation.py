"""Parse: a conversation becomes a :class:`~serve.intake.ParsedRequest`: its last two images are the pair, and its text
is the dialogue that a model which answers reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from idc.data.schema import IMAGE, Turn
from serve.backend import Options, RequestDialogue
from serve.chat_schema import ChatRequest, Message
from serve.config import LimitsConfig
from serve.errors import ApiError
from serve.intake import PairSource, ParsedRequest

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role of a message -> role of its turn; tools' messages are not read."""
_TWO_NEEDED = (
    "but a caption needs two: send the image before and the image after as two parts "
    '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
)


def of_chat(body: ChatRequest, limits: LimitsConfig) -> ParsedRequest:
    """The job of a conversation.

    Raises:
        ApiError: 400 it has fewer than two images or more than two since the last answer; 413 its text is too long.
    """
    images = {
        f"messages.{i}.content.{j}.image_url.url": part.image_url.url
        for i, message in enumerate(body.messages)
        for j, part in enumerate(message.content or ())
        if part.image_url is not None
    }
    if len(images) < 2:
        message = f"the conversation holds {len(images) or 'no'} image{'s' * (not images)}, {_TWO_NEEDED}"
        raise ApiError(400, "two_images_needed", message, "messages")
    answered = max((i for i, message in enumerate(body.messages) if message.role == "assistant"), default=-1)
    if (new := sum(int(field.split(".")[1]) > answered for field in images)) > 2:
        message = (
            f"the conversation holds {new} new images, but is about one pair: send one pair per request, or several"
        )
        raise ApiError(400, "too_many_images", f"{message} to /v1/captions", "messages")
    before, after = list(images)[-2:]
    turns = turns_of(body, (before, after))
    for code, count, most, unit in (
        ("too_many_turns", len(turns), limits.turns, "turns"),
        ("text_too_long", sum(len(turn.text) for turn in turns), limits.text_chars, "characters"),
    ):
        if count > most:
            message = f"messages: {count:,} {unit} exceed the limit of {most:,}; leave older turns out"
            raise ApiError(413, code, message, "messages")
    longest = body.max_completion_tokens or body.max_tokens
    dialogue = RequestDialogue(turns, longest and min(longest, limits.answer_tokens)) if turns else None
    return ParsedRequest(
        model=body.model,
        options=Options(candidates=body.n or 1),
        pairs=(PairSource(images[before], images[after], (before, after), dialogue),),
        single=True,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        stop=tuple(body.stop or ()),
        ignore=body.ignore,
        only=body.only,
    )


def turns_of(body: ChatRequest, pair: tuple[str, str]) -> tuple[Turn, ...]:
    """The turns of a conversation, as :meth:`idc.captioning.contract.Captioner.answer` takes them if
    :func:`fault_of` finds no fault; none if the conversation has no text.

    System messages become the first turn, and messages of one role in a row one turn. The pair's images have a mark in
    the user's turn in which they were sent, or, sent by others, in the next one; older images have none.

    Args:
        pair: the fields of the pair's images, ``messages.0.content.1.image_url.url``.
    """
    system: list[str] = []
    turns: list[tuple[str, list[str]]] = []
    marks = 0  # images that were sent in a turn of others

    def add(role: str, text: str) -> None:
        if turns and turns[-1][0] == role:
            turns[-1][1].append(text)
        else:
            turns.append((role, [text]))

    for number, message in enumerate(body.messages):
        role = _ROLES.get(message.role)
        pieces = list(_pieces(message, f"messages.{number}", pair))
        text = "".join(pieces)
        if role == "user":
            if text or marks:
                add(role, IMAGE * marks + text)
            marks = 0
            continue
        marks += pieces.count(IMAGE)
        text = text.replace(IMAGE, "")
        if role == "system" and text.strip():
            system.append(text)
        elif role == "assistant" and text.strip():
            add(role, text)
    if not system and all(not text.replace(IMAGE, "").strip() for _, texts in turns for text in texts):
        return ()
    if marks:  # nobody asks after them
        add("user", IMAGE * marks)
    first = [Turn("system", "\n".join(system))] if system else []
    return (*first, *(Turn(role, "\n".join(texts)) for role, texts in turns))


def _pieces(message: Message, field: str, pair: tuple[str, str]) -> Iterator[str]:
    """Texts, and :data:`IMAGE` for an image of the pair, in the order of the message; texts in a row are lines."""
    text_before = False
    for number, part in enumerate(message.content or ()):
        if part.image_url is not None:
            text_before = False
            if f"{field}.content.{number}.image_url.url" in pair:
                yield IMAGE
        elif text := part.text or part.refusal:
            yield f"\n{text}" if text_before else text
            text_before = True


def fault_of(turns: Sequence[Turn]) -> str | None:
    """Why a model that answers cannot read a conversation, or None."""
    spoken = [turn for turn in turns if turn.role != "system"]
    if sum(turn.text.count(IMAGE) for turn in turns) != 2:
        return f"the text has {IMAGE} in it, which stands for an image: leave it out, images are parts of their own"
    if spoken[0].role == "assistant":
        return "the conversation begins with a turn of the assistant; begin with the user's"
    if spoken[-1].role == "assistant":
        return "the last turn is the assistant's own; end with the user's"
    return None
