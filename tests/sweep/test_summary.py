"""Columns of claims, judges and costs; differences from the control row."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from idc.config import ConfigError, load
from idc.data.schema import ChangePair
from idc.evaluation.record import Prediction, save
from idc.evaluation.score import evaluate_captions
from idc.metrics.scene_scores import ByCount, hallucination, truth_of
from idc.sweep.chain import Step
from idc.sweep.config import JUDGE, TRAINING_COSTS, ColumnConfig, RowConfig
from idc.sweep.summary import _effects, column_score, column_values, effect
from idc.training.config import TrainConfig
from tests.folders import write_rows


def test_columns_of_claims_are_those_of_the_evaluation_and_of_its_baselines() -> None:
    red = {"size": "small", "color": "red", "material": "metal", "shape": "cube"}
    truth = truth_of("drop", [red], [])
    predictions = [Prediction(pair_id="p", caption="the red ball is gone", references=["x"], change_type="drop")]
    evaluation, _ = evaluate_captions(predictions, metrics=("CIDEr",), constant_candidates=["the small red cube moved"])
    baseline = evaluation.baselines["constant"]
    evaluation = evaluation.model_copy(update={"hallucination": hallucination([("the red ball is gone", truth)])})
    baseline = baseline.model_copy(update={"hallucination": hallucination([("the small red cube moved", truth)])})

    def shown(metric: str) -> list[float | None]:
        return [column_score(ColumnConfig(title="t", metric=metric), source) for source in (evaluation, baseline)]

    assert shown("right_object") == [0.0, 1.0]
    assert shown("right_attribute") == [0.5, 1.0]
    assert shown("right_type") == [1.0, 0.0]
    assert shown("METEOR") == [None, None]
    assert shown("CIDEr") == [None, None], "not defined for a single pair"
    assert shown("difference_f1") == shown("invented_share") == [None, None]
    lists = ByCount(pairs=1, precision=0.5, recall=1.0, f1=0.67, invented_share=0.25)
    evaluation, baseline = (one.model_copy(update={"differences": lists}) for one in (evaluation, baseline))
    assert shown("difference_f1") == [0.67, 0.67]
    assert shown("invented_share") == [0.25, 0.25]
    bare = evaluation.model_copy(update={"hallucination": None})
    assert column_score(ColumnConfig(title="t", metric="right_object"), bare) is None
    with pytest.raises(ConfigError, match="right_object is a share of the whole split"):
        load(ColumnConfig, None, {"title": "t", "metric": "right_object", "subset": "change"})


def test_a_judges_column_has_the_score_of_each_seed_as_it_is(tmp_path: Path) -> None:
    steps = [Step(name=f"judge-{seed}", entry="m:f", payload={}) for seed in range(3)]
    for seed, step in enumerate(steps[:2]):
        result = {"": 30.0 + seed, "real": 40.0 + seed}
        (tmp_path / f"{step.name}.json").write_text(json.dumps({"result": result}))
    plans: Any = [SimpleNamespace(steps=SimpleNamespace(judge=step)) for step in [*steps, None]]
    columns = [ColumnConfig(title="LLM", metric=JUDGE, subset=part) for part in (None, "real", "render")]
    values = [column_values(column, plans, tmp_path) for column in columns]
    assert values == [[30.0, 31.0], [40.0, 41.0], []]


def test_costs_of_a_training_are_those_of_the_trials_last_one(tmp_path: Path) -> None:
    """Memory is the GPU's where there is one; a trial that trains nothing has no costs."""
    train = TrainConfig(steps=1)
    results = {
        "first": {"samples_per_second": 9.0, "peak_rss_gib": 1.0},
        "last": {"samples_per_second": 1.5, "peak_rss_gib": 2.0},
        "on-gpu": {"samples_per_second": 3.5, "peak_rss_gib": 2.0, "peak_gpu_gib": 28.6},
        "wrapped": {},
    }
    for name, result in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"result": result}))
    chains = [("first", "last"), ("first", "on-gpu"), ("wrapped",)]
    plans: Any = [
        SimpleNamespace(steps=SimpleNamespace(work=tuple(
            Step(name=name, entry="m:f", payload={}, train=None if name == "wrapped" else train) for name in chain
        )))
        for chain in chains
    ]  # fmt: skip
    columns = [ColumnConfig(title=metric, metric=metric) for metric in TRAINING_COSTS]
    assert [column_values(column, plans, tmp_path) for column in columns] == [[1.5, 3.5], [2.0, 28.6]]
    assert [column_values(column, plans[2:], tmp_path) for column in columns] == [[], []]


# -- differences from the control row --------------------------------------------------------------------------------


def evaluated(store: Path, name: str, pairs: str, right: set[int], count: int = 6) -> None:
    """An evaluation of dropped objects, of which the caption names those of ``right``, and an unchanged pair."""
    captions = [
        f"the red cube is {'gone' if n in right else 'blue'}" if n else "nothing has changed" for n in range(count)
    ]
    if name.startswith("treatment"):
        captions = [
            text.replace("red cube", "green ball") if n not in right else text for n, text in enumerate(captions)
        ]
    predictions = [
        Prediction(pair_id=f"p{n}", caption=caption, references=["the red cube is gone", "it is gone"],
                   change_type="drop" if n else "none")
        for n, caption in enumerate(captions)
    ]  # fmt: skip
    evaluation, rows = evaluate_captions(predictions, metrics=("CIDEr",), constant_candidates=["x"])
    protocol = {**evaluation.protocol, "pairs": pairs}
    save(store / name, evaluation.model_copy(update={"protocol": protocol, "split": "test"}), rows)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six rendered pairs; the red cube is gone from all but the first."""
    red, gray = (
        {"size": "small", "color": color, "material": "rubber", "shape": "cube", "x": x, "y": 0.0}
        for color, x in (("red", 0.0), ("gray", 2.0))
    )
    rows = [
        ChangePair(f"p{n}", b"a", b"b", ("x",), "drop" if n else "none", "test", source=f"rendered:{n}",
                   meta={"before": [red, gray], "after": [gray] if n else [red, gray]}).to_row()
        for n in range(6)
    ]  # fmt: skip
    return str(write_rows(tmp_path_factory.mktemp("rendered") / "pairs", rows))


def test_a_row_is_compared_with_the_control_row_of_its_group_by_the_seeds_of_both(
    rendered: str, tmp_path: Path
) -> None:
    rows = [RowConfig(label="plain", group=group) for group in ("a", "b")]
    rows += [RowConfig(label="new", group="b"), RowConfig(label="new", group="c")]
    right = {"control-0": {1}, "control-1": {1, 2}, "control-3": {5}}
    right |= {"treatment-0": {1, 2, 3}, "treatment-1": {2, 3}, "treatment-2": {4}}
    for name, of in right.items():
        evaluated(tmp_path, name, rendered, of)
    done: Any = [
        SimpleNamespace(row=2 if name.startswith("t") else 1, seed=int(name[-1]),
                        steps=SimpleNamespace(evaluation=SimpleNamespace(name=name)))
        for name in right
    ]  # fmt: skip
    metrics = ("right_object", "right_type", "CIDEr", "BLEU-4", "difference_f1")
    job: Any = SimpleNamespace(control="plain", columns=[ColumnConfig(title=name, metric=name) for name in metrics])
    effects = _effects(job, rows, 2, done, tmp_path)
    assert list(effects) == ["right_object", "right_type", "CIDEr"]
    # Seeds 0 and 1: the treatment names the cube in 3 and 2 of the 5 changed pairs, the control always.
    assert (effects["right_object"].seeds, effects["right_object"].pairs) == (2, 5)
    assert effects["right_object"].effect == pytest.approx((3 + 2 - 5 - 5) / 10)
    # Of all 6 pairs the right type, of the unchanged one too: 4 and 3 against 2 and 3.
    assert effects["right_type"].effect == pytest.approx((4 + 3 - 2 - 3) / 12)
    assert effects["right_type"].interval.low < effects["right_type"].effect < effects["right_type"].interval.high
    assert [_effects(job, rows, number, done, tmp_path) for number in (0, 1, 3)] == [{}, {}, {}]
    evaluated(tmp_path, "treatment-9", rendered, {1}, count=5)
    assert effect("right_type", [tmp_path / "control-0"], [tmp_path / "treatment-9"]) is None, "other pairs"
