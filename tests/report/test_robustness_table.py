"""The robustness table: numbers of the evaluations, and the share of the clean score."""

from __future__ import annotations

import json
from pathlib import Path

from idc.config import load
from idc.evaluation.record import Baseline, Evaluation
from idc.metrics.change_maps import MODEL, PIXELS, ChangeMaps
from idc.report.config import RobustnessJob
from idc.report.robustness import Condition, _perturbed, write_robustness


def evaluation(cider: float, constant: float | None = 0.2) -> Evaluation:
    scores = {"BLEU-4": cider / 3, "METEOR": cider / 4, "ROUGE-L": cider / 2, "CIDEr": cider}
    compared = {"constant": Baseline(what="one for <all>", scores={"CIDEr": constant}, subsets={})} if constant else {}
    return Evaluation(
        split="test", pairs=40, references=80, distinct_captions=7, empty_captions=0, scores=scores, subsets={},
        baselines=compared, protocol={"name": "coco"},
    )  # fmt: skip


def test_the_table_has_every_condition_with_its_baselines(tmp_path: Path) -> None:
    conditions = [Condition("clean", evaluation(1.2)), Condition("fog, severity 5", evaluation(0.3, constant=0.25))]
    table = write_robustness(tmp_path, "runs/x/artifact", conditions).read_text()
    assert table.startswith("|  | B | M | R | C | C, share of clean | C, constant | right change type |")
    assert "| clean | 40.0 | 30.0 | 60.0 | 120.0 | 100% | 20.0 |  | 7 | 40 |" in table
    assert "| fog, severity 5 | 10.0 | 7.5 | 15.0 | 30.0 | 25% | 25.0 |  | 7 | 40 |" in table
    record = json.loads((tmp_path / "robustness.json").read_text())
    assert record["rows"]["fog, severity 5"]["C"] == "30.0"
    bare = evaluation(1.0, constant=None).model_copy(update={"scores": {}})
    table = write_robustness(tmp_path, "a", [Condition("clean", bare)]).read_text()
    assert "| clean |  |  |  |  |  |  | 7 | 40 |" in table, "without baselines and references"


def test_scores_of_change_maps_are_columns(tmp_path: Path) -> None:
    maps = ChangeMaps(pairs=9, mask_share=0.1, scores={
        way: {"pointing": 0.5, "AP": value, "IoU": 0.5} for way, value in ((MODEL, 0.68), (PIXELS, 0.2))
    })  # fmt: skip
    shifted = evaluation(0.8).model_copy(update={"change_maps": maps})
    conditions = [Condition("clean", shifted), Condition("swapped", evaluation(0.95))]
    table = write_robustness(tmp_path, "a", conditions).read_text()
    assert "| map AP, the captioner's | map AP, baseline: pixel difference |" in table
    assert "| clean | 26.7 | 20.0 | 40.0 | 80.0 | 100% | 20.0 |  | 68.0 | 20.0 |" in table
    assert "| swapped | 31.7 | 23.8 | 47.5 | 95.0 | 119% | 20.0 |  |  |  |" in table


def test_each_severity_is_a_set_and_a_shift_is_one_of_the_after_image() -> None:
    job = load(RobustnessJob, None, {
        "artifact": "a", "pairs": "p", "sets": "s", "out": "o",
        "corruptions": {"fog": [1, 3], "shift": [2], "contrast": []}, "trained_baseline": "t",
    })  # fmt: skip
    made = [(one.out, one.severity, one.which) for one in _perturbed(job)]
    assert made == [
        ("s/fog-1", 1, "both"),
        ("s/fog-3", 3, "both"),
        ("s/shift-2", 2, "after"),
        ("s/swap_order", None, "both"),
    ]
