"""Whether the paper's order held, counted by hand; columns of claims."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from idc.config import ConfigError, load
from idc.evaluation.record import Prediction, spread
from idc.evaluation.score import evaluate_captions
from idc.metrics.difference_lists import OfNumber
from idc.metrics.hallucination import hallucination, truth_of
from idc.sweep.chain import Step
from idc.sweep.config import JUDGE, TRAINING_COSTS, ColumnConfig
from idc.sweep.summary import ResultRow, _results, _training_costs, _value, column_score, ordering
from idc.training.config import TrainConfig

CIDER = ColumnConfig(title="C", metric="CIDEr")


def row(label: str, published: float | None, *values: float) -> ResultRow:
    return ResultRow(
        label=label,
        settings={},
        seeds=list(range(len(values))),
        values={"C": spread(values) if values else None},
        published={} if published is None else {"C": published},
    )


def test_pairs_of_rows_are_counted() -> None:
    rows = [
        row("a", 1.0, 10.0, 12.0),  # mean 11, deviation 1.41
        row("b", 2.0, 11.0, 13.0),  # mean 12: above a, within the spread
        row("c", 3.0, 20.0, 20.0),  # above both, beyond the spread
        row("d", 3.0, 5.0, 5.0),  # published as high as c; below a, b: opposite, beyond the spread
        row("e", None, 99.0, 99.0),
        row("f", 9.0),
    ]
    order = ordering(CIDER, rows)
    assert order is not None
    assert (order.pairs, order.same, order.same_beyond) == (5, 3, 2)
    assert (order.opposite, order.opposite_beyond) == (2, 2)
    assert (order.paper_best, order.own_best, order.seeds) == ("c", "c", 2)
    assert order.sentence() == (
        "The paper's order did not hold for C: 3 of 5 pairs of rows agree (chance: half), 2 by more than the "
        "spread over the seeds; 2 in the opposite order, 2 by more than the spread. Highest in the paper: 'c', as here."
    )


def test_the_order_held() -> None:
    order = ordering(CIDER, [row("a", 1.0, 10.0), row("b", 2.0, 12.0)])
    assert order is not None
    assert order.held
    assert (order.same, order.same_beyond) == (1, 0), "one seed has no spread"
    assert order.sentence() == (
        "The paper's order held for C: 1 of 1 pair of rows agrees (chance: half); with one seed there is no spread "
        "to compare with. Highest in the paper: 'b', as here."
    )


@pytest.mark.parametrize("metric", ["count/MAE", "invented_share", "training_memory"])
def test_the_best_row_of_an_error_or_a_cost_is_the_lowest(metric: str) -> None:
    column = ColumnConfig(title="C", metric=metric, subset="road" if metric == "count/MAE" else None)
    order = ordering(column, [row("a", 1.0, 10.0), row("b", 2.0, 12.0), row("c", 3.0, 9.0)])
    assert order is not None
    assert (order.pairs, order.same, order.opposite) == (3, 1, 2)
    assert (order.paper_best, order.own_best) == ("a", "c")
    assert order.sentence().endswith("Lowest in the paper: 'a', here 'c'.")


def test_there_is_no_order_where_nothing_can_be_compared() -> None:
    assert ordering(CIDER, [row("a", 1.0, 10.0), row("b", None, 11.0)]) is None
    assert ordering(CIDER, [row("a", 1.0, 10.0), row("b", 1.0, 11.0)]) is None
    equal = ordering(CIDER, [row("a", 1.0, 0.0), row("b", 2.0, 0.0)])
    assert equal is not None
    assert (equal.pairs, equal.equal, equal.held) == (0, 1, False)
    assert equal.sentence() == ("The paper's order cannot be compared for C: 1 pair of rows has equal numbers here.")


def test_equal_numbers_neither_agree_nor_disagree_with_the_paper() -> None:
    """Also where the best row of the paper is one of several that are best here."""
    order = ordering(CIDER, [row("a", 1.0, 0.0), row("b", 2.0, 0.0), row("c", 3.0, 4.0), row("d", 9.0, 4.0)])
    assert order is not None
    assert (order.pairs, order.same, order.opposite, order.equal) == (4, 4, 0, 2)
    assert order.sentence() == (
        "The paper's order held for C: 4 of 4 pairs of rows agree (chance: half); with one seed there is no spread "
        "to compare with; 2 pairs of rows have equal numbers here. Highest in the paper: 'd', as here."
    )


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
    lists = OfNumber(pairs=1, precision=0.5, recall=1.0, f1=0.67, invented_share=0.25)
    evaluation, baseline = (one.model_copy(update={"differences": lists}) for one in (evaluation, baseline))
    assert shown("difference_f1") == [0.67, 0.67]
    assert shown("invented_share") == [0.25, 0.25]
    bare = evaluation.model_copy(update={"hallucination": None})
    assert column_score(ColumnConfig(title="t", metric="right_object"), bare) is None
    with pytest.raises(ConfigError, match="right_object is a share of the whole split"):
        load(ColumnConfig, None, {"title": "t", "metric": "right_object", "subset": "change"})


def test_a_judges_column_has_its_mean_over_the_seeds_as_it_is(tmp_path: Path) -> None:
    steps = [Step(name=f"judge-{seed}", entry="m:f", payload={}) for seed in range(3)]
    for seed, step in enumerate(steps[:2]):
        result = {"": 30.0 + seed, "real": 40.0 + seed}
        (tmp_path / f"{step.name}.json").write_text(json.dumps({"result": result}))
    measured = {JUDGE: _results(tmp_path, [*steps, None])}
    whole, real, other = (
        _value(ColumnConfig(title="LLM", metric=JUDGE, subset=part), [], measured) for part in (None, "real", "render")
    )
    assert whole is not None
    assert real is not None
    assert (whole.mean, real.mean, other) == (30.5, 40.5, None)


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
    speed, memory = (_value(column, [], _training_costs(tmp_path, plans)) for column in columns)
    assert speed is not None
    assert memory is not None
    assert (speed.values, memory.values) == ([1.5, 3.5], [2.0, 28.6])
    assert [_value(column, [], _training_costs(tmp_path, plans[2:])) for column in columns] == [None, None]
