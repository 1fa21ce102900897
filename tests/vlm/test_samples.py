"""Samples of supervised tuning: turns before the chat template, captions, lengths, shuffled images."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.data.schema import IMAGE, Turn
from idc.vlm.chat import Chat, caption_turns, with_default_turns
from idc.vlm.config import PromptConfig
from idc.vlm.samples import DialogueSamples
from tests.vlm.folders import CAPTIONS, samples
from tests.vlm.models import found


def test_every_caption_is_a_sample_or_one_of_a_pair_is_drawn(folders: dict[str, Path]) -> None:
    each, one = (samples("internvl", folders["pairs"], captions=how) for how in ("each", "one"))
    counts = [number % 3 for number in range(12)]
    assert len(each) == sum(counts)
    assert len(one) == sum(count > 0 for count in counts)
    chat = Chat(found("internvl").family)

    def texts(dataset: DialogueSamples, epoch: int) -> list[str]:
        made = [dataset.get(index, epoch).sample for index in range(len(dataset))]
        return [chat.decode([i for i, learned in zip(s.ids, s.learned, strict=True) if learned]) for s in made]

    expected = [CAPTIONS[(number + n) % 3] for number, count in enumerate(counts) for n in range(count)]
    assert texts(each, 0) == expected
    assert texts(one, 3) == texts(one, 3)
    assert len({tuple(texts(one, epoch)) for epoch in range(8)}) > 1


def test_the_length_is_that_of_the_sample_without_opening_its_images(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in folders.values():
        dataset = samples("qwen2_5_vl", data)
        lengths = [len(dataset.get(index, 1).sample.ids) for index in range(len(dataset))]
        with monkeypatch.context() as patch:
            patch.setattr("idc.vlm.samples.decode_image", None)
            assert [dataset.length(index, 1) for index in range(len(dataset))] == lengths
        assert len(set(lengths)) > 2


def test_each_rank_checks_its_share(folders: dict[str, Path]) -> None:
    chat = Chat(found("internvl").family, cutoff=16)
    dataset = DialogueSamples(str(folders["pairs"]), "train", chat, PromptConfig(), 0)
    names = set()
    for rank in range(2):
        with pytest.raises(ValueError, match="above the cutoff") as caught:
            dataset.check(rank, 2)
        names.add(str(caught.value).split("'")[1])
    assert len(names) == 2


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
