"""Whether the paper's order held, counted by hand."""

from __future__ import annotations

from typing import Any

from idc.evaluation.record import Evaluation, spread
from idc.metrics.hallucination import hallucination, truth_of
from idc.sweep.config import ColumnConfig
from idc.sweep.summary import ResultRow, _value, ordering


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
    found = ordering("C", rows)
    assert found is not None
    assert (found.pairs, found.same, found.same_beyond) == (5, 3, 2)
    assert (found.opposite, found.opposite_beyond) == (2, 2)
    assert (found.paper_best, found.own_best, found.seeds) == ("c", "c", 2)
    assert found.sentence() == (
        "The paper's order did not hold for C: 3 of 5 pairs of rows agree (chance: half), 2 by more than the "
        "spread over the seeds; 2 in the opposite order, 2 by more than the spread. Best in the paper: 'c', as here."
    )


def test_the_order_held() -> None:
    found = ordering("C", [row("a", 1.0, 10.0), row("b", 2.0, 12.0)])
    assert found is not None
    assert found.held
    assert (found.same, found.same_beyond) == (1, 0), "one seed has no spread"
    assert found.sentence() == (
        "The paper's order held for C: 1 of 1 pair of rows agrees (chance: half); with one seed there is no spread "
        "to compare with. Best in the paper: 'b', as here."
    )


def test_there_is_no_order_where_nothing_can_be_compared() -> None:
    assert ordering("C", [row("a", 1.0, 10.0), row("b", None, 11.0)]) is None
    assert ordering("C", [row("a", 1.0, 10.0), row("b", 1.0, 11.0)]) is None
    equal = ordering("C", [row("a", 1.0, 10.0), row("b", 2.0, 10.0)])
    assert equal is not None
    assert (equal.pairs, equal.same, equal.opposite) == (1, 0, 0)


def test_the_claims_of_captions_of_rendered_pairs_are_columns() -> None:
    thing = {"shape": "cube", "color": "red", "material": "rubber", "size": "large"}
    gone = truth_of("drop", [thing], [])
    claims = hallucination([("the red cube is gone", gone), ("the blue cube is gone", gone)])
    scores: dict[str, Any] = {"scores": {"CIDEr": 0.5}, "subsets": {}}
    scored = [Evaluation.model_construct(**scores, hallucination=claims)]
    found = {name: _value(ColumnConfig(title=name, metric=name), scored, []) for name in ("right_type", "right_object")}
    assert {name: value.mean for name, value in found.items() if value is not None} == {
        "right_type": 100.0, "right_object": 50.0,
    }  # fmt: skip
    without = [Evaluation.model_construct(**scores, hallucination=None)]
    assert _value(ColumnConfig(title="type", metric="right_type"), without, []) is None
