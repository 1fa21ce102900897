"""Intervals: resampled scores are those of the resampled set, and the effect of a change over seeds and pairs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from idc.evaluation import record as ev
from idc.evaluation.record import ScoredCaption
from idc.evaluation.score import evaluate_captions
from idc.evaluation.significance import SEED, ScoreMatrix, bootstrap, compare_systems, intervals, seeded_effect
from idc.metrics.coco import CocoScorer
from idc.metrics.java import Meteor
from idc.metrics.protocols import get_protocol
from tests.conftest import Command
from tests.metrics.test_ngrams import captions

QUICK = ("BLEU", "ROUGE-L", "CIDEr")


def evaluated(predictions: dict[str, str], references: dict[str, list[str]]) -> list[ScoredCaption]:
    given = [ev.Prediction(pair_id=n, caption=predictions[n], references=texts) for n, texts in references.items()]
    return evaluate_captions(given, protocol=get_protocol("levir_words"), metrics=QUICK, allow_empty=True)[1]


def mixed(references: dict[str, list[str]], right: float, seed: int) -> dict[str, str]:
    """A system that says a reference of the pair with probability ``right``, else one of some other pair."""
    rng = np.random.default_rng(seed)
    everything = list(references)
    return {
        n: references[n if rng.random() < right else everything[rng.integers(len(everything))]][0] for n in references
    }


@pytest.fixture(scope="module")
def references() -> dict[str, list[str]]:
    return captions(120, 5)[0]


def test_a_resampled_set_has_the_scores_of_that_set(meteor: Meteor) -> None:
    references, predictions = captions(12, 2)
    scorer = CocoScorer(references, ("BLEU", "METEOR", "ROUGE-L"), tokens=list, meteor=meteor)
    found = scorer.score(predictions, allow_empty=True)
    table = ScoreMatrix(list(found.per_id.values()), list(found.statistics.values()))
    weights = next(bootstrap(12, 3, SEED))
    assert weights.shape == (3, 12)
    assert (weights.sum(axis=1) == 12).all()
    scores = table.score(weights @ table.values, 12)
    for row, drawn in enumerate(weights):
        copies = [(name, k) for name, count in zip(references, drawn, strict=True) for k in range(int(count))]
        gts = {f"{name}-{k}": references[name] for name, k in copies}
        res = {f"{name}-{k}": predictions[name] for name, k in copies}
        scorer = CocoScorer(gts, ("BLEU", "METEOR", "ROUGE-L"), tokens=list, meteor=meteor)
        alone = scorer.score(res, allow_empty=True).overall
        assert {name: scores[name][row] for name in alone} == pytest.approx(alone, abs=1e-12)


def test_an_interval_is_as_wide_as_theory_says(references: dict[str, list[str]]) -> None:
    rows = evaluated(mixed(references, 0.5, 0), references)
    found = intervals([row.scores for row in rows], [row.statistics for row in rows], 2000)
    values = np.array([row.scores["ROUGE-L"] for row in rows])
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    assert found["ROUGE-L"].low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert found["ROUGE-L"].high == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert found["BLEU-4"].low < found["BLEU-4"].high
    again = intervals([row.scores for row in rows], [row.statistics for row in rows], 2000)
    assert again == found, "seeded"


def test_a_better_system_is_found_whichever_way_it_is_asked(references: dict[str, list[str]]) -> None:
    worse, better = (evaluated(mixed(references, right, seed), references) for right, seed in ((0.3, 1), (0.7, 2)))
    comparison = compare_systems(worse, list(reversed(better)), "levir_words", 500)
    back = compare_systems(better, worse, "levir_words", 500)
    assert list(comparison.metrics) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]
    same = compare_systems(worse, worse, "levir_words", 100).metrics["CIDEr"].interval
    assert (same.low, same.high) == (0, 0), "both are resampled with the same pairs"
    for name, row in comparison.metrics.items():
        assert row.difference == pytest.approx(row.b - row.a) == pytest.approx(-back.metrics[name].difference)
        assert row.interval.low > 0, name
        assert back.metrics[name].interval.high < 0, name


def test_chance_alone_is_seldom_taken_for_a_difference() -> None:
    """Of two systems of the same quality the interval holds 0 in about 95 of 100 trials."""
    references = captions(30, 9)[0]
    without = []
    for trial in range(30):
        one, other = (evaluated(mixed(references, 0.5, 100 + 2 * trial + k), references) for k in range(2))
        metrics = compare_systems(one, other, "levir_words", 100).metrics
        without.append([row.interval.low > 0 or row.interval.high < 0 for row in metrics.values()])
    assert np.mean(without, axis=0).max() < 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair_id": "other"}, "not the same pairs: 2 are in one of the two alone, 'p0'"),
        ({"references": ["another"]}, "not the same references: 1 pairs have others, 'p0'"),
        ({"scores": {}}, "no references"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict, message: str, references: dict[str, list[str]]) -> None:
    rows = evaluated(mixed(references, 0.5, 0), references)
    with pytest.raises(ValueError, match=message):
        compare_systems(rows, [rows[0].model_copy(update=change), *rows[1:]], "levir_words", 100)


def test_the_command_compares_folders_and_refuses_another_protocol(tmp_path: Path, command: Command) -> None:
    references = captions(30, 1)[0]
    for name, right, by in (("one", 0.3, "levir_words"), ("two", 0.8, "levir_words"), ("three", 0.8, "coco")):
        said = mixed(references, right, 4)
        given = [ev.Prediction(pair_id=n, caption=said[n], references=texts) for n, texts in references.items()]
        ev.save(tmp_path / name, *evaluate_captions(given, protocol=get_protocol(by), metrics=QUICK))  # type: ignore[arg-type]
    settings = f"a={tmp_path / 'one'}", "resamples=200"
    good = command("compare", *settings, f"b={tmp_path / 'two'}", f"out={tmp_path / 'c.json'}")
    assert good.returncode == 0, good.stderr
    assert "30 pairs, protocol levir_words" in good.stdout
    low = next(line for line in good.stdout.splitlines() if line.startswith("CIDEr")).split()[-3]
    assert float(low) > 0
    assert (tmp_path / "c.json").exists()
    bad = command("compare", *settings, f"b={tmp_path / 'three'}")
    assert bad.returncode == 1
    assert "not the same protocol: name is 'levir_words' and 'coco'" in bad.stderr


# ---------------------------------------------------------------------------------------------- over seeds and pairs


T_975 = {3: 3.182446, 4: 2.776445, 6: 2.446912, 1e9: 1.959964}
"""Quantiles of Student's distribution, from a printed table."""


def differences_of(seeds: int, pairs: int, a: float, b: float, e: float, rng: np.random.Generator) -> np.ndarray:
    """Differences with these variances and no effect."""
    of_seeds, of_pairs = rng.normal(0, a**0.5, (seeds, 1)), rng.normal(0, b**0.5, (1, pairs))
    return of_seeds + of_pairs + rng.normal(0, e**0.5, (seeds, pairs))


def test_the_interval_is_that_of_the_analysis_of_variance() -> None:
    difference = differences_of(4, 7, 0.5, 2.0, 1.0, np.random.default_rng(0)) + 0.3
    control = np.random.default_rng(1).random((4, 7))
    effect = seeded_effect(control, control + difference)
    seeds, pairs = range(4), range(7)
    mean = sum(difference[s][i] for s in seeds for i in pairs) / 28
    by_seed = [sum(difference[s][i] for i in pairs) / 7 for s in seeds]
    by_pair = [sum(difference[s][i] for s in seeds) / 4 for i in pairs]
    of_seeds = 7 * sum((value - mean) ** 2 for value in by_seed) / 3
    of_pairs = 4 * sum((value - mean) ** 2 for value in by_pair) / 6
    rest = sum((difference[s][i] - by_seed[s] - by_pair[i] + mean) ** 2 for s in seeds for i in pairs) / 18
    half = math.sqrt((T_975[3] ** 2 * of_seeds + T_975[6] ** 2 * (of_pairs - rest)) / 28)
    assert of_seeds > rest < of_pairs
    assert effect.effect == pytest.approx(mean)
    assert (effect.interval.low, effect.interval.high) == pytest.approx((mean - half, mean + half), rel=1e-5)
    assert (effect.seeds, effect.pairs) == (4, 7)


def test_if_only_pairs_vary_the_interval_is_students_over_the_pairs() -> None:
    difference = np.tile(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]), (3, 1))
    effect = seeded_effect(np.zeros((3, 5)), difference)
    half = T_975[4] * math.sqrt(2.5 / 5)
    assert (effect.interval.low, effect.interval.high) == pytest.approx((3 - half, 3 + half), rel=1e-5)


def test_an_effect_without_spread_is_certain_and_one_seed_has_an_interval_over_the_pairs_alone() -> None:
    certain = seeded_effect(np.zeros((3, 4)), np.ones((3, 4)))
    assert (certain.interval.low, certain.interval.high) == (1, 1)
    difference = np.random.default_rng(4).normal(1, 2, (1, 400))
    alone = seeded_effect(np.zeros((1, 400)), difference)
    assert alone.effect == pytest.approx(difference.mean())
    half = T_975[1e9] * difference.std() / 20
    assert alone.interval.low == pytest.approx(difference.mean() - half, abs=0.02)
    assert alone.interval.high == pytest.approx(difference.mean() + half, abs=0.02)


@pytest.mark.parametrize(("a", "b", "e"), [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0)])
def test_the_interval_holds_the_truth_in_95_of_100_repetitions(a: float, b: float, e: float) -> None:
    rng, held = np.random.default_rng(2), 0
    for _ in range(300):
        effect = seeded_effect(np.zeros((3, 100)), differences_of(3, 100, a, b, e, rng))
        held += effect.interval.low <= 0 <= effect.interval.high
    assert 0.92 <= held / 300 < 1
