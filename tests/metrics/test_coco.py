"""Scores against published values and the official code; faulty input."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.scoring import generated
from idc.metrics import coco, java
from idc.metrics.java import Meteor
from idc.metrics.ngrams import meteor as meteor_of
from idc.metrics.ngrams import zero_chunks_of_exact_matches

NLG_EVAL = Path(__file__).parent / "nlg_eval"
"""The files of nlg-eval's ``examples`` (MIT licence, Maluuba/nlg-eval): its README and its test publish the values."""


def lines(name: str) -> list[str]:
    return (NLG_EVAL / name).read_text(encoding="utf-8").splitlines()


PAIR_REFERENCES = {
    str(i): list(texts) for i, texts in enumerate(zip(lines("ref1.txt"), lines("ref2.txt"), strict=True), start=1)
}
PAIR_PREDICTIONS = {str(i): text for i, text in enumerate(lines("hyp.txt"), start=1)}
PUBLISHED = {
    "BLEU-1": 0.55, "BLEU-2": 0.428174, "BLEU-3": 0.284043, "BLEU-4": 0.201143,
    "METEOR": 0.295797, "ROUGE-L": 0.522104, "CIDEr": 1.242192,
}  # fmt: skip
ONE = {"a": ["this is a test", "this is also a test"]}
PUBLISHED_ONE = {
    "BLEU-1": 0.799999, "BLEU-2": 0.632455, "BLEU-3": 0.5108729, "BLEU-4": 0.0000903602,
    "METEOR": 0.44434387, "ROUGE-L": 0.9070631, "CIDEr": 0.0,
}  # fmt: skip
FRENCH = {"fr": ["Test en français.", "Le test en français."]}

pytestmark = pytest.mark.usefixtures("no_system_java")


@pytest.fixture(scope="module")
def scorer(meteor: Meteor) -> coco.CocoScorer:
    return coco.CocoScorer(PAIR_REFERENCES, meteor=meteor)


def test_the_published_scores_of_two_sentences_alone_and_in_a_larger_set(
    scorer: coco.CocoScorer, meteor: Meteor
) -> None:
    scores = scorer.score(PAIR_PREDICTIONS)
    assert scores.overall == pytest.approx(PUBLISHED, abs=1e-6)
    assert [scores.per_id[i]["METEOR"] for i in "12"] == pytest.approx([0.15565688, 0.39012537], abs=1e-8)
    three = coco.CocoScorer(PAIR_REFERENCES | {"one": ONE["a"]}, meteor=meteor)
    prepared = three.prepare(PAIR_PREDICTIONS | {"one": "this is a good test"})
    assert prepared.overall(["1", "2"]) == pytest.approx(PUBLISHED, abs=1e-6)


def test_the_published_scores_of_one_sentence_but_cider_which_is_not_defined(meteor: Meteor) -> None:
    scores = coco.CocoScorer(ONE, meteor=meteor).score({"a": "this is a good test"})
    expected = PUBLISHED_ONE | {"CIDEr": float("nan")}
    assert scores.overall == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert scores.per_id["a"] == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_the_published_meteor_of_words_beyond_ascii(scorer: coco.CocoScorer) -> None:
    """The published value is of the sentences as they stand; the PTB tokenizer would drop their full stops."""
    scores = coco.score(FRENCH, {"fr": "Le test est en français."}, ["ROUGE-L"]).overall
    assert scores["ROUGE-L"] == pytest.approx(0.9070631, abs=1e-6)
    numbers = scorer.meteor.statistics(FRENCH, {"fr": "Le test est en français."})
    assert meteor_of(numbers[0]) == pytest.approx(0.48372379050300296, abs=1e-9)


def test_meteor_of_any_set_is_what_its_java_says(meteor: Meteor) -> None:
    given = generated(120, 3)
    given[3] = given[3].model_copy(update={"caption": ""})
    hypotheses = {p.pair_id: p.references[0] if i % 3 == 0 else p.caption for i, p in enumerate(given)}
    numbers = meteor.statistics({p.pair_id: p.references for p in given}, hypotheses)
    ready = zero_chunks_of_exact_matches(numbers)
    assert (numbers != ready).any(), "some captions are a reference word for word"
    for part in (slice(None), slice(0, None, 3), slice(1, 40), slice(3, 4)):
        texts = [" ".join(map(str, row)) for row in numbers[part]]
        *sentences, overall = map(float, meteor.answers([" ||| ".join(["EVAL", *texts])]))
        assert meteor_of(ready[part].sum(axis=0)) == pytest.approx(overall, abs=1e-12)
        assert meteor_of(ready[part]) == pytest.approx(sentences, abs=1e-12)


def test_an_empty_caption_scores_zero_where_it_is_allowed(scorer: coco.CocoScorer) -> None:
    scores = scorer.score({"1": " \n", "2": PAIR_PREDICTIONS["2"]}, allow_empty=True)
    assert scores.per_id["1"] == pytest.approx(dict.fromkeys(PUBLISHED, 0.0), abs=1e-9)
    assert scores.per_id["2"]["METEOR"] == pytest.approx(0.39012537, abs=1e-8)
    dots = scorer.score({"1": "...", "2": PAIR_PREDICTIONS["2"]})
    assert dots.per_id["1"]["METEOR"] == 0.0


def test_the_bars_that_separate_meteors_fields_cannot_be_smuggled_in(scorer: coco.CocoScorer) -> None:
    numbers = scorer.meteor.statistics(
        {"one": ["this is a ||| test", "this is also a test"]}, {"one": "this is ||| a good test"}
    )
    assert meteor_of(numbers[0]) == pytest.approx(PUBLISHED_ONE["METEOR"], abs=1e-6)


def test_cider_alone_is_the_official_cider_and_starts_java_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_tokens_of", {})
    calls: list[int] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **kw: calls.append(1) or run(*args, **kw))
    assert coco.cider(PAIR_REFERENCES, PAIR_PREDICTIONS) == pytest.approx(PUBLISHED["CIDEr"], abs=1e-6)
    first = len(calls)
    assert coco.cider(PAIR_REFERENCES, PAIR_PREDICTIONS) == pytest.approx(PUBLISHED["CIDEr"], abs=1e-6)
    assert first == 2
    assert len(calls) == first, "all sentences are known by now"


def test_cider_in_training_is_a_number_for_empty_captions_and_where_it_is_not_defined(
    caplog: pytest.LogCaptureFixture,
) -> None:
    score = coco.cider(PAIR_REFERENCES, {"1": "", "2": PAIR_PREDICTIONS["2"]})
    assert 0 < score < PUBLISHED["CIDEr"]
    assert "'1'" in caplog.text
    assert coco.cider(ONE, {"a": "this is a test"}) == 0
    assert "CIDEr is not defined for these 1 validation pairs and counts as 0" in caplog.text
    with pytest.raises(ValueError, match="empty: '1'"):
        coco.cider(PAIR_REFERENCES, {"1": "", "2": "x"}, allow_empty=False)


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        (ONE, {"a": "x", "zz": "y"}, "no references for them: 'zz'"),
        (ONE | {"b": ["x"]}, {"a": "x"}, "not predicted: 'b'"),
        (ONE, {"a": "  "}, "caption is empty: 'a'"),
        (ONE | {"b": ["x", " "]}, {"a": "x", "b": "y"}, "reference caption is empty: 'b'"),
        (ONE | {"b": "a sentence"}, {"a": "x", "b": "y"}, "one str and not a list of captions: 'b'"),
        (ONE, {"a": ["x"]}, "not one caption .*: 'a'"),
        ({}, {}, "nothing to score"),
        ({str(i): [] for i in range(9)}, {}, "'0', '1', '2', '3', '4' and 4 more"),
    ],
)
def test_faulty_input_is_refused_by_name(references: dict, predictions: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        coco.score(references, predictions)
    with pytest.raises(ValueError, match="no metric is called ROUGE;"):
        coco.score(ONE, {"a": "x"}, ["ROUGE"])


def test_meteor_with_an_empty_reference_is_what_its_own_program_sums(meteor: Meteor) -> None:
    references = {"a": [""], "b": ["", "the car is gone"], "c": ["a man left"]}
    said = {"a": "the car is gone", "b": "the car has gone", "c": ""}
    scorer = coco.CocoScorer(references, ("METEOR",), meteor=meteor, empty_references=True)
    found = scorer.score(said, allow_empty=True)
    # pycocoevalcap's two steps: the numbers of each sentence, then EVAL of all, which answers each and the whole.
    requests = [" ||| ".join(("SCORE", *references[name], said[name])) for name in references]
    numbers = " ||| ".join(meteor.answers(requests))
    *sentences, whole = map(float, meteor.answers([f"EVAL ||| {numbers}"]))
    assert found.overall["METEOR"] == pytest.approx(whole, rel=1e-12, abs=0)
    assert [row["METEOR"] for row in found.per_id.values()] == pytest.approx(sentences, rel=1e-12, abs=0)
    assert sentences[0] == 0 < sentences[1]
