"""The page of measures against the truth: every number is there, with its interval if there is one; texts are texts."""

from __future__ import annotations

from idc.evaluation.agreement import Estimate
from idc.evaluation.measured import WORDS, Agreement, MeasuresRecord, Planted, PlantedError
from idc.evaluation.record import Interval
from idc.report.measures_page import measures_table, render_measures
from tests.report.html_page import HtmlPage
from tests.report.test_escaping import EVIL, check


def about(value: float, half: float = 0.0) -> Estimate:
    return Estimate(value=value, interval=Interval(low=value - half, high=value + half) if half else None)


def agreeing(accuracy: float, half: float) -> Agreement:
    return Agreement(
        accuracy=about(accuracy, half), lead=about(0.125, half), spearman=about(0.312, half), kendall=about(0.298),
        spearman_in_pair=about(0.417, half), kendall_in_pair=about(0.402), with_precision=0.501, with_recall=0.611,
        with_invented=-0.721, systems=0.833,
    )  # fmt: skip


def measured(name: str, system: str, half: float = 0.05) -> MeasuresRecord:
    planted = Planted(preferred=about(0.642, half), fall=about(1.234, half))
    return MeasuresRecord(
        pairs=name, split="test", count=440, comparisons=99,
        systems={one: {"difference F1": 0.731, name: 0.256, WORDS: 8.5} for one in (system, "nearest")},
        baselines=["nearest"], agreement={name: agreeing(0.876, half), WORDS: agreeing(0.5, half)},
        errors={"missing": PlantedError(pairs=7, example=(f"true {name}", f"wrong {name}"), true_f1=(1, 0.66),
                                        measures={name: planted})},
        sentences=[f"Trust {name}."], limits=[f"Of {name} alone."], protocol={name: name},
    )  # fmt: skip


def test_every_number_with_its_interval() -> None:
    page = HtmlPage(render_measures(measured("CIDEr", "ProCap")))
    text = " ".join(page.text.split())
    for shown in (
        "440 pairs, captions of 2 systems", "Trust CIDEr.", "Of CIDEr alone.", "87.6 (82.6 to 92.6)",
        "0.31 (0.26 to 0.36)", "0.42 (0.37 to 0.47)", "0.50 0.61 -0.72 0.83", "missing (7 pairs)",
        "1.23 (1.18 to 1.28)", "not judged",
        "true CIDEr wrong CIDEr 7 1.00 → 0.66", "ProCap 73.1 25.6 8.5", "baseline: nearest",
    ):  # fmt: skip
        assert shown in text, shown
    assert len(page.with_class("interval")) == 2 + 1
    assert "64.2" in text, "in the chart of the error"
    assert "87.6 (82.6 to 92.6)" in measures_table(measured("CIDEr", "ProCap"))


def test_without_resamples_there_are_no_intervals() -> None:
    page = HtmlPage(render_measures(measured("CIDEr", "ProCap", half=0.0)))
    assert page.with_class("interval") == []
    assert "(82.6" not in page.text
    assert "87.6" in page.text


def test_texts_are_texts() -> None:
    check(render_measures(measured(EVIL, EVIL)), 11)
