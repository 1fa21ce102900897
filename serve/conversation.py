"""The text of a conversation about a pair: the turns that a model which answers reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from idc.data.schema import IMAGE, Turn
from serve.chat_schema import ChatRequest, Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role of a message -> role of its turn; tools' messages are not read."""


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
    for number, message in enumerate(body.messages):
        role = _ROLES.get(message.role)
        pieces = list(_pieces(message, f"messages.{number}", pair))
        text = "".join(pieces).replace(IMAGE, "") if role != "user" else ""
        if role == "user":
            pieces, marks = [IMAGE] * marks + pieces, 0
            if pieces:
                _add(turns, role, "".join(pieces))
        else:
            marks += pieces.count(IMAGE)
            if role == "system" and text.strip():
                system.append(text)
            elif role == "assistant" and text.strip():
                _add(turns, role, text)
    if not system and all(not text.replace(IMAGE, "").strip() for _, texts in turns for text in texts):
        return ()
    if marks:  # nobody asks after them
        _add(turns, "user", IMAGE * marks)
    first = [Turn("system", "\n".join(system))] if system else []
    return (*first, *(Turn(role, "\n".join(texts)) for role, texts in turns))


def _add(turns: list[tuple[str, list[str]]], role: str, text: str) -> None:
    if turns and turns[-1][0] == role:
        turns[-1][1].append(text)
    else:
        turns.append((role, [text]))


def _pieces(message: Message, field: str, pair: tuple[str, str]) -> Iterator[str]:
    """Texts, and :data:`IMAGE` for an image of the pair, in the order of the message; texts in a row are lines."""
    text_before = False
    for number, part in enumerate(message.content or ()):
        if part.type == "image_url":
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
