"""When a candidate is not worse, on scores that are really paired; and which evaluations count."""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path

import pytest

from idc.evaluation import record as ev
from idc.evaluation.promotion import ScoredVersion, checked_evaluation, decide
from idc.evaluation.score import evaluate_captions
from idc.evaluation.significance import ScoreDifference, SystemComparison, compare_systems
from idc.training.artifact import captioning_identity

QUICK = ("BLEU", "ROUGE-L", "CIDEr")
"""Everything but METEOR, whose start takes ten seconds."""
COLORS, SHAPES = ("red", "blue", "green", "cyan", "purple"), ("cube", "ball", "cylinder")


def scored(
    wrong: Collection[int], pairs: int = 60, split: str = "test"
) -> tuple[ev.Evaluation, list[ev.ScoredCaption]]:
    """An evaluation of pairs of which the given ones are captioned wrongly."""
    draw = random.Random(0)
    given = []
    for i in range(pairs):
        thing = f"{draw.choice(COLORS)} {draw.choice(SHAPES)}"
        verb = draw.choice(("moved", "is missing", "appeared"))
        given.append(
            ev.Prediction(
                pair_id=f"p{i:03d}",
                caption="nothing has changed" if i in wrong else f"the {thing} {verb}",
                references=[f"the {thing} {verb}", f"a {thing} {verb}"],
                split=split,
            )
        )
    return evaluate_captions(
        given, constant_candidates=[], nearest=None, metrics=QUICK, selection="by hand", resamples=0
    )


def compared(champion: frozenset[int], candidate: frozenset[int]) -> SystemComparison:
    return compare_systems(scored(champion)[1], scored(candidate)[1], "coco", resamples=500)


def test_a_set_too_small_to_rule_out_a_loss_keeps_the_champion() -> None:
    """Each has three errors of its own: the difference is about 0, and the interval wide."""
    found = compared(frozenset({0, 1, 2}), frozenset({10, 11, 12}))
    decision = decide(found, "CIDEr", 0.01)
    assert (decision.verdict, decision.not_worse) == ("undecided", False)
    assert found.metrics["CIDEr"].interval.low < 0 < found.metrics["CIDEr"].interval.high
    assert decide(found, "CIDEr", 0.5).verdict == "within the margin"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.2, "better"),
        (0.0, 0.2, "within the margin"),
        (-0.1, 0.2, "within the margin"),  # exactly the margin
        (-0.09, -0.01, "within the margin"),  # a loss that is shown, and shown to be small
        (-0.11, 0.2, "undecided"),
        (-0.11, -0.01, "worse"),
    ],
)
def test_the_lower_end_decides(low: float, high: float, verdict: str) -> None:
    difference = ScoreDifference(a=2.0, b=2.0, difference=0.0, interval=ev.Interval(low=low, high=high))
    comparison = SystemComparison(pairs=9, protocol="coco", resamples=1, seed=0, metrics={"CIDEr": difference})
    assert decide(comparison, "CIDEr", 0.05).verdict == verdict
    with pytest.raises(ValueError, match="metric: 'METEOR' was not scored; there are CIDEr"):
        decide(comparison, "METEOR", 0.05)


DATA = {"data_set": "rendered", "fingerprint": "f00d"}


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact/config.json").write_text("{}")
    return tmp_path / "artifact"


def of_artifact(artifact: Path, pairs: int) -> tuple[ev.Evaluation, list[ev.ScoredCaption]]:
    evaluation, rows = scored(frozenset(), pairs)
    protocol = {**evaluation.protocol, "data": DATA, "pairs": "data/pairs", "captioner": "runs/a"}
    return evaluation.model_copy(update={"artifact": captioning_identity(artifact), "protocol": protocol}), rows


def test_a_version_has_no_score_that_is_not_defined_and_can_be_read_again(artifact: Path) -> None:
    ev.save(artifact.parent / "evaluation", *of_artifact(artifact, pairs=1))
    version = checked_evaluation(artifact.parent / "evaluation", artifact)
    assert "BLEU-4" in version.scores
    assert "CIDEr" not in version.scores
    assert ScoredVersion.model_validate_json(version.model_dump_json()) == version


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"artifact": None}, "does not say which artifact it is of"),
        ({"artifact": "other"}, "is of another artifact"),
        ({"split": "train"}, "is of training pairs"),
        ({"scores": {}}, "has no scores"),
        ({"variant": "fog, severity 5"}, r"is of altered pairs \(fog, severity 5\)"),
    ],
    ids=["unmarked", "another", "train", "scoreless", "altered"],
)
def test_an_evaluation_that_tells_nothing_of_the_artifact_is_refused(
    artifact: Path, changes: dict[str, object], message: str
) -> None:
    evaluation, rows = of_artifact(artifact, pairs=12)
    ev.save(artifact.parent / "good", evaluation, rows)
    assert checked_evaluation(artifact.parent / "good", artifact).key == ("f00d", "test", 12, "coco")
    if "variant" in changes:
        changes = {"protocol": {**evaluation.protocol, "data": {**DATA, **changes}}}
    ev.save(artifact.parent / "bad", evaluation.model_copy(update=changes), rows)
    with pytest.raises(ValueError, match=message):
        checked_evaluation(artifact.parent / "bad", artifact)
