"""NAMC's samples: the words of a description and their places, known noise, exchange, free captions, features kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.descriptions.template import PairDescription
from idc.data.store import iter_rows
from idc.data.text import Vocabulary, words
from idc.systems.namc.data import (
    DescribedPairs,
    ImageStore,
    Remembered,
    Tokens,
    collate_described,
    first_description,
    sentence_words,
)
from tests.systems.namc.tiny import described_pairs, described_samples
from tests.systems.procap.world import World


def dataset(world: World, folder: Path, **settings: Any) -> DescribedPairs:
    return described_samples(described_pairs(world, folder / "described", 0.5), **settings)


def test_the_words_of_a_sentence_are_those_of_the_whole_text() -> None:
    one = PairDescription("shows", "a red cube, and a ball", "has", "a blue cube")
    sentence, places = sentence_words(("shows", "has"), [words(one.before), words(one.after)])
    assert sentence == words(one.sentence())
    assert [word for word, (image, _) in zip(sentence, places, strict=True) if image == 0] == words(one.before)
    assert [number for image, number in places if image == 1] == [0, 1, 2]


def test_the_first_caption_that_follows_the_template_counts() -> None:
    one = PairDescription("shows", "a red cube", "has", "a blue cube")
    assert first_description(["the cube turned blue", one.sentence()]) == one
    assert first_description(["the cube turned blue"]) is None


def test_samples_are_pure_functions_of_index_and_epoch(world: World, tmp_path: Path) -> None:
    data = dataset(world, tmp_path, exchange=True)
    first, again, later = data.get(3, 1), data.get(3, 1), data.get(3, 2)
    assert np.array_equal(first["uniform_images"], again["uniform_images"])
    assert first["ids"] == again["ids"]
    assert not np.array_equal(first["uniform_images"], later["uniform_images"])


def test_exchange_exchanges_images_and_descriptions(world: World, tmp_path: Path) -> None:
    plain, exchanged = dataset(world, tmp_path / "a"), dataset(world, tmp_path / "b", exchange=True)
    epochs = [exchanged.get(0, epoch) for epoch in range(8)]
    here = plain.get(0, 0)
    swapped = [sample for sample in epochs if sample["keys"] == here["keys"][::-1]]
    assert 0 < len(swapped) < 8
    for sample in swapped:
        assert np.array_equal(sample["images"], here["images"][::-1])
        assert sample["texts"] == here["texts"][::-1]
        assert len(sample["ids"]) == len(here["ids"])
        assert sample["ids"] != here["ids"]


def test_every_target_word_points_at_its_mask(world: World, tmp_path: Path) -> None:
    data = dataset(world, tmp_path)
    samples = [data.get(index, 0) for index in range(4)]
    batch = collate_described(samples)
    count = batch["text"]["num_words"]
    word_ids = torch.zeros(8, count, dtype=torch.long)
    numbers = batch["text"]["words"]
    for row in range(8):
        inside = numbers[row] >= 0
        word_ids[row, numbers[row][inside]] = batch["text"]["ids"][row][inside]
    place, targets = batch["place"], batch["targets"]
    assert (place >= 0).sum() == sum(side >= 0 for sample in samples for side, _ in sample["places"])
    assert torch.equal(word_ids.flatten()[place[place >= 0]], targets[place >= 0])


def test_a_share_takes_the_same_pairs_of_any_run(world: World, tmp_path: Path) -> None:
    half = dataset(world, tmp_path, share=0.5)
    again = dataset(world, tmp_path / "again", share=0.5, seed=9)
    assert len(half) == 7  # of 14
    assert [row for row, _ in half.described] == [row for row, _ in again.described]


def test_pairs_without_a_description_are_refused_together_and_left_out_alone(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vocabulary = Vocabulary(["a"])
    settings: dict[str, Any] = {"vocabulary": vocabulary, "tokens": Tokens(vocabulary, 9), "positions": 16, "seed": 0}
    with pytest.raises(ValueError, match=r"no pair of split 'train' has a caption that follows the template"):
        DescribedPairs(world.pairs, "train", images=ImageStore(64, 1), length=20, **settings)


def test_pieces_of_a_word_share_its_number() -> None:
    class Pieces:
        bos_token_id, eos_token_id = 90, 91

        def encode(self, word: str, add_special_tokens: bool) -> list[int]:
            assert not add_special_tokens
            return [ord(letter) for letter in word]

    ids, numbers = Tokens(Vocabulary([]), 6, Pieces())(["ab", "c", "defg"])
    assert (ids, numbers) == ([90, 97, 98, 99, 91], [-1, 0, 0, 1, -1])  # the third word does not fit


def test_remembered_features_are_computed_once_and_within_their_room() -> None:
    calls: list[int] = []

    def compute(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return images.float().mean(dim=(1, 2))

    images = torch.randint(0, 255, (4, 8, 8, 3), dtype=torch.uint8)

    def check(keys: Sequence[bytes], remember: Any) -> None:
        assert torch.allclose(
            remember(images[: len(keys)], keys), images[: len(keys)].float().mean(dim=(1, 2)), rtol=1e-3
        )

    enough = Remembered(compute, 1)
    for _ in range(2):
        check([b"a", b"b", b"c"], enough)
    check([b"a", b"b", b"c", b"d"], enough)
    assert calls == [3, 1]
    calls.clear()
    none = Remembered(compute, 0)
    for _ in range(2):
        check([b"a", b"b"], none)
    assert calls == [2, 2]


def test_free_captions_are_used_as_they_are_where_they_are_wanted(world: World) -> None:
    captions = [row["captions"][0] for row in iter_rows(world.pairs, ["captions"], "train")]
    vocabulary = Vocabulary.build(captions)
    data = DescribedPairs(
        world.pairs, "train", images=ImageStore(64, 8), vocabulary=vocabulary, tokens=Tokens(vocabulary, 9),
        positions=16, length=40, seed=0, free=True, exchange=True,
    )  # fmt: skip
    assert len(data) == len(captions)
    batch = collate_described([data.get(index, epoch) for index in range(3) for epoch in range(2)])
    assert [vocabulary.decode(row) for row in batch["targets"].tolist()][::2] == [
        vocabulary.decode(vocabulary.encode(text)) for text in captions[:3]
    ]
    assert bool((batch["place"] == -1).all())
    assert batch["keys"][0] == batch["keys"][1] != batch["keys"][6]
