"""The evaluation: subsets, baselines by the same protocol, files, seeds; and the job on a folder of pairs."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.captioning.contract import Description
from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.data.schema import ChangePair
from idc.evaluation import baselines
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation, run_evaluation
from idc.evaluation.record import evaluation_table
from idc.evaluation.score import evaluate_captions
from idc.metrics import java
from idc.metrics.coco import cider, score
from tests.captioning.toy import ToyCaptioner
from tests.folders import write_rows

QUICK = ("BLEU", "ROUGE-L", "CIDEr")
"""Everything but METEOR, whose start takes ten seconds."""

COLORS = ("red", "blue", "green", "cyan")
SHAPES = ("cube", "ball", "cylinder")


def predictions() -> list[ev.Prediction]:
    """24 pairs of three types; the captions of the fourth quarter are wrong."""
    made = []
    for i in range(24):
        thing = f"{COLORS[i % 4]} {SHAPES[i % 3]}"
        kind = ("none", "none", "move", "drop")[i % 4]
        references = {
            "none": ["nothing has changed", "there is no change"],
            "move": [f"the {thing} moved", f"someone moved the {thing}"],
            "drop": [f"the {thing} is missing", f"someone removed the {thing}"],
        }[kind]
        caption = references[i % 2] if i < 18 else "the gray thing has been added"
        made.append(ev.Prediction(pair_id=f"p{i:02d}", caption=caption, references=references, change_type=kind))
    return made


Evaluated = tuple[ev.Evaluation, list[ev.ScoredCaption]]


@pytest.fixture(scope="module")
def evaluated() -> Evaluated:
    given = predictions()
    nearest = {p.pair_id: "the red ball moved" for p in given}
    return evaluate_captions(
        given,
        constant_candidates=["nothing has changed", "it moved"],
        nearest=nearest,
        metrics=QUICK,
        selection="by hand",
    )


def test_the_whole_and_every_subset_are_scored_as_if_alone(evaluated: Evaluated) -> None:
    evaluation, rows = evaluated
    given = predictions()
    everything = score({p.pair_id: p.references for p in given}, {p.pair_id: p.caption for p in given}, QUICK)
    assert evaluation.scores == pytest.approx(everything.overall)
    assert {row.pair_id: row.scores for row in rows} == everything.per_id
    assert math.isnan(evaluation.subsets["no change"].scores["CIDEr"]), "all have the same two references"
    assert {name: subset.pairs for name, subset in evaluation.subsets.items()} == {
        "change": 12, "no change": 12, "drop": 6, "move": 6,
    }  # fmt: skip
    moved = [p for p in given if p.change_type == "move"]
    alone = cider({p.pair_id: p.references for p in moved}, {p.pair_id: p.caption for p in moved})
    assert evaluation.subsets["move"].scores["CIDEr"] == pytest.approx(alone)
    mean = np.mean([everything.per_id[p.pair_id]["CIDEr"] for p in moved])
    assert alone != pytest.approx(mean, abs=1e-3), "a subset has its own document frequencies"
    assert (evaluation.pairs, evaluation.references, evaluation.distinct_captions) == (24, 48, 9)
    assert (evaluation.types.accuracy, rows[-1].named_type) == (pytest.approx(18 / 24), "add")
    assert "names the right change type: 75.0% of 24 pairs (always 'none': 50.0%" in evaluation_table(evaluation)


def test_baselines_are_scored_by_the_same_protocol(evaluated: Evaluated) -> None:
    evaluation, rows = evaluated
    references = {p.pair_id: p.references for p in predictions()}
    for name, caption in (("constant", "nothing has changed"), ("nearest", "the red ball moved")):
        expected = cider(references, dict.fromkeys(references, caption))
        assert evaluation.baselines[name].scores["CIDEr"] == pytest.approx(expected)
        assert f"baseline: {name}" in evaluation_table(evaluation)
    constant = evaluation.baselines["constant"]
    assert (constant.caption, rows[0].nearest) == ("nothing has changed", "the red ball moved")
    assert constant.subsets.keys() == evaluation.subsets.keys()
    assert constant.types.accuracy == constant.types.chance_most_frequent == 0.5


def test_the_upper_bound_is_the_truth_in_the_wording_that_suits_each_type(evaluated: Evaluated) -> None:
    given = predictions()
    # The second wording is that of a reference for moved things, the first for the others.
    truth = {
        p.pair_id: [p.references[0], "x y"] if p.change_type != "move" else ["x y", p.references[1]] for p in given
    }
    made, _ = evaluate_captions(given, truth=truth, metrics=QUICK)
    best = {p.pair_id: truth[p.pair_id][p.change_type == "move"] for p in given}
    assert made.upper_bound.scores == pytest.approx(
        score({p.pair_id: p.references for p in given}, best, QUICK).overall
    )
    assert "upper bound: the truth" in evaluation_table(made)
    assert "upper bound: the truth" not in evaluation_table(evaluated[0])


def test_it_is_the_same_after_a_round_trip(evaluated: Evaluated, tmp_path: Path) -> None:
    ev.save(tmp_path / "out", *evaluated)
    assert (ev.load_evaluation(tmp_path / "out"), ev.load_predictions(tmp_path / "out")) == evaluated
    with pytest.raises(ValueError, match="holds no evaluation"):
        ev.load_evaluation(tmp_path)
    (tmp_path / "out" / "evaluation.json").write_text('{"pairs": 3}')
    with pytest.raises(ValueError, match="not an evaluation of this version"):
        ev.load_evaluation(tmp_path / "out")


def test_without_references_or_types_there_is_only_the_other_half() -> None:
    bare = [p.model_copy(update={"references": []}) for p in predictions()]
    evaluation, rows = evaluate_captions(bare, constant_candidates=["x"])
    assert evaluation.scores == evaluation.subsets == evaluation.baselines == rows[0].scores == {}
    assert evaluation.types is not None
    assert "no reference captions" in evaluation.protocol["name"]
    assert "right change type" in evaluation_table(evaluation)
    unknown = [p.model_copy(update={"change_type": None}) for p in predictions()]
    evaluation, _ = evaluate_captions(unknown, metrics=("CIDEr",))
    assert (evaluation.subsets, evaluation.types) == ({}, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair_id": "p01"}, "more than once: 'p01'"),
        ({"split": "val"}, r"several splits \(test, val\)"),
        ({"references": []}, "1 of 24 pairs have no references: 'p00'"),
        ({"caption": " "}, "empty: 'p00'"),
    ],
)
def test_faulty_predictions_are_refused(change: dict[str, Any], message: str) -> None:
    given = predictions()
    given[0] = given[0].model_copy(update=change)
    with pytest.raises(ValueError, match=message):
        evaluate_captions(given, metrics=QUICK)


def test_seeds_have_a_mean_and_the_deviation_of_a_sample(evaluated: Evaluated) -> None:
    first = evaluated[0]
    values = [0.5, 0.7, 1.2]
    runs = [first.model_copy(update={"scores": {**first.scores, "CIDEr": value}}) for value in values]
    summary = ev.aggregate(runs)
    assert summary.scores["CIDEr"].values == values
    assert summary.scores["CIDEr"].mean == pytest.approx(0.8)
    assert summary.scores["CIDEr"].std == pytest.approx(np.std(values, ddof=1))
    assert ev.aggregate(runs[:1]).scores["CIDEr"].std == 0.0
    with pytest.raises(ValueError, match="24 pairs of test with 48 references, and 23 of test"):
        ev.aggregate([first, first.model_copy(update={"pairs": 23})])


# ---------------------------------------------------------------------------------------------------------- the job


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """12 training and 8 test pairs of plain colour; the mean of the after image tells the type."""
    rows = []
    for i in range(20):
        kind = ("none", "move")[i % 2]
        before = np.full((20, 30, 3), 100, np.uint8)
        after = np.full((20, 30, 3), 100 if kind == "none" else 180, np.uint8)
        captions = (
            ("nothing has changed", "no change")
            if kind == "none"
            else ("the ball moved", f"the {COLORS[i % 4]} ball moved")
        )
        split = "train" if i < 12 else "test"
        rows.append(ChangePair(f"p{i}", encode_png(before), encode_png(after), captions, kind, split).to_row())
    write_rows(tmp_path / "pairs", rows)
    return tmp_path / "pairs"


def by_brightness(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
    assert all(image.shape == (20, 30, 3) and image.dtype == np.uint8 for image in [*befores, *afters])
    return [
        "the ball moved" if after.mean() > before.mean() else "no change"
        for before, after in zip(befores, afters, strict=True)
    ]


def job(pairs: Path, out: Path, **settings: Any) -> EvaluateJob:
    artifact = pairs.parent / "artifact"
    artifact.mkdir(exist_ok=True)
    (artifact / "config.json").write_text('{"system": "toy", "config": {}, "files": []}')
    given = {"pairs": str(pairs), "out": str(out), "metrics": ["CIDEr"], "artifact": str(artifact), **settings}
    return load(EvaluateJob, None, {name: value for name, value in given.items() if value is not None})


def test_pairs_with_a_warning_are_counted(pairs: Path, tmp_path: Path) -> None:
    class Unsure(ToyCaptioner):
        def describe(self, *images: Any, **options: Any) -> list[Description]:
            described = super().describe(*images, **options)
            return [replace(each, familiarity=0.001 if "moved" in each.best.caption else 0.02) for each in described]

    few = job(pairs, tmp_path / "o", max_pairs=4, constant_candidates=0, nearest_train_pairs=0)
    found = run_evaluation(few, lambda: Unsure(by_brightness))
    assert found.warned == 2
    text = "warned as unlike the training data: 2 of 4 pairs (50.0 %; 95 % interval 15.0 to 85.0)"
    assert text in evaluation_table(found)
    silent = run_evaluation(few.model_copy(update={"out": str(tmp_path / "s")}), lambda: ToyCaptioner(by_brightness))
    assert silent.warned is None, "it does not estimate it"


def test_a_split_is_captioned_and_scored_with_baselines(pairs: Path, tmp_path: Path) -> None:
    made = job(pairs, tmp_path / "out", batch_size=3)
    assert finished_evaluation(made) is None
    evaluation = run_evaluation(made, lambda: ToyCaptioner(by_brightness))
    assert evaluation.pairs == 8
    assert evaluation.types.accuracy == 1.0
    assert evaluation.scores["CIDEr"] > evaluation.baselines["constant"].scores["CIDEr"]
    rows = ev.load_predictions(tmp_path / "out")
    assert [row.pair_id for row in rows] == [f"p{i}" for i in range(12, 20)]
    assert rows[1].nearest == "the ball moved", "the nearest training pair is one that became brighter"
    assert finished_evaluation(made) == evaluation == ev.load_evaluation(tmp_path / "out")
    assert finished_evaluation(job(pairs, tmp_path / "out", batch_size=1)) == evaluation, "of any batch size"
    with pytest.raises(ValueError, match="evaluation of other inputs"):
        finished_evaluation(job(pairs, tmp_path / "out", split="val"))
    (tmp_path / "artifact" / "config.json").write_text('{"system": "toy", "config": {"other": 1}, "files": []}')
    with pytest.raises(ValueError, match="evaluation of other inputs"):
        finished_evaluation(made)


def test_a_second_evaluation_of_the_same_references_is_the_same_and_tokenises_only_new_captions(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = java._run

    def recorded(name: str, folder: str, arguments: Any, seconds: float, lines: Sequence[str]) -> Any:
        asked.extend(lines)
        return run(name, folder, arguments, seconds, lines)

    monkeypatch.setattr(java, "_run", recorded)
    monkeypatch.setattr(java, "_tokens_of", {})
    first = run_evaluation(job(pairs, tmp_path / "1"), lambda: ToyCaptioner(by_brightness))
    assert "the ball moved" in asked
    assert (pairs.parent / f"{pairs.name}.scoring").is_dir()
    other = ToyCaptioner(lambda befores, afters: ["a new one"] * len(afters))
    for captioner, new in ((ToyCaptioner(by_brightness), []), (other, ["a new one"])):
        asked.clear()
        monkeypatch.setattr(java, "_tokens_of", {})
        monkeypatch.setattr(baselines, "nearest_captions", None)
        second = run_evaluation(job(pairs, tmp_path / f"2{len(new)}"), partial(copy.copy, captioner))
        assert asked == new
        assert second.baselines == first.baselines
        assert second.upper_bound == first.upper_bound
        if not new:
            assert (second.scores, second.subsets) == (first.scores, first.subsets)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (range(12, 19), "1 pairs of test have no caption in .*: p19"),
        (range(11, 20), "1 captions are of pairs that are not in test .*: p11"),
    ],
)
def test_faulty_captions_made_elsewhere_are_refused(numbers: range, message: str, pairs: Path, tmp_path: Path) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text("\n".join(json.dumps({"pair_id": f"p{i}", "caption": "x"}) for i in numbers))
    with pytest.raises(ValueError, match=message):
        run_evaluation(job(pairs, tmp_path / "out", artifact=None, predictions=str(file)))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "artifact, predictions: give one of"),
        ({"artifact": "a", "references": "r"}, "pairs, references: give one of"),
        ({"split": "all", "artifact": "a"}, "nearest_train_pairs: must be 0 with split=all"),
        ({"predictions": "p", "change_maps": True}, "change_maps: a captioner computes them"),
        ({"artifact": "a", "vocabulary": "v"}, "vocabulary: only protocol=levir_ids has one, not coco"),
    ],
)
def test_settings_that_contradict_each_other_are_named(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load(EvaluateJob, None, {"out": "o", "pairs": "p", **settings})
