"""Conversations become turns: what a model that answers reads, and which texts a captioner refuses."""

from __future__ import annotations

from typing import Any

import pytest

from idc.data.schema import IMAGE, Turn
from serve.backend import fault_of
from serve.chat import of_chat
from serve.config import LimitsConfig
from serve.schema import ChatRequest

PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def turns(*messages: tuple[str, Any]) -> tuple[Turn, ...]:
    body = ChatRequest.model_validate({"messages": [{"role": role, "content": text} for role, text in messages]})
    dialogue = of_chat(body, LimitsConfig()).pairs[0].dialogue
    return () if dialogue is None else dialogue.turns


def test_the_images_stay_where_they_were_sent() -> None:
    parts = [said("Please describe the changes in "), PICTURE, said(" and "), PICTURE, said("."), said("Briefly.")]
    assert turns(("user", parts)) == (Turn("user", f"Please describe the changes in {IMAGE} and {IMAGE}.\nBriefly."),)


def test_only_the_last_two_images_have_marks_and_those_of_others_stand_in_the_next_turn_of_the_user() -> None:
    assert turns(("user", [PICTURE, PICTURE, said("old")]), ("assistant", [PICTURE, said("a picture")]),
                 ("user", [PICTURE, said("new")])) == (
        Turn("user", "old"), Turn("assistant", "a picture"), Turn("user", f"{IMAGE * 2}new"),
    )  # fmt: skip
    assert turns(("system", [PICTURE, PICTURE, said("x")]), ("user", "What is this?"))[1].text == (
        f"{IMAGE * 2}What is this?"
    )
    assert turns(("user", "Draw two."), ("assistant", [PICTURE, PICTURE]))[0].text == f"Draw two.\n{IMAGE * 2}"


def test_the_last_two_images_are_the_pair_and_what_tools_say_is_not_read() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": f"data:,{number}"}} for number in range(3)]
    messages = [
        {"role": "user", "content": [said("What changed?"), pictures[0]]},
        {"role": "developer", "content": "Describe what changed."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "nothing"},
        {"role": "user", "content": [pictures[1]]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I need another image."}]},
        {"role": "user", "content": [pictures[2]]},
    ]
    (pair,) = of_chat(ChatRequest.model_validate({"messages": messages}), LimitsConfig()).pairs
    assert (pair.before, pair.after) == ("data:,1", "data:,2")
    assert pair.fields == ("messages.4.content.0.image_url.url", "messages.6.content.0.image_url.url")
    assert pair.dialogue is not None
    assert pair.dialogue.turns == (
        Turn("system", "Describe what changed."),
        Turn("user", f"What changed?\n{IMAGE}"),
        Turn("assistant", "I need another image."),
        Turn("user", IMAGE),
    )


def test_images_alone_are_no_dialogue() -> None:
    assert turns(("user", [PICTURE, PICTURE])) == ()
    assert turns(("user", [PICTURE, said(" ")]), ("assistant", None), ("user", [PICTURE, said("")])) == ()


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([("user", [PICTURE, PICTURE, said(f"what is {IMAGE}?")])], f"the text has {IMAGE} in it"),
        ([("user", [PICTURE, PICTURE]), ("assistant", "a cube")], "end with the user's"),
        ([("assistant", "Hello"), ("user", [PICTURE, PICTURE, said("hi")])], "begin with the user's"),
    ],
)
def test_what_a_model_cannot_read_is_named(messages: list[Any], fault: str) -> None:
    assert fault in (fault_of(turns(*messages)) or "")


def test_a_text_of_the_assistant_cannot_stand_for_an_image() -> None:
    assert turns(("user", [PICTURE, PICTURE, said("a")]), ("assistant", f"b{IMAGE}"), ("user", "c"))[1].text == "b"
