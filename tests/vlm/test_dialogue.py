"""Turns of captions and dialogues before the chat template."""

from __future__ import annotations

from idc.data.schema import IMAGE, Turn
from idc.vlm.chat import caption_turns, with_default_turns
from idc.vlm.config import PromptConfig

PROMPT = PromptConfig(text=f"From {IMAGE} to {IMAGE}?", system="Be brief.")


def test_images_alone_are_the_models_own_question() -> None:
    assert caption_turns(PROMPT) == (Turn("system", "Be brief."), Turn("user", PROMPT.text))
    assert with_default_turns([Turn("user", IMAGE * 2)], PROMPT) == caption_turns(PROMPT)
    later = [Turn("user", f"{IMAGE} {IMAGE}"), Turn("assistant", "a cube"), Turn("user", "red?")]
    assert with_default_turns(later, PROMPT)[1:] == (Turn("user", PROMPT.text), *later[1:])


def test_a_text_stays_as_it_is_and_images_are_somewhere() -> None:
    asked = [Turn("system", "You count."), Turn("user", f"In {IMAGE} and {IMAGE}: how many?")]
    assert with_default_turns(asked, PROMPT) == tuple(asked)
    bare = [Turn("user", "how many?"), Turn("assistant", "two"), Turn("user", "red?")]
    plain = PromptConfig()
    assert with_default_turns(bare, plain) == (Turn("user", f"{IMAGE * 2}how many?"), *bare[1:])
