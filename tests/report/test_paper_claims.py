"""Claims of papers tested by what sweeps have left: verdicts, reasons, the page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.data.store import DatasetFolder
from idc.evaluation.effects import Components, SeededEffect
from idc.evaluation.record import Baseline, CaptionDifferences, Evaluation, Interval, ScoredCaption, Training, save
from idc.metrics.changes import named_type
from idc.metrics.difference_lists import F1
from idc.report.forest_chart import WIDTH, ForestGroup, ForestRow, forest
from idc.report.paper_claims.claims_page import claims_markdown, render_claims, write_claims
from idc.report.paper_claims.claims_picture import ONE_SEED, claims_picture
from idc.report.paper_claims.config import ClaimsJob
from idc.report.paper_claims.gathering import ClaimResult, gather_claims, verdict_of
from idc.schema import pair_arrow_schema
from idc.sweep.config import SweepJob
from idc.sweep.progress import write_plan
from idc.sweep.summary import TrialResult
from idc.systems import SYSTEMS
from tests.report.html_page import HtmlPage
from tests.report.test_escaping import EVIL, check

ROOT = Path(__file__).parents[2]
PAIRS = 8
RED = {"shape": "cube", "color": "red", "material": "metal", "size": "small", "x": 0.0, "y": 0.0, "turn": 0.0}
BLUE = {**RED, "color": "blue"}
RIGHT, WRONG = "the red cube has turned blue", "the green sphere has turned blue"


# -- the rules ----------------------------------------------------------------------------------------------------


def effect_of(low: float, high: float, control: float = 0.5, seeds: int = 3) -> SeededEffect:
    middle = (low + high) / 2
    return SeededEffect(
        seeds=seeds, pairs=100, control=control, treatment=control + middle, effect=middle,
        interval=Interval(low=low, high=high), components=Components(seeds=0.0, pairs=0.2, rest=0.1),
    )  # fmt: skip


@pytest.mark.parametrize(("low", "high", "verdict", "why"), [
    (0.01, 0.20, "seen", "at least 1.0 and at most 20.0"),
    (0.01, 0.02, "seen", "below the smallest effect of interest, 3.0"),
    (-0.20, -0.01, "contradicted", "it costs at least 1.0 and at most 20.0"),
    (-0.20, 0.02, "not seen", "an effect of 3.0 is ruled out"),
    (-0.01, 0.02, "not seen", "an effect of 3.0 is ruled out"),
    (-0.01, 0.04, "not testable here", "holds 0 and 3.0; by this spread 3.0 takes 3 seeds and 2,811 pairs"),
])  # fmt: skip
def test_the_verdict_follows_the_interval_and_the_smallest_effect_of_interest(
    low: float, high: float, verdict: str, why: str
) -> None:
    found, reason = verdict_of(effect_of(low, high), 0.03, nearest=0.15)
    assert (found, why in reason) == (verdict, True), reason


def test_a_model_that_does_not_see_tests_nothing() -> None:
    """However clear the difference of two blind models is."""
    assert verdict_of(effect_of(0.01, 0.02, control=0.1), 0.03, nearest=0.15) == (
        "not testable here", "neither row is better than the nearest training pair's caption (15.0)",
    )  # fmt: skip
    assert verdict_of(effect_of(0.01, 0.20, control=0.1), 0.03, nearest=0.15)[0] == "seen", "the treatment sees"
    assert verdict_of(effect_of(0.01, 0.02, control=0.1), 0.03)[0] == "seen", "no baseline, no rule"


def test_one_seed_is_no_test() -> None:
    """Its interval over the pairs alone, which is of these two trainings, is shown."""
    update = {"interval": None, "components": None, "of_pairs": Interval(low=0.1, high=0.2)}
    alone = effect_of(0.1, 0.2, seeds=1).model_copy(update=update)
    why = "one seed has no spread over seeds; over the pairs alone +10.0 to +20.0"
    assert verdict_of(alone, 0.03) == ("not testable here", why)


# -- made-up sweeps -----------------------------------------------------------------------------------------------


def write_rendered(folder: Path) -> str:
    """Pairs of which all but the last are a repainted cube."""
    grey = encode_png(np.full((8, 8, 3), 90, np.uint8))
    rows = [
        {
            "pair_id": f"p{number}", "before": grey, "after": grey, "captions": [RIGHT], "split": "test", "mask": None,
            "change_type": "color" if number < PAIRS - 1 else "none", "source": "rendered:test",
            "meta": json.dumps({"before": [RED], "after": [BLUE if number < PAIRS - 1 else RED]}),
        }
        for number in range(PAIRS)
    ]  # fmt: skip
    data = DatasetFolder.open_for_build(
        str(folder), kind="pairs", schema=pair_arrow_schema(), fingerprint="made up", config={}, num_chunks=1
    )
    data.write_chunk(0, rows)
    data.finish()
    return str(folder)


def write_evaluation(folder: Path, pairs: str, right: int, cider: Sequence[float], **update: Any) -> None:
    """An evaluation whose first ``right`` captions name the right object."""
    rows = [
        ScoredCaption(
            pair_id=f"p{number}", caption=RIGHT if number < right else WRONG, references=[RIGHT],
            change_type="color" if number < PAIRS - 1 else "none", named_type=named_type(RIGHT),
            scores={"CIDEr": cider[number]}, differences=CaptionDifferences(scores={F1: number / PAIRS}, claims=[]),
        )
        for number in range(PAIRS)
    ]  # fmt: skip
    nearest = Baseline(what="nearest", scores={"CIDEr": 0.001}, subsets={})
    evaluation = Evaluation(
        split="test", pairs=PAIRS, references=PAIRS, distinct_captions=2, empty_captions=0, scores={}, subsets={},
        baselines={"nearest": nearest}, protocol={"name": "coco", "pairs": pairs, "data": {"fingerprint": "made up"}},
        training=Training(system="procap"),
    )  # fmt: skip
    save(folder, evaluation.model_copy(update=update), rows)


def write_made_up_sweep(runs: Path, name: str, trials: Mapping[str, Path | None], store: Path | None = None) -> None:
    """A sweep's folder: label of a trial -> its evaluation, None if it is not done."""
    folder = runs / name
    (folder / "trials").mkdir(parents=True)
    write_plan(
        folder,
        "",
        "CIDEr",
        "max",
        len(trials),
        store or runs / "steps",
        [(f"k{n}", label, ()) for n, label in enumerate(trials)],
    )
    for number, (label, evaluation) in enumerate(trials.items()):
        if evaluation is not None:
            result = TrialResult(label=label, steps=[], evaluation=evaluation.name)
            (folder / "trials" / f"k{number}.json").write_text(result.model_dump_json())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A sweep of three seeds, whose treatment is right about all 7 changed pairs, not 2, with a CIDEr of .02 more."""
    pairs = write_rendered(tmp_path / "pairs")
    trials: dict[str, Path | None] = {}
    for seed in range(3):
        for row, right, more in (("without it", 2, 0.0), ("with it", 7, 0.02)):
            folder = tmp_path / "sweeps" / "steps" / f"evaluation-{row.replace(' ', '-')}-{seed}"
            cider = [0.1 * number + 0.01 * seed + more for number in range(PAIRS)]
            write_evaluation(folder, pairs, right, cider)
            trials[f"one change, {row}, seed {seed}"] = folder
    write_made_up_sweep(tmp_path / "sweeps", "made_up", trials)
    return tmp_path / "sweeps"


def claim(**changes: Any) -> dict[str, Any]:
    return {
        "claim": "It helps", "paper": "a paper, table 1", "system": "procap", "sweep": "made_up",
        "control": "one change, without it", "treatment": "one change, with it", "least": {"CIDEr": 1}, **changes,
    }  # fmt: skip


def results_of(runs: Path, **changes: Any) -> list[ClaimResult]:
    return gather_claims(load(ClaimsJob, None, {"claims": [claim(**changes)], "sweeps": [str(runs)]}))


def test_effects_are_means_over_the_pairs_and_seeds_of_two_rows(runs: Path) -> None:
    least = {"CIDEr": 1, "right_object": 3, "right_type": 3, "difference_f1": 3}
    by_metric = {row.metric: row for row in results_of(runs, least=least)}
    cider, right, kind, lists = (by_metric[name].effect for name in least)
    assert cider is not None
    assert right is not None
    assert kind is not None
    assert lists is not None
    assert (cider.effect, cider.seeds, cider.pairs) == (pytest.approx(0.02), 3, PAIRS)
    assert cider.control == pytest.approx(0.35 + 0.01)
    assert (right.control, right.treatment, right.pairs) == (pytest.approx(2 / 7), 1.0, 7)
    assert kind.control == kind.treatment == pytest.approx(7 / 8)
    assert (lists.control, lists.effect) == (pytest.approx(3.5 / 8), 0)
    assert by_metric["CIDEr"].verdict == "seen"
    assert by_metric["CIDEr"].seeds == ["0", "1", "2"]
    assert by_metric["CIDEr"].nearest == 0.001
    assert by_metric["right_type"].verdict == "not seen"


def test_the_rows_are_not_exchanged(runs: Path) -> None:
    (row,) = results_of(runs, control="one change, with it", treatment="one change, without it")
    assert row.verdict == "contradicted"


def test_seeds_that_one_row_lacks_are_left_out(runs: Path) -> None:
    (runs / "made_up" / "trials" / "k4.json").unlink()  # the control's third seed
    (row,) = results_of(runs)
    assert row.seeds == ["0", "1"]


def test_a_sweep_that_was_moved_is_read(runs: Path, tmp_path: Path) -> None:
    runs.rename(tmp_path / "moved")
    assert results_of(tmp_path / "moved")[0].verdict == "seen"


def test_evaluations_without_a_sweep_are_found_by_their_seeds(runs: Path) -> None:
    control, treatment = (f"{runs}/steps/evaluation-{row}-it-{{seed}}" for row in ("without", "with"))
    (runs / "steps" / "evaluation-with-it-old").mkdir()
    (row,) = results_of(runs, sweep=None, control=control, treatment=treatment)
    assert (row.verdict, row.seeds) == ("seen", ["0", "1", "2"])
    (row,) = results_of(runs, sweep=None, control=control, treatment="elsewhere/{seed}")
    assert row.why == "not trained yet: there is no evaluation elsewhere/{seed}"
    with pytest.raises(
        ConfigError, match=r"treatment: 'elsewhere' must have \{seed\} in it once, as no sweep is given"
    ):
        results_of(runs, sweep=None, control=control, treatment="elsewhere")


def test_a_control_may_be_what_the_treatment_starts_from(runs: Path, tmp_path: Path) -> None:
    """Supervised tuning, for example; the treatment must be of the claim's system."""
    for seed in range(3):
        cider = [0.1 * number for number in range(PAIRS)]
        control = Training(system="sft")
        write_evaluation(
            runs / "steps" / f"evaluation-without-it-{seed}", str(tmp_path / "pairs"), 2, cider, training=control
        )
    assert results_of(runs)[0].effect is not None


@pytest.mark.parametrize(("changes", "why"), [
    ({"system": "unwritten"}, "not trained yet: this program has no system 'unwritten'"),
    ({"sweep": "another"}, "not trained yet: no sweep 'another' in "),
    ({"treatment": "one change, with that"}, "'one change, with that' has 0 of 0 trials"),
    ({"system": "namc"}, "the evaluated system is procap, not namc"),
])  # fmt: skip
def test_what_is_not_trained_is_not_testable(runs: Path, changes: dict[str, Any], why: str) -> None:
    (row,) = results_of(runs, **changes)
    assert (row.verdict, row.effect) == ("not testable here", None)
    assert why in row.why


def test_trials_that_are_not_done_are_counted(runs: Path) -> None:
    for number in (0, 2, 4):
        (runs / "made_up" / "trials" / f"k{number}.json").unlink()
    (row,) = results_of(runs)
    assert row.why.startswith("not trained yet: in ")
    assert row.why.endswith("made_up 'one change, without it' has 0 of 3 trials")


def test_evaluations_of_other_pairs_or_without_what_a_metric_needs_are_not_compared(runs: Path, tmp_path: Path) -> None:
    folder = runs / "steps" / "evaluation-with-it-0"
    cider = [0.1] * PAIRS
    write_evaluation(folder, str(tmp_path / "pairs"), 1, cider, protocol={"name": "coco", "data": {"fingerprint": "-"}})
    assert results_of(runs)[0].why == "the rows were evaluated by other rules or on other data (data)"
    write_evaluation(folder, str(tmp_path / "pairs"), 1, cider)
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    (folder / "predictions.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert results_of(runs)[0].why == "the rows were evaluated on different pairs"
    (tmp_path / "pairs").rename(tmp_path / "elsewhere")
    assert "does not exist" in results_of(runs, least={"right_object": 3})[0].why


# -- the page -----------------------------------------------------------------------------------------------------


def test_the_page_has_every_verdict_with_its_reason_and_what_an_effect_takes(runs: Path, tmp_path: Path) -> None:
    job = load(ClaimsJob, None, {
        "claims": [claim(least={"CIDEr": 1, "right_object": 3}), claim(claim="The guide helps", system="unwritten")],
        "sweeps": [str(runs)], "out": str(tmp_path / "out"), "seeds": [3, 5],
    })  # fmt: skip
    rows = gather_claims(job)
    page = HtmlPage(write_claims(job, rows).read_text())
    text = " ".join(page.text.split())
    for shown in (
        "Of 3 tests: 2 seen, 0 not seen, 0 contradicted, 1 not testable here.",
        "It helps a paper, table 1 CIDEr 36.0 38.0 +2.0 (+2.0 to +2.0) 0.1 3 8 seen : at least 2.0 and at most 2.0",
        "28.6 100.0 +71.4", "not testable here : not trained yet: this program has no system 'unwritten'",
        "Pairs for 3 of right object", "mean of these variances", "3 seeds 5 seeds",
    ):  # fmt: skip
        assert shown in text, shown
    assert len(page.with_class("interval")) == 2
    assert (tmp_path / "out" / "claims.svg").read_text().startswith("<svg")
    record = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert [row["verdict"] for row in record["claims"]] == ["seen", "seen", "not testable here"]
    assert (tmp_path / "out" / "claims.md").read_text() == claims_markdown(rows)
    assert claims_markdown(rows).count("\n| ") == 3


def test_texts_are_texts(runs: Path) -> None:
    job = load(ClaimsJob, None, {"claims": [claim(claim=EVIL, paper=EVIL)], "sweeps": [str(runs)]})
    check(render_claims(job, gather_claims(job)), 6)
    ElementTree.fromstring(claims_picture(EVIL, gather_claims(job)))


# -- the picture --------------------------------------------------------------------------------------------------


def drawn(rows: Sequence[ClaimResult]) -> HtmlPage:
    """The picture; it must be well-formed XML."""
    text = claims_picture("claims", rows)
    ElementTree.fromstring(text)
    return HtmlPage(text)


def marks(picture: HtmlPage, kind: str) -> list[dict[str, str]]:
    """The attributes of intervals, bands or arrows."""
    return [{name: value or "" for name, value in mark.items()} for _, mark in picture.with_class(kind)]


def test_the_picture_has_an_interval_a_band_and_a_coloured_verdict_for_each_metric(runs: Path) -> None:
    picture = drawn(results_of(runs, least={"CIDEr": 1, "right_type": 3}))
    text = " ".join(picture.text.split())
    for shown in (
        "It helps",
        "a paper, table 1",
        "36.0 → 38.0",
        "+2.0 (+2.0 to +2.0)",
        "seen , 3 seeds, 8 pairs",
        "not seen , 3",
    ):
        assert shown in text, shown
    assert "Not tested here" not in text
    bands = [float(band["width"]) for band in marks(picture, "band")]
    assert bands[1] == pytest.approx(3 * bands[0], abs=0.2), "3 points of right type, 1 of CIDEr"
    colors = [re.search(r"var\(--(\w+)\)", line["style"]) for line in marks(picture, "interval")]
    assert [color[1] for color in colors if color] == ["right", "marked"]
    assert not any("dasharray" in line["style"] for line in marks(picture, "interval"))


def test_a_contradicted_claim_is_drawn_left_of_zero_in_another_colour(runs: Path) -> None:
    rows = results_of(
        runs, control="one change, with it", treatment="one change, without it", least={"right_object": 3}
    )
    (line,) = marks(drawn(rows), "interval")
    (band,) = marks(drawn(rows), "band")
    assert float(line["x2"]) < float(band["x"]), "its interval ends below the band"
    assert "--wrong" in line["style"]


def test_one_seed_is_drawn_as_such(runs: Path) -> None:
    for number in range(2, 6):
        (runs / "made_up" / "trials" / f"k{number}.json").unlink()
    (row,) = results_of(runs, least={"right_object": 3})
    picture = drawn([row])
    (line,) = marks(picture, "interval")
    assert "dasharray" in line["style"]
    assert "--soft" in line["style"]
    assert f"{ONE_SEED} , 7 pairs" in " ".join(picture.text.split())
    assert row.effect is not None
    assert row.effect.of_pairs is not None
    assert f"{100 * row.effect.of_pairs.high:+.1f})" in picture.text
    assert "1 seeds" not in picture.text


def test_a_model_that_does_not_see_is_drawn_without_a_verdict(runs: Path) -> None:
    """However clear the difference is."""
    (row,) = results_of(runs)
    blind = row.model_copy(update={"nearest": 0.9, "verdict": "not testable here"})
    picture = drawn([blind])
    (line,) = marks(picture, "interval")
    assert "--soft" in line["style"]
    assert "not testable here : no better than nearest, 3 seeds" in " ".join(picture.text.split())


def test_what_is_not_tested_is_listed_with_the_reason_and_without_names_of_files(runs: Path, tmp_path: Path) -> None:
    missing = {"sweep": None, "control": f"{tmp_path}/a-{{seed}}", "treatment": f"{tmp_path}/b-{{seed}}"}
    rows = [
        *results_of(runs, least={"CIDEr": 1}),
        *results_of(runs, claim="The guide helps", least={"CIDEr": 1, "right_type": 1}, **missing),
        *results_of(runs, claim="Noise is harmless", untrained="it takes three days", **missing),
    ]
    (tmp_path / "pairs").rename(tmp_path / "elsewhere")
    rows += results_of(runs, claim="It names", least={"CIDEr": 1, "right_object": 1})
    picture = drawn(rows)
    text = picture.text[picture.text.index("Not tested here") :]
    for shown in (
        "The guide helps – not trained yet", "Noise is harmless – it takes three days",
        "It names (right object) – right_object needs the pairs",
    ):  # fmt: skip
        assert shown in text, shown
    assert str(tmp_path) not in picture.text
    assert text.count("The guide helps") == 1, "two metrics, one reason"
    assert rows[-1].why.endswith("pairs does not exist"), "the page says which"
    assert "it takes three days: there is no evaluation" in rows[3].why


@pytest.mark.parametrize(("low", "high", "arrows"), [(-0.02, 0.06, 0), (-3.0, 0.06, 1), (-3.0, 3.0, 2)])
def test_an_interval_beyond_the_scale_ends_in_an_arrow(low: float, high: float, arrows: int) -> None:
    """So that one wide interval does not make all others invisible."""
    row = ForestRow("CIDEr", 0.5, 0.52, low, high, 0.02, "soft", "not testable here", "")
    drawing, height = forest([ForestGroup("A claim", "a paper", [row])], ())
    picture = HtmlPage(str(drawing))
    assert len(marks(picture, "arrow")) == arrows
    (line,) = marks(picture, "interval")
    (band,) = marks(picture, "band")
    assert 0 < float(line["x1"]) < float(line["x2"]) < WIDTH
    assert float(band["width"]) > 40
    assert height > float(line["y1"])


# -- the shipped claims -------------------------------------------------------------------------------------------


def test_the_shipped_claims_are_about_rows_of_shipped_sweeps() -> None:
    """But for systems that this program does not have yet."""
    job = load(ClaimsJob, "jobs/configs/claims/small.yaml")
    for one in job.claims:
        assert one.sweep is not None
        if one.system not in SYSTEMS:
            continue
        paths = (ROOT / "jobs/configs" / one.system / "sweeps").glob("*.yaml")
        (path,) = (path for path in paths if yaml.safe_load(path.read_text())["name"] == one.sweep)
        sweep = load(SweepJob, str(path))
        labels = {", ".join([*filter(None, [row.group]), row.label]) for row in sweep.table}
        assert {one.control, one.treatment} <= labels, one.claim
        assert len(sweep.seeds) > 1, one.claim


@pytest.mark.parametrize(("changes", "error"), [
    ({"treatment": "one change, without it"}, "'one change, without it' is the control too"),
    ({"least": {"CIDEr": 0}}, r"least.CIDEr: 0 must be above 0"),
    ({"least": {"BLEU-4": 1}}, "least"),
])  # fmt: skip
def test_claims_that_test_nothing_are_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load(ClaimsJob, None, {"claims": [claim(**changes)]})
    with pytest.raises(ConfigError, match="a spread over seeds takes 2"):
        load(ClaimsJob, None, {"claims": [claim()], "seeds": [1]})
