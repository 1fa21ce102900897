"""Text, lines and JSON of others' files, words and vocabularies: nothing is dropped, every fault has a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.data.text import BOS, EOS, PROCAP_SPECIALS, UNK, SpecialIds, Vocabulary, words
from idc.data.textfiles import JsonError, decode_text, parse_json, split_lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs twice"),
        ("[" * 100_000, "nested too deep"),
        ("1" * 5_000, "4300 digits"),
        ('{"x": NaN}', "NaN is not a JSON number"),
        ('{"x": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a":', "not JSON: Expecting value"),
        ("", "not JSON: Expecting value"),
    ],
)
def test_a_fault_is_a_json_error_that_says_why(text: str, says: str) -> None:
    with pytest.raises(JsonError, match=says):
        parse_json(text)


def test_bytes_that_are_not_utf8_are_named_or_kept_and_a_byte_order_mark_is_no_content() -> None:
    assert parse_json('\ufeff{"a": 1}') == {"a": 1}
    assert decode_text("\ufeffé".encode()) == "é"
    with pytest.raises(ValueError, match=r"byte 1 is b'\\xe9'"):
        decode_text(b"a\xe9")
    assert decode_text(b"a\xe9", "surrogateescape") == "a\udce9"


def test_only_line_ends_end_lines() -> None:
    assert split_lines("a\u2028b\x0cc\x85d\r\ne\rf\n\ng\n") == ["a\u2028b\x0cc\x85d", "e", "f", "", "g"]
    assert split_lines("") == []
    assert split_lines("\n") == [""]


def test_half_a_character_is_refused_or_kept() -> None:
    with pytest.raises(JsonError, match=r"'\\ud83d' is half a character"):
        parse_json('{"a": ["x \\ud83d"]}')
    assert parse_json('"\\ud83d"', keep_surrogates=True) == "\ud83d"
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"


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
    vocabulary = Vocabulary.from_word_ids(path, PROCAP_SPECIALS, "procap")
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
    with pytest.raises(ValueError, match="is not the authors' word list"):
        Vocabulary.from_word_ids(tmp_path / "w.json", PROCAP_SPECIALS, "procap")
