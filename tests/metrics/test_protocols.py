"""Protocols: token ids as LEVIR-CC's literature scores them, words beside them, Spot-the-Diff's two forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.metrics.coco import CocoScorer
from idc.metrics.java import Meteor
from idc.metrics.protocols import LevirVocabulary, get_protocol, levir_words, references_of

COMMON = ["a road", "many houses", "the trees are removed"]
CAPTIONS = [text for text in COMMON for _ in range(6)] + ["a bunker"] * 5
"""Every common word six times or more, "bunker" five times."""


@pytest.fixture
def vocabulary() -> LevirVocabulary:
    return LevirVocabulary.build(CAPTIONS, "a test")


def test_characters_are_tokens_of_scripts_without_spaces_and_words_of_others() -> None:
    tokens = get_protocol("characters").tokens(["图中多了3栋房子。", "บ้าน ใหม่", "Le café's ROOF", "ビル (B-2)"])
    assert tokens == ["图 中 多 了 3 栋 房 子", "บ ้ า น ใ ห ม ่", "le café s roof", "ビ ル b 2"]


def test_words_are_split_as_the_official_code_splits_them() -> None:
    assert levir_words("  A road, and; houses are built . ") == ["a", "road", ",", "and", ";", "houses", "are", "built"]
    assert levir_words("it can't be-gone? no.") == ["it", "can't", "be-gone", "no"]
    assert levir_words("<START> the road <END> <NULL>") == ["the", "road"]


def test_ids_are_alphabetical_after_four_marks_and_rare_words_are_one(vocabulary: LevirVocabulary) -> None:
    # <NULL> <UNK> <START> <END> a are houses many removed road the trees; "bunker" is counted five times.
    assert vocabulary.id_strings(["a road", "many trees .", "a bunker", "zzz", ""]) == ["4 9", "7 11", "4 1", "1", ""]
    assert vocabulary.text.startswith("12 ids, words counted more than 5 times in the 23 captions")


def test_unknown_words_match_each_other_by_ids_and_not_as_words(vocabulary: LevirVocabulary) -> None:
    references = {"x": ["a bunker"], "y": ["many houses"]}
    said = {"x": "a dome", "y": "many houses"}
    found = {}
    for name in ("levir_ids", "levir_words"):
        scorer = CocoScorer(references, ("BLEU", "CIDEr"), get_protocol(name, vocabulary).tokens)
        found[name] = scorer.score(said).per_id["x"]
    assert found["levir_ids"]["BLEU-2"] == pytest.approx(1.0)
    assert found["levir_words"]["BLEU-1"] == pytest.approx(0.5)


def test_meteor_of_ids_knows_no_stems(vocabulary: LevirVocabulary, meteor: Meteor) -> None:
    """ "house" for "houses" is a stem match of words, and two different ids."""
    words = LevirVocabulary.build(["many houses", "many house"] * 6, "a test")
    references, said = {"x": ["many houses"]}, {"x": "many house"}
    found = {}
    for name in ("levir_ids", "levir_words"):
        scorer = CocoScorer(references, ("METEOR",), get_protocol(name, words).tokens, meteor)
        found[name] = scorer.score(said).overall["METEOR"]
    assert found["levir_words"] > found["levir_ids"] + 0.1


def test_the_official_vocabulary_is_read_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"<NULL>": 0, "<UNK>": 1, "<START>": 2, "<END>": 3, "road": 4}))
    assert LevirVocabulary.read(str(path)).id_strings(["a road"]) == ["1 4"]
    path.write_text('{"<NULL>": 0, "<UNK>": 1, "<START>": 2, "<END>": 3, "road": 4, "road": 5}')
    with pytest.raises(ValueError, match="'road' occurs twice"):
        LevirVocabulary.read(str(path))
    for wrong in ({"road": 0}, {"<NULL>": 1, "<UNK>": 0, "<START>": 2, "<END>": 3}, [], "x"):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match="vocabulary"):
            LevirVocabulary.read(str(path))


def test_spot_the_diffs_references_are_all_sentences_or_one_that_joins_them() -> None:
    sentences = ["the car is gone", "there is a new man"]
    assert references_of("spot_single", sentences) == references_of("coco", sentences) == sentences
    assert references_of("spot_multi", sentences) == ["the car is gone. there is a new man"]
    assert references_of("spot_multi", ["one alone. or two"]) == ["one alone. or two"]
    long = references_of("spot_multi", ["word " * 40, "other " * 40])[0].split()
    assert len(long) == 60, "CARD's file cuts there"
