"""Evaluations of rendered pairs with several changes: difference lists with baselines, intervals and paired tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import load
from idc.data.images import encode_png
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.config import CompareJob, EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.evaluation.record import evaluation_table
from idc.evaluation.rendered_truth import rendered_truth
from idc.evaluation.significance import compare_evaluations, comparison_table
from idc.metrics.scene_scores import F1, INVENTED, PRECISION, PROTOCOL, RECALL
from idc.rendered.differences import DIFFERENCES
from idc.rendered.sentences import several_captions
from idc.training.caption_validation import score_captions
from idc.training.context import LocalContext
from tests.folders import write_rows
from tests.rendered.drawn_differences import Drawn, drawn_pairs
from tests.rendered.planted_errors import planted


def meta_of(pair: Drawn) -> dict[str, Any]:
    listed = [
        {
            "kind": one.kind,
            "before": [pair.before.index(dict(thing)) for thing in one.before],
            "after": [pair.after.index(dict(thing)) for thing in one.after],
        }
        for one in pair.differences
    ]
    views = [view.record() for view in pair.views]
    changed = int(bool(listed))
    return {"before": pair.before, "after": pair.after, "views": views, DIFFERENCES: listed, "changeflag": changed}


def type_of(pair: Drawn) -> str | None:
    kinds = [one.kind for one in pair.differences]
    return None if len(kinds) > 1 else (*kinds, "none")[0]


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    return drawn_pairs(60, seed=21)


@pytest.fixture(scope="module")
def evaluated(drawn: list[Drawn], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``true`` and ``wrong``: evaluations of true captions and of captions with a planted error where there
    can be one."""
    folder = tmp_path_factory.mktemp("lists")
    rng = np.random.default_rng(0)
    grey = encode_png(np.full((16, 24, 3), 90, np.uint8))
    rows, said = [], {"true": [], "wrong": []}
    for number, pair in enumerate(drawn):
        args = (pair.differences, pair.before, pair.after, pair.views)
        references = several_captions(*args, 4, rng)
        split = "train" if number < 20 else "test"
        kept = {"captions": references[:3], "change_type": type_of(pair), "split": split, "source": "rendered:drawn"}
        rows.append(ChangePair(f"p{number}", grey, grey, **kept, meta=meta_of(pair)).to_row())
        if split == "test":
            said["true"].append({"pair_id": f"p{number}", "caption": references[3]})
            wrong = planted("wrong object", *args, rng) or references[3]
            said["wrong"].append({"pair_id": f"p{number}", "caption": wrong})
    write_rows(folder / "pairs", rows)
    for name, captions in said.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in captions))
        given = {"pairs": str(folder / "pairs"), "predictions": str(folder / f"{name}.jsonl")}
        job = load(EvaluateJob, None, {**given, "out": str(folder / name), "metrics": ["CIDEr"], "resamples": 200})
        run_evaluation(job)
    return folder


def test_true_captions_have_a_perfect_list_and_the_baselines_have_not(evaluated: Path) -> None:
    found = ev.load_evaluation(evaluated / "true")
    assert found.differences.protocol == PROTOCOL
    assert found.differences.means() == {PRECISION: 1.0, RECALL: 1.0, F1: 1.0, INVENTED: 0.0}
    assert found.differences.pairs == 40
    assert found.differences.intervals[F1] == (1.0, 1.0)
    assert found.upper_bound is not None
    for name in ("constant", "nearest"):
        baseline = found.baselines[name].differences
        low, high = baseline.intervals[F1]
        assert low <= baseline.f1 <= high < 0.7
    text = evaluation_table(found)
    assert "difference F1    100.0%" in text
    assert "baseline: nearest: difference P" in text


def test_planted_errors_show_in_the_scores_and_in_every_row(evaluated: Path, drawn: list[Drawn]) -> None:
    found = ev.load_evaluation(evaluated / "wrong").differences
    assert found.half > 10
    assert (found.invented, found.surplus) == (0, 0)
    assert found.right + found.half == found.truths == found.claims
    rows = ev.load_predictions(evaluated / "wrong")
    lists = [row.differences for row in rows if row.differences is not None]
    assert len(lists) == 40
    assert np.mean([one.scores[F1] for one in lists]) == pytest.approx(found.f1)
    assert sum(claim.startswith("half: ") for one in lists for claim in one.claims) == found.half


def test_two_systems_are_compared_by_their_lists_too(evaluated: Path) -> None:
    compared = compare_evaluations(CompareJob(a=str(evaluated / "wrong"), b=str(evaluated / "true")))
    row = compared.metrics[F1]
    assert row.difference > 0.1
    assert 0 < row.interval.low < row.difference < row.interval.high
    assert f"\n{F1}" in comparison_table(compared)


def test_lists_are_scored_only_if_every_pair_has_its_truth(drawn: list[Drawn]) -> None:
    rows = [
        {"pair_id": str(n), "change_type": type_of(pair), "source": "rendered:drawn", "meta": json.dumps(meta_of(pair))}
        for n, pair in enumerate(drawn[:6])
    ]
    whole = rendered_truth(rows)
    assert len(whole.lists) == 6
    assert rendered_truth([*rows, {**rows[0], "source": "mine"}]) is None
    bare = {key: value for key, value in meta_of(drawn[0]).items() if key != DIFFERENCES}
    assert rendered_truth([*rows, {**rows[0], "change_type": None, "meta": json.dumps(bare)}]) is None
    unknown = {"before": [{"shape": "cube"}], "after": [{"shape": "cube"}]}
    gap = rendered_truth([*rows, {**rows[0], "pair_id": "g", "change_type": "none", "meta": json.dumps(unknown)}])
    assert gap.lists == {}
    captions = dict.fromkeys(gap.wordings, "")
    assert gap.scores(captions, 0)[0]["differences"] is gap.scores(captions, 9)[1].get("g") is None


def test_validation_offers_f1_where_pairs_have_lists(drawn: list[Drawn], tmp_path: Path) -> None:
    from idc.metrics.scene_scores import scene_truth

    rng = np.random.default_rng(0)
    rows = []
    for n, pair in enumerate(drawn[:8]):
        captions = several_captions(pair.differences, pair.before, pair.after, pair.views, 2, rng)
        rows.append((str(n), captions[0] if n % 2 else "a cube", captions, scene_truth(type_of(pair), meta_of(pair))))
    found = score_captions(rows, LocalContext(tmp_path))
    assert found["difference_f1"] == 0.5
    assert found["invented_share"] == 0.0
    assert "right_object" not in found


def test_lists_by_other_rules_are_not_compared(evaluated: Path, tmp_path: Path) -> None:
    text = (evaluated / "true" / ev.EVALUATION).read_text().replace(PROTOCOL, "rendered-difference-rules-0")
    (tmp_path / ev.EVALUATION).write_text(text)
    (tmp_path / ev.PREDICTIONS).write_text((evaluated / "true" / ev.PREDICTIONS).read_text())
    with pytest.raises(ValueError, match="rendered-difference-rules-0 and rendered-difference-rules-2; evaluate again"):
        compare_evaluations(CompareJob(a=str(tmp_path), b=str(evaluated / "wrong")))
