"""Dialogues as ids: what is learned, the prompt, transformers' own processors; and as samples of supervised tuning."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tiny_vlm import processor_of
from idc.data.schema import IMAGE, Turn
from idc.vlm.base import read_family
from idc.vlm.chat import Chat, EncodedDialogue, caption_turns, with_default_turns
from idc.vlm.config import PromptConfig
from idc.vlm.families import family_class
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples
from tests.vlm.folders import CAPTIONS, samples
from tests.vlm.models import every_family, found, tiny_folder

TEMPLATES = Path(__file__).parent / "chat_templates"
NAMED_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
WORDS = (
    "the", "cube", "was", "added .", "don't", "Größe", "naïve café", "e\u0301te\u0301", "東側に", "建物が増えた。",
    "مبنى", "जोड़ा", "🏠➡️🏢", "👩‍🚀", "\u200bzero\u200d", "3.5", "1234567", "\n\n", "\t", "  ", "(x, y)", "<image",
    "<|im_", "image>", "{{ x }}", "{% if %}", "%s", "</s>", "\\n", "'''", '"', "—", "\u00a0", "user", "assistant",
)  # fmt: skip


@cache
def family_of(kind: str) -> Family:
    """A small model's family with the chat template and the tokenizer class of the real models."""
    from transformers import Qwen2Tokenizer

    family = found(kind).family
    small = json.loads(family.tokenizer.backend_tokenizer.to_str())
    special = {entry["content"] for entry in small["added_tokens"]}
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for token, number in small["model"]["vocab"].items() if token not in special},
        merges=[tuple(pair) for pair in small["model"]["merges"]],  # type: ignore[misc]  # pairs are read too
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=NAMED_TOKENS if kind == "internvl" else {},
    )
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(special)}, replace_extra_special_tokens=False)
    tokenizer.chat_template = (TEMPLATES / f"{kind}.jinja").read_text(encoding="utf-8")
    return family_class(kind, "here")(family.config, tokenizer, family.images, family.max_pixels)


def text(rng: random.Random, most: int) -> str:
    """Words and worse; never white space alone."""
    words = rng.choice((" ", " ", "")).join(rng.choices(WORDS, k=rng.randint(1, most)))
    return words if words.strip() else text(rng, most)


def dialogues(kind: str, count: int) -> Iterator[tuple[list[Turn], list[tuple[int, int]]]]:
    """Random dialogues: 1 to 5 answers, 1 to 4 images of any size anywhere in the questions, at times a system turn."""
    rng = random.Random(f"dialogues of {kind}")
    for _ in range(count):
        turns = [Turn("system", text(rng, 5) + " system")] if rng.random() < 0.3 else []
        rounds = rng.randint(1, 5)
        places = sorted(rng.choices(range(rounds), k=rng.randint(1, 4)))
        for number in range(rounds):
            parts = [text(rng, 6)]
            for _ in range(places.count(number)):
                parts.insert(0 if rng.random() < 0.4 else rng.randint(0, len(parts)), IMAGE)
                parts.append(text(rng, 3))
            turns += [Turn("user", " ".join(parts)), Turn("assistant", text(rng, 12), "caption")]
        yield turns, [(rng.randint(20, 150), rng.randint(20, 150)) for _ in places]


def answers(turns: Sequence[Turn]) -> list[str]:
    return [turn.text.strip() for turn in turns if turn.role == "assistant"]


def learned_runs(encoded: EncodedDialogue) -> list[list[int]]:
    """The learned ids, one list for each run of them."""
    return [
        [token for token, _ in run]
        for said, run in groupby(zip(encoded.ids, encoded.learned, strict=True), key=lambda one: one[1])
        if said
    ]


@every_family
def test_dialogues_are_those_of_the_processor_and_their_answers_are_learned(kind: str) -> None:
    """Ids: through transformers' own processor, its template, placeholders and tokenizer. Learned: the answers with
    their ends. What stands before an answer in training is what generation is given."""
    family = family_of(kind)
    chat, tokenizer, processor = Chat(family), family.tokenizer, processor_of(family)
    for turns, sizes in dialogues(kind, 60):
        encoded = chat.encode(turns, sizes)
        messages = [{"role": turn.role, "content": parts(turn.text, family)} for turn in turns]
        whole = processor.apply_chat_template(messages, tokenize=False)
        if kind == "llava_onevision":  # its template opens answers in two ways; here all are as in its prompt
            whole = whole.replace("<|im_start|>assistant \n", "<|im_start|>assistant\n")
        ids, encoded_ids = read(processor, family, whole, sizes), encoded.ids
        if tokenizer.decode(ids[-1:]) == "\n":  # after the end of the last turn: nobody reads or learns it
            ids = ids[:-1]
        if kind == "llava_onevision" and len(sizes) == 1:  # the processor cuts the only image of a sample into patches
            ids, encoded_ids = collapsed(ids, family), collapsed(encoded_ids, family)
        assert ids == encoded_ids
        runs = learned_runs(encoded)
        # The real models' tokenizer composes characters.
        wanted = [unicodedata.normalize("NFC", answer) for answer in answers(turns)]
        assert [tokenizer.decode(run) for run in runs] == [answer + tokenizer.eos_token for answer in wanted]
        assert all(run.count(tokenizer.eos_token_id) == 1 and run[-1] == tokenizer.eos_token_id for run in runs)
        assert runs == [chat.answer_ids(answer) for answer in answers(turns)]
        starts = [number for number, said in enumerate(encoded.learned) if said and not encoded.learned[number - 1]]
        places = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
        for start, position in zip(starts, places, strict=True):
            shown = sum(turn.text.count(IMAGE) for turn in turns[:position])
            assert chat.prompt(turns[:position], sizes[:shown]) == encoded.ids[:start]


def parts(said: str, family: Family) -> list[dict[str, str]]:
    """The content of a message. Templates may move images before the text, or write a line after each (all but
    Qwen's): there, images inside a sentence are written as the family's placeholder."""
    said = said.strip()
    if family.name.startswith("qwen"):
        pieces = Turn("user", said).pieces()
        leading = next((number for number, piece in enumerate(pieces) if piece.strip() not in ("", IMAGE)), len(pieces))
        pieces = [piece for piece in pieces[:leading] if piece == IMAGE] + pieces[leading:]
        content = [{"type": "image"} if piece == IMAGE else {"type": "text", "text": piece} for piece in pieces]
        first = next((part for part in content if part["type"] == "text"), None)
        if first is not None and content.index(first):
            first["text"] = first["text"].lstrip()
        return content
    images = 0
    while said.startswith(IMAGE):
        said, images = said.removeprefix(IMAGE).lstrip(), images + 1
    written: list[dict[str, str]] = [{"type": "text", "text": said.replace(IMAGE, family.image_token)}] if said else []
    return [{"type": "image"}] * images + written


def read(processor: Any, family: Family, said: str, sizes: Sequence[tuple[int, int]]) -> list[int]:
    images: Any = [np.zeros((*size, 3), np.uint8) for size in sizes]
    more = {"crop_to_patches": False} if family.name == "internvl" else {}
    ids = processor(text=[said], images=[images] if family.name == "llava_onevision" else images, **more)["input_ids"]
    return list(ids[0])


def collapsed(ids: Sequence[int], family: Family) -> list[int]:
    """Ids with one image token for each image."""
    return [token for n, token in enumerate(ids) if token != family.image_id or not n or ids[n - 1] != token]


def test_the_template_of_the_processor_is_the_models(tmp_path: Path) -> None:
    """Older folders have it in chat_template.json, next to one of the language model alone."""
    for path in tiny_folder("llava_onevision").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] + 'a text' }}")
    template = (TEMPLATES / "llava_onevision.jinja").read_text(encoding="utf-8")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert read_family(tmp_path, tmp_path, None).tokenizer.chat_template != template
    (tmp_path / "chat_template.jinja").unlink()
    assert read_family(tmp_path, tmp_path, None).tokenizer.chat_template == template
    (tmp_path / "chat_template.json").write_text("[]")
    with pytest.raises(ValueError, match="has no usable tokenizer or image processor"):
        read_family(tmp_path, tmp_path, None)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages | length }}{% for m in messages %}{{ m.content[0].text }}<|im_end|>{% endfor %}", "rewrites"),
        ("{% for m in messages %}{{ m.content[0].text }};{% endfor %}assistant:", "does not write an answer"),
        ("{% for m in messages %}{{ m.role }}:{{ m.content[0].text }}<|im_end|>{% endfor %}"
         "{% if add_generation_prompt %}assistant:<think>{% endif %}",
         "asks for an answer with 'assistant:<think>', and writes one after 'assistant:'"),
    ],
)  # fmt: skip
def test_templates_that_cannot_be_trained_on(template: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = family_of("internvl")
    monkeypatch.setattr(family.tokenizer, "chat_template", template)
    turns = [Turn("user", "a?"), Turn("assistant", "b", "x"), Turn("user", "c?"), Turn("assistant", "d", "x")]
    with pytest.raises(ValueError, match=message):
        Chat(family).encode(turns, [])


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
