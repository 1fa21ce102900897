"""The turns of which a prompt is made: of a request for a caption, and of a dialogue about a pair."""

from __future__ import annotations

from collections.abc import Sequence

from idc.data.schema import IMAGE, Turn
from idc.vlm.config import PromptConfig

CHANGE_QUESTION = (
    "Did anything change from the first image to the second, other than the light and the camera? Answer yes or no."
)
YES_OR_NO = ("yes", "no")
"""Answers to :data:`CHANGE_QUESTION`."""


def caption_turns(prompt: PromptConfig) -> tuple[Turn, ...]:
    """The turns of a request for a caption; the text has a mark for each image."""
    return completed([Turn("user", prompt.text)], prompt)


def change_question(prompt: PromptConfig) -> tuple[Turn, ...]:
    """The turns that ask whether anything changed, with the prompt's system turn."""
    return completed([Turn("user", CHANGE_QUESTION)], prompt)


def completed(turns: Sequence[Turn], prompt: PromptConfig) -> tuple[Turn, ...]:
    """The turns of a dialogue as :meth:`idc.captioning.contract.Captioner.answer` takes them, ready for the
    chat template: with the model's own question where a user's turn is the two images alone, with the images before
    the first text of the user if they are nowhere, and with the prompt's system turn if there is no other."""
    dialogue = list(turns)
    if not any(IMAGE in turn.text for turn in dialogue):
        first = next((index for index, turn in enumerate(dialogue) if turn.role == "user"), None)
        if first is not None:
            dialogue[first] = Turn("user", IMAGE * 2 + dialogue[first].text)
    for index, turn in enumerate(dialogue):
        if turn.role == "user" and turn.text.count(IMAGE) == 2 and not turn.text.replace(IMAGE, "").strip():
            dialogue[index] = Turn("user", prompt.text)
    if prompt.system is not None and all(turn.role != "system" for turn in dialogue):
        dialogue.insert(0, Turn("system", prompt.system))
    return tuple(dialogue)
