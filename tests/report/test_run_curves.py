"""Runs side by side: their values as they were logged, means where that is asked for, and what cannot be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.report.config import CompareRunsJob
from idc.report.run_curves import points_of, run_curves_page
from tests.report.html_page import HtmlPage

LOG = [{"step": step, "true_negatives": share, **({"validation/CIDEr": 1.5} if step == 30 else {})}
       for step, share in ((10, 0.25), (20, 0.5), (30, 0.75), (40, 0.0), (50, 0.5))]  # fmt: skip


def job(folder: Path, **settings: object) -> CompareRunsJob:
    runs = {}
    for name in ("uniform", "<hard>"):
        runs[name] = str(folder / name.strip("<>"))
        Path(runs[name]).mkdir(exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in LOG[: 5 if name == "uniform" else 3])
        (Path(runs[name]) / "log.jsonl").write_text(text + '{"step": 60, "true_neg')  # cut short by a kill
    raw_settings = {"runs": runs, "fields": ("true_negatives",), "out": str(folder / "page.html"), **settings}
    return CompareRunsJob.model_validate(raw_settings)


def test_each_run_is_a_line_with_its_last_value(tmp_path: Path) -> None:
    page = HtmlPage(run_curves_page(job(tmp_path)))
    assert len([tag for tag, _ in page.tags if tag == "polyline"]) == 2
    for wanted in ("uniform 0.5", "<hard> 0.75", "step 50", str(tmp_path / "hard")):
        assert wanted in page.text, wanted


def test_points_are_means_of_whole_groups() -> None:
    assert points_of(LOG, "true_negatives", 1) == [(10, 0.25), (20, 0.5), (30, 0.75), (40, 0.0), (50, 0.5)]
    assert points_of(LOG, "true_negatives", 2) == [(20, 0.375), (40, 0.375)]
    assert points_of(LOG, "validation/CIDEr", 1) == [(30, 1.5)]
    assert points_of(LOG, "true_negatives", 6) == []


def test_what_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    for settings in ({"fields": ("margins",)}, {"smooth": 5}, {"fields": ("validation/CIDEr",)}):
        with pytest.raises(ValueError, match=r"no run has two points of .*logged are .*true_negatives"):
            run_curves_page(job(tmp_path, **settings))
    with pytest.raises(ValueError, match="not a training run"):
        run_curves_page(job(tmp_path).model_copy(update={"runs": {"none": str(tmp_path)}}))
