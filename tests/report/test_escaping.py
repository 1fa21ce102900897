"""Text of data, configs and records comes out as text on every page, whatever is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from idc.data.config import ValidateJob
from idc.data.images import encode_png
from idc.data.validation.run import validate
from idc.evaluation.record import Baseline, Evaluation, Subset, Training, spread
from idc.metrics.changes import agreement
from idc.report.gallery import GallerySummary, Share, TypeCounts, render_gallery
from idc.report.leaderboard.boards import RUN, Board, BoardRow, DataSetPage
from idc.report.leaderboard.leaderboard_page import render_data_set, render_index
from idc.report.leaderboard.published_rows import ALL
from idc.report.leaderboard.scored_runs import Data, ScoredRuns
from idc.report.leaderboard.side_by_side import MeasuredSystems
from idc.report.pair_cards import GalleryItem
from idc.report.run import RealPairs, RunReport, render_report
from idc.report.sweep.sweep_page import render_sweep
from idc.report.validation.validation_page import render_validation
from idc.sweep.config import ColumnConfig, PlotConfig
from idc.sweep.summary import BaselineRow, Cost, ResultRow, SearchedTrial, SweepResult
from tests.report.html_page import HtmlPage

EVIL = """'">{{7*7}}</td></style><script>alert("&")</script><img src=x onerror=y>"""


def check(text: str, count: int, scripts: int = 0) -> None:
    """The page has ``EVIL`` so many times, as it was given, and it made no element."""
    page = HtmlPage(text)  # fails on an image that is not data, and on tags that do not close
    assert [tag for tag, _ in page.tags].count("script") == scripts
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    values = [value or "" for _, attrs in page.tags for value in attrs.values()]
    assert sum(shown.count(EVIL) for shown in (page.text, *values)) == count
    assert "<script>alert" not in text
    assert "alert(&amp;quot;" not in text, "escaped once, not twice"


def item() -> GalleryItem:
    image, frames = np.full((8, 8, 3), 90, np.uint8), [np.full((8, 8, 3), 90, np.uint8)] * 3
    return GalleryItem(
        EVIL, image, image, EVIL, [EVIL], EVIL, EVIL, np.eye(8, dtype=np.uint8), frames, [0.5], [1], {}, EVIL, EVIL
    )


def evaluation() -> Evaluation:
    scores = {"CIDEr": 1.0, EVIL: 0.5}
    subsets = {name: Subset(pairs=1, scores=scores) for name in ("change", EVIL)}
    types = agreement([("color", "the ball turned red"), (EVIL, "no change")])
    other = Baseline(what=EVIL, caption=EVIL, scores=scores, subsets=subsets)
    return Evaluation(
        split=EVIL, pairs=2, references=2, distinct_captions=2, empty_captions=0, scores=scores, subsets=subsets,
        baselines={"constant": other, EVIL: other}, ceiling=other, types=types, protocol={EVIL: EVIL, "list": [EVIL]},
    )  # fmt: skip


def swept() -> SweepResult:
    row = ResultRow(label=EVIL, settings={EVIL: EVIL}, seeds=[0, 1], values={EVIL: spread([90.0, 91.0])},
                    published={EVIL: 9.0}, group=EVIL, series=EVIL, x=1)  # fmt: skip
    return SweepResult(
        name=EVIL, title=EVIL, paper=EVIL, note=EVIL, system=EVIL, columns=[ColumnConfig(title=EVIL, metric="CIDEr")],
        rows=[row], plot=PlotConfig(column=EVIL, x=EVIL), orderings=[],
        baselines=[BaselineRow(name=EVIL, group=EVIL, values={}, text=EVIL)],
        cost=Cost(cpu_hours=1, gpu_hours=0, steps=2, shared_steps=0), trials=2, failed={EVIL: EVIL},
        searched=[SearchedTrial(settings={EVIL: EVIL}, value=0.5, step=1, state=EVIL)], search_metric=EVIL, split=EVIL,
        pairs=1, settings={EVIL: EVIL}, seconds=1,
    )  # fmt: skip


def test_the_page_of_a_run() -> None:
    lines = [{"step": step, EVIL: 1.0 / step, "loss": 1.0, f"validation/{EVIL}": 1.0} for step in (1, 2)]
    report = RunReport(
        EVIL, EVIL, [evaluation()], {EVIL: [*lines, {"step": 3, f"once{EVIL}": 1.0}]}, tokenizer={EVIL: 1.0},
        opening=[item()], galleries={EVIL: [item()]},
        real=[RealPairs(EVIL, EVIL, evaluation(), [item()])], configs={EVIL: {EVIL: EVIL}}, environment={EVIL: EVIL},
        timings={EVIL: EVIL}, others={f"other {EVIL}": [evaluation()]},
    )  # fmt: skip
    check(render_report(report), 67)


def test_the_page_of_captioned_pairs() -> None:
    share = Share(count=1, of=2, rate=0.5, interval=(0.1, 0.9), chance=0.5)
    summary = GallerySummary(
        captioner=EVIL, captions={EVIL: 2, "objects": 1}, system=EVIL, card=EVIL, trained_on=EVIL, input=EVIL, pairs=3,
        without_caption=1, warned=share, verdicts={EVIL: 2}, named_types={EVIL: 2}, right_type=share,
        types={EVIL: TypeCounts(right=share, unchanged=share)}, claims={EVIL: share},
    )  # fmt: skip
    check(render_gallery(summary, [replace(item(), warning=EVIL)]), 19)


def test_the_page_of_a_sweep() -> None:
    check(render_sweep(swept(), {EVIL: EVIL}), 30)


def test_the_page_of_a_data_set(tmp_path: Path) -> None:
    name = 'a<script>alert("&")<img src=x onerror=y>'  # as a pair id
    image = encode_png(np.zeros((8, 8, 3), np.uint8))
    (tmp_path / "a.png").write_bytes(image)
    quoted = [text.replace('"', '""') for text in (name, EVIL)]
    rows = [f'"{quoted[0]}",a.png,a.png,train,"{quoted[1]}"', f'"{quoted[0]}",a.png,missing.png,test,"{quoted[1]}"']
    (tmp_path / "pairs.csv").write_text("\n".join(["pair_id,before,after,split,captions", *rows]), encoding="utf-8")
    found = validate(ValidateJob(pairs=str(tmp_path / "pairs.csv")), progress=False)
    found = type(found)(
        found.job, found.result.model_copy(update={"notes": [EVIL], "pairs": EVIL, "rejected": {EVIL: 1}}),
        found.left_out, found.examples, found.shown,
    )  # fmt: skip
    text = render_validation(found, [found.result])
    check(text, 9)
    assert HtmlPage(text).text.count(name) >= 2


def test_the_pages_of_the_leaderboard(tmp_path: Path) -> None:
    data = Data(EVIL, EVIL, EVIL, EVIL)
    scored = ScoredRuns(tmp_path, evaluation(), data, EVIL, {EVIL: EVIL}, EVIL, 0, EVIL, ())
    row = BoardRow(RUN, EVIL, EVIL, {EVIL: spread([1.0])}, (0,), 1, EVIL, EVIL, EVIL, EVIL, EVIL, (scored,))
    page = DataSetPage(EVIL, EVIL, None, [Board(EVIL, EVIL, EVIL, EVIL, (EVIL,), (row,))], [scored], [EVIL])
    check(render_data_set(page, {f"runs/{EVIL}//{EVIL}": EVIL}), 34, scripts=1)
    check(render_index([page]), 2)
    measured = evaluation().model_copy(
        update={"artifact": "known", "training": Training(system=EVIL), "protocol": {"name": EVIL}}
    )
    row = replace(row, evaluations=(replace(scored, evaluation=measured),))
    page = DataSetPage(EVIL, EVIL, None, [Board(EVIL, EVIL, ALL, EVIL, (EVIL,), (row,))], [scored], [EVIL])
    files = {f"runs/{EVIL}//{EVIL}": EVIL}
    check(render_data_set(page, files), 32 + 2, scripts=1)  # the captioner and its training below the table
    below = MeasuredSystems(robustness={"known": {"": measured, EVIL: measured}})
    check(render_data_set(page, files, below), 32 + 3, scripts=1)
