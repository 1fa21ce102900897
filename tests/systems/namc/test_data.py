"""NAMC's samples: the words of a description, exchange, shares, free captions, features kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idc.data.store import iter_rows
from idc.data.text import Vocabulary, words
from idc.mining.descriptions.template import PairDescription
from idc.systems.namc.data import FeatureCache, Tokens, collate_described, first_description, sentence_words
from tests.systems.namc.tiny import described_samples
from tests.systems.procap.world import World


def test_the_words_of_a_sentence_are_those_of_the_whole_text() -> None:
    one = PairDescription("shows", "a red cube, and a ball", "has", "a blue cube")
    sentence, numbers = sentence_words(("shows", "has"), [words(one.before), words(one.after)])
    assert sentence == words(one.sentence())
    assert [word for word, (image, _) in zip(sentence, numbers, strict=True) if image == 0] == words(one.before)
    assert [number for image, number in numbers if image == 1] == [0, 1, 2]
    assert first_description(["the cube turned blue", one.sentence()]) == one
    assert first_description(["the cube turned blue"]) is None


def test_exchange_exchanges_images_and_descriptions_by_index_and_epoch_alone(described: str) -> None:
    plain, exchanged = described_samples(described), described_samples(described, exchange=True)
    here, swapped = plain.get(0, 0), 0
    for epoch in range(8):
        sample, again = exchanged.get(0, epoch), exchanged.get(0, epoch)
        assert np.array_equal(sample["uniform_images"], again["uniform_images"])
        assert not epoch or not np.array_equal(sample["uniform_images"], exchanged.get(0, 0)["uniform_images"])
        if sample["keys"] == here["keys"][::-1]:
            swapped += 1
            assert np.array_equal(sample["images"], here["images"][::-1])
            assert sample["texts"] == here["texts"][::-1]
            assert sorted(sample["ids"]) == sorted(here["ids"]) != here["ids"] != sample["ids"]
    assert 0 < swapped < 8


def test_a_share_takes_the_same_pairs_of_any_run(described: str) -> None:
    half, again = (described_samples(described, share=0.5, seed=seed) for seed in (0, 9))
    assert len(half) == 7  # of 14
    assert [row for row, _ in half.described] == [row for row, _ in again.described]


def test_a_folder_without_any_description_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match=r"no pair of split 'train' has a caption that follows the template"):
        described_samples(world.pairs)


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
    expected = images.float().mean(dim=(1, 2))
    for megabytes, computed in ((1, [3, 1]), (0, [3, 3, 4])):
        remember = FeatureCache(compute, megabytes)
        for keys in ([b"a", b"b", b"c"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"]):
            assert torch.allclose(remember(images[: len(keys)], keys), expected[: len(keys)], rtol=1e-3)
        assert calls == computed
        calls.clear()


def test_free_captions_are_used_as_they_are_where_they_are_wanted(world: World) -> None:
    captions = [row["captions"][0] for row in iter_rows(world.pairs, ["captions"], "train")]
    vocabulary = Vocabulary.build(captions)
    data = described_samples(world.pairs, vocabulary=vocabulary, free=True, exchange=True)
    assert len(data) == len(captions)
    batch = collate_described([data.get(index, 0) for index in range(3)])
    assert [vocabulary.decode(row) for row in batch["targets"].tolist()] == [
        vocabulary.decode(vocabulary.encode(text)) for text in captions[:3]
    ]
    assert bool((batch["place"] == -1).all())
