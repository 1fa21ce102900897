"""Captions as words and ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.data.text import BOS, EOS, UNK, Vocabulary, words


def test_words() -> None:
    assert words("The small, red cube; it's left-of X2.") == [
        "the", "small", ",", "red", "cube", ";", "it's", "left-of", "x2",
    ]  # fmt: skip
    assert words(" -- '' ?!.") == []
    assert words("it\u2019s a caf\u00e9") == ["it's", "a", "caf\u00e9"]


def test_vocabulary_order_and_counts() -> None:
    captions = ["b a a", "c a b", "d"]
    assert Vocabulary.build(captions).words == ["a", "b", "c", "d"]
    assert Vocabulary.build(reversed(captions)) == Vocabulary.build(captions)
    assert Vocabulary.build(captions, min_count=2).words == ["a", "b"]
    assert len(Vocabulary.build(captions)) == 8


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary(["red", "cube", ","])
    assert vocabulary.encode("Red, blue CUBE") == [BOS, 4, 6, UNK, 5, EOS]
    assert vocabulary.encode("red red red red", max_len=4) == [BOS, 4, 4, EOS]
    assert vocabulary.decode([BOS, 4, 6, UNK, 5, EOS, 4, 0, 0]) == "red, <unk> cube"
    assert words(vocabulary.decode(vocabulary.encode("red cube, red"))) == ["red", "cube", ",", "red"]
    with pytest.raises(ValueError, match="id 7 is outside"):
        vocabulary.decode([7])
    with pytest.raises(ValueError, match="max_len is 1"):
        vocabulary.encode("red", max_len=1)


def test_files(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["red", "caf\u00e9"])
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json") == vocabulary
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ValueError, match="not a vocabulary file"):
        Vocabulary.load(tmp_path / "other.json")
    with pytest.raises(ValueError, match="'red' more than once"):
        Vocabulary(["red", "red"])
