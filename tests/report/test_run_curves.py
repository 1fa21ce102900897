"""Runs side by side: their values as they were logged, means where that is asked for, and what cannot be drawn."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from idc.report.config import CompareRunsJob
from idc.report.run_curves import points_of, round_axis, run_curves_page, run_curves_picture
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


def test_the_picture_has_the_means_of_whole_logs_and_bars_of_their_errors(tmp_path: Path) -> None:
    text = run_curves_picture(job(tmp_path, smooth=2))
    ElementTree.fromstring(text)
    picture = HtmlPage(text)
    assert len([tag for tag, _ in picture.tags if tag == "polyline"]) == 2
    for wanted in (
        "uniform: 40.0 % in the mean of 5 lines of the log, last point 37.5 %",
        "<hard>: 50.0 % in the mean of 3",
    ):
        assert wanted in picture.text, wanted
    bars = [line for tag, line in picture.tags if tag == "line" and "--c0" in (line.get("style") or "")]
    heights = [float(bar["y2"] or 0) - float(bar["y1"] or 0) for bar in bars]
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.5), "0.25, 0.5 and then 0.75, 0.0: a third of the spread"
    assert not any("--c0" in (line.get("style") or "") for tag, line in HtmlPage(run_curves_picture(job(tmp_path))).tags
                   if tag == "line"), "a single line of the log has no error"  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "axis"),
    [(0, 0.029, (0, 0.03, 3)), (0, 0.02, (0, 0.02, 4)), (-0.6, 0.31, (-0.6, 0.4, 5)), (52.3, 55.9, (52, 56, 4)),
     (3, 3, (3, 4, 1)), (0.1, 0.9, (0, 1, 5)), (1e-7, 3e-7, (1e-7, 3e-7, 4)), (0, 100, (0, 100, 5))],
)  # fmt: skip
def test_the_lines_of_an_axis_have_round_numbers(low: float, high: float, axis: tuple[float, float, int]) -> None:
    assert round_axis(low, high) == pytest.approx(axis, rel=1e-9, abs=1e-12)


def test_what_cannot_be_drawn_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run has two points"):
        run_curves_picture(job(tmp_path, fields=("margins",)))
