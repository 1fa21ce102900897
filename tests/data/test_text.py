"""Captions as words and ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.data.text import BOS, EOS, PROCAP_SPECIALS, UNK, SpecialIds, Vocabulary, words


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


def test_the_official_procap_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "clevr_word2idx.json"
    ids = {word: index for index, word in enumerate([*PROCAP_SPECIALS, "red", ",", "caf\u00e9"])}
    path.write_text(json.dumps(dict(reversed(ids.items()))))
    vocabulary = Vocabulary.from_procap(path)
    assert len(vocabulary) == 11
    assert vocabulary.special == SpecialIds(pad=0, bos=4, eos=5, unk=6)
    assert vocabulary.encode("Red, blue") == [4, 8, 9, 6, 5]
    assert vocabulary.decode([4, 8, 0, 9, 10, 7, 5, 8]) == "red , caf [MASK]"
    assert vocabulary.decode([4, 0, 4, 8]) == "[BOS] red"  # only the first is the beginning
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json") == vocabulary != Vocabulary(vocabulary.words)


@pytest.mark.parametrize("content", ['{"red": 0}', "[1]", "no", '{"[PAD]": "a"}', '{"[PAD]": 0, "red": 9}'])
def test_what_is_no_official_vocabulary(content: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(content)
    with pytest.raises(ValueError, match="is not an official vocabulary"):
        Vocabulary.from_procap(tmp_path / "w.json")
