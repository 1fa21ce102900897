"""The evaluation: subsets, baselines by the same protocol, files, seeds; and the job on a folder of pairs."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.captioning.familiarity import Familiarity
from idc.captioning.loading import SHIPPED, artifact_folder
from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.evaluation import baselines
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation, run_evaluation
from idc.evaluation.score import evaluate_captions
from idc.evaluation.table import evaluation_table
from idc.metrics import java
from idc.metrics.coco import cider, score
from idc.report.collect import gallery
from idc.schema import ChangePair
from idc.training.artifact import FAMILIARITY
from tests.captioning.toy import ToyCaptioner
from tests.conftest import Command
from tests.folders import write_rows

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(scope="module")
def evaluated() -> tuple[ev.Evaluation, list[ev.ScoredCaption]]:
    given = predictions()
    nearest = {p.pair_id: "the red ball moved" for p in given}
    return evaluate_captions(
        given,
        constant_candidates=["nothing has changed", "it moved"],
        nearest=nearest,
        metrics=QUICK,
        selection="by hand",
    )


def test_the_whole_and_every_subset_are_scored_as_if_alone(
    evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]],
) -> None:
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


def test_floors_are_scored_by_the_same_protocol(evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]]) -> None:
    evaluation, rows = evaluated
    references = {p.pair_id: p.references for p in predictions()}
    constant = evaluation.baselines["constant"]
    assert constant.caption == "nothing has changed"
    assert "upper bound" in constant.what
    assert constant.scores["CIDEr"] == pytest.approx(
        cider(references, dict.fromkeys(references, "nothing has changed"))
    )
    assert evaluation.baselines["nearest"].scores["CIDEr"] == pytest.approx(
        cider(references, dict.fromkeys(references, "the red ball moved"))
    )
    assert constant.subsets.keys() == evaluation.subsets.keys()
    assert constant.types is not None
    assert constant.types.accuracy == constant.types.chance_most_frequent == 0.5
    assert rows[0].nearest == "the red ball moved"


def test_the_ceiling_is_the_truth_in_the_wording_that_suits_each_type(
    evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]],
) -> None:
    given = predictions()
    # The second wording is that of a reference for moved things, the first for the others.
    truth = {
        p.pair_id: [p.references[0], "x y"] if p.change_type != "move" else ["x y", p.references[1]] for p in given
    }
    made, _ = evaluate_captions(given, truth=truth, metrics=QUICK)
    best = {p.pair_id: truth[p.pair_id][p.change_type == "move"] for p in given}
    assert made.ceiling is not None
    assert made.ceiling.scores == pytest.approx(score({p.pair_id: p.references for p in given}, best, QUICK).overall)
    assert made.ceiling.scores["CIDEr"] > made.scores["CIDEr"]
    assert "upper bound: the truth" in evaluation_table(made)
    assert evaluated[0].ceiling is None
    assert "ceiling" not in evaluation_table(evaluated[0])


def test_counts_types_and_protocol(evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]]) -> None:
    evaluation, rows = evaluated
    assert (evaluation.pairs, evaluation.references, evaluation.empty_captions) == (24, 48, 0)
    assert evaluation.distinct_captions == len({p.caption for p in predictions()})
    assert evaluation.types is not None
    assert evaluation.types.accuracy == pytest.approx(18 / 24)
    assert rows[-1].named_type == "add"
    assert evaluation.protocol["name"] == "coco"
    assert evaluation.protocol["selection"] == "by hand"
    assert "stanford-corenlp" in evaluation.protocol["SPICE"] or "jars are here" in evaluation.protocol["SPICE"]
    assert "pycocoevalcap" in evaluation.protocol


def test_it_is_the_same_after_a_round_trip(
    evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]], tmp_path: Path
) -> None:
    evaluation, rows = evaluated
    ev.save(tmp_path / "out", evaluation, rows)
    assert ev.load_evaluation(tmp_path / "out") == evaluation
    assert ev.load_predictions(tmp_path / "out") == rows
    first = json.loads((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[0])
    assert {"pair_id", "caption", "references", "scores", "change_type"} <= first.keys()
    with pytest.raises(ValueError, match="holds no evaluation"):
        ev.load_evaluation(tmp_path)
    (tmp_path / "out" / "evaluation.json").write_text('{"pairs": 3}')
    with pytest.raises(ValueError, match="not an evaluation of this version"):
        ev.load_evaluation(tmp_path / "out")


def test_the_table_shows_the_model_beside_both_floors(evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]]) -> None:
    lines = evaluation_table(evaluated[0]).splitlines()
    for label in ("model", "baseline: constant", "baseline: nearest"):
        row = next(line for line in lines if line.startswith(label))
        assert row.split()[-1].replace(".", "").isdigit()
    assert "names the right change type: 75.0% of 24 pairs (always 'none': 50.0%" in lines[-1]


def test_pairs_without_references_are_judged_by_their_type_alone() -> None:
    given = [p.model_copy(update={"references": []}) for p in predictions()]
    evaluation, rows = evaluate_captions(given, constant_candidates=["x"])
    assert evaluation.scores == evaluation.subsets == evaluation.baselines == {}
    assert evaluation.types is not None
    assert evaluation.types.accuracy == pytest.approx(18 / 24)
    assert "no reference captions" in evaluation.protocol["name"]
    assert rows[0].scores == {}
    assert "right change type" in evaluation_table(evaluation)


def test_pairs_of_unknown_type_have_no_subsets_and_no_chance() -> None:
    given = [p.model_copy(update={"change_type": None}) for p in predictions()]
    evaluation, _ = evaluate_captions(given, metrics=("CIDEr",))
    assert evaluation.subsets == {}
    assert evaluation.types is None


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


def test_no_predictions_are_refused() -> None:
    with pytest.raises(ValueError, match="no predictions"):
        evaluate_captions([])


def test_seeds_have_a_mean_and_the_deviation_of_a_sample(
    evaluated: tuple[ev.Evaluation, list[ev.ScoredCaption]],
) -> None:
    first = evaluated[0]
    values = [0.5, 0.7, 1.2]
    runs = [first.model_copy(update={"scores": {**first.scores, "CIDEr": value}}) for value in values]
    summary = ev.aggregate(runs)
    assert summary.runs == 3
    assert summary.scores["CIDEr"].values == values
    assert summary.scores["CIDEr"].mean == pytest.approx(0.8)
    assert summary.scores["CIDEr"].std == pytest.approx(np.std(values, ddof=1))
    assert summary.baselines["constant"]["CIDEr"].std == pytest.approx(0.0)
    assert ev.aggregate(runs[:1]).scores["CIDEr"].std == 0.0
    with pytest.raises(ValueError, match="24 pairs of test with 48 references, and 23 of test"):
        ev.aggregate([first, first.model_copy(update={"pairs": 23})])
    with pytest.raises(ValueError, match="no evaluations"):
        ev.aggregate([])


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


def test_a_split_is_captioned_and_scored_with_floors(pairs: Path, tmp_path: Path) -> None:
    made = job(pairs, tmp_path / "out", batch_size=3)
    assert finished_evaluation(made) is None
    evaluation = run_evaluation(made, lambda: ToyCaptioner(by_brightness))
    assert evaluation.pairs == 8
    assert evaluation.types is not None
    assert evaluation.types.accuracy == 1.0
    assert evaluation.scores["CIDEr"] > evaluation.baselines["constant"].scores["CIDEr"]
    rows = ev.load_predictions(tmp_path / "out")
    assert [row.pair_id for row in rows] == [f"p{i}" for i in range(12, 20)]
    assert rows[1].nearest == "the ball moved", "the nearest training pair is one that became brighter"
    assert finished_evaluation(made) == evaluation == ev.load_evaluation(tmp_path / "out")
    assert finished_evaluation(job(pairs, tmp_path / "out", batch_size=1)) == evaluation, (
        "the batch size changes no number"
    )
    with pytest.raises(ValueError, match="evaluation of other inputs"):
        finished_evaluation(job(pairs, tmp_path / "out", split="val"))
    (tmp_path / "artifact" / "config.json").write_text('{"system": "toy", "config": {"other": 1}, "files": []}')
    with pytest.raises(ValueError, match="evaluation of other inputs"):
        finished_evaluation(made)


def test_a_second_evaluation_of_the_same_references_is_the_same_and_tokenises_only_new_captions(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    tokenizer = java._ptb_tokenizer

    def recorded(lines: Sequence[str]) -> list[str]:
        asked.extend(lines)
        return tokenizer(lines)

    monkeypatch.setattr(java, "_ptb_tokenizer", recorded)
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
        assert second.ceiling == first.ceiling
        if not new:
            assert (second.scores, second.subsets) == (first.scores, first.subsets)


def test_a_share_of_the_split_without_floors(pairs: Path, tmp_path: Path) -> None:
    evaluation = run_evaluation(
        job(pairs, tmp_path / "o", max_pairs=4, constant_candidates=0, nearest_train_pairs=0),
        lambda: ToyCaptioner(by_brightness),
    )
    assert evaluation.pairs == 4
    assert evaluation.baselines == {}


def test_warned_pairs_are_counted_again_when_the_familiarity_is_another(pairs: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(artifact_folder(SHIPPED), tmp_path / "weights")
    few = {"artifact": str(artifact), "max_pairs": 4, "constant_candidates": 0, "nearest_train_pairs": 0}
    familiarity = Familiarity.read(artifact)
    assert familiarity is not None
    replace(familiarity, distances=np.zeros(99)).save(artifact)
    given = job(pairs, tmp_path / "o", **few)
    first = run_evaluation(given)
    assert first.warned == 4
    assert (
        "warned as unlike the training data: 4 of 4 pairs (100.0 %; 95 % interval 51.0 to 100.0)"
        in evaluation_table(first)
    )
    replace(familiarity, distances=np.full(99, 1e9)).save(artifact)
    assert finished_evaluation(given) == first, "no score depends on it"
    again = run_evaluation(given, overwrite=True)
    assert (again.warned, again.scores) == (0, first.scores)
    (artifact / FAMILIARITY).unlink()
    config = json.loads((artifact / "config.json").read_text())
    config["files"].remove(FAMILIARITY)
    (artifact / "config.json").write_text(json.dumps(config))
    without = run_evaluation(given, overwrite=True)
    assert without.warned is None
    assert "warned" not in evaluation_table(without)


@pytest.mark.parametrize("split", ["all", "train"])
def test_training_pairs_have_no_nearest_training_pair(split: str, pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"nearest_train_pairs: must be 0 with split={split}"):
        job(pairs, tmp_path / "o", split=split)


def test_all_splits_of_pairs_that_were_not_trained_on(pairs: Path, tmp_path: Path) -> None:
    evaluation = run_evaluation(
        job(pairs, tmp_path / "o", split="all", nearest_train_pairs=0), lambda: ToyCaptioner(by_brightness)
    )
    assert (evaluation.pairs, evaluation.split) == (20, "all")
    items = gallery(ev.load_predictions(tmp_path / "o"), str(pairs), None)
    assert list(items) == [f"p{i}" for i in range(20)]


def test_rendered_pairs_have_a_ceiling(tmp_path: Path) -> None:
    from idc.data.rendered.config import RenderJob
    from idc.data.rendered.render import RenderScenes

    small = load(RenderJob, None, {
        "out": "o", "render.num_scenes": 6, "render.width": 24, "render.height": 24, "render.samples_per_pixel": 1,
        "render.min_objects": 2, "render.max_objects": 2, "render.min_visible_pixels": 4,
    }).render  # fmt: skip
    stage = RenderScenes(small)
    rows = [replace(pair, split="test").to_row() for index in range(6) for pair in stage.pairs(index)]
    write_rows(tmp_path / "pairs", rows)
    wanted = job(tmp_path / "pairs", tmp_path / "o", constant_candidates=0, nearest_train_pairs=0)
    evaluation = run_evaluation(wanted, lambda: ToyCaptioner(lambda befores, afters: ["the ball moved"] * len(befores)))
    assert evaluation.ceiling is not None
    assert evaluation.ceiling.types is not None
    assert evaluation.ceiling.types.accuracy == 1.0, "the truth names the right type"
    assert evaluation.ceiling.scores["CIDEr"] > 1 > evaluation.scores["CIDEr"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"pair_id": f"p{i}", "caption": "x"} for i in range(12, 19)], "1 pairs of test have no caption in .*: p19"),
        (
            [{"pair_id": f"p{i}", "caption": "x"} for i in range(11, 20)],
            "1 captions are of pairs that are not in test .*: p11",
        ),
        ([{"pair": "p12"}], "line 1: not of the form"),
        ([{"pair_id": "p12", "caption": None}], "line 1: pair_id and caption have to be text"),
    ],
)
def test_faulty_captions_made_elsewhere_are_refused(
    lines: list[Any], message: str, pairs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ValueError, match=message):
        run_evaluation(job(pairs, tmp_path / "out", artifact=None, predictions=str(file)))


def test_the_command_scores_captions_made_elsewhere_once(pairs: Path, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text("\n".join(json.dumps({"pair_id": f"p{i}", "caption": "no change"}) for i in range(12, 20)))
    settings = f"predictions={file}", f"pairs={pairs}", f"out={tmp_path / 'out'}", "metrics=[CIDEr, BLEU]", "--local"
    first = command("evaluate", *settings)
    assert first.returncode == 0, first.stderr
    assert "baseline: constant" in first.stdout
    second = command("evaluate", *settings)
    assert "done before" in second.stdout
    assert first.stdout.splitlines()[-1] == second.stdout.splitlines()[-1]
    third = command("evaluate", *settings, "constant_candidates=3")
    assert third.returncode == 2
    assert "holds an evaluation of other inputs" in third.stderr


def test_all_faults_of_the_job_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(EvaluateJob, None, {"split": "tset", "batch_size": 0, "out": "o", "pairs": "p", "artifcat": "a"})
    text = str(caught.value)
    assert "did you mean 'test'" in text
    assert "did you mean 'artifact'" in text
    assert "batch_size" in text
    assert "artifact, predictions: give one of the two" in text
