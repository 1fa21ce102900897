"""The page of a running sweep: the state of each trial while it runs, and the final page at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.atomic import write_json
from idc.report.sweep.live_page import PAGE, REFRESH_S, LivePage, render_live
from idc.report.sweep.sweep_page import write_sweep
from idc.sweep.progress import mark_ended, mark_started, read_progress, write_plan
from idc.training.context import LocalContext
from tests.report.html_page import HtmlPage
from tests.sweep.small import small_sweep
from tests.systems.procap.world import World


def states(page: HtmlPage) -> list[str | None]:
    return [attrs["data-state"] for tag, attrs in page.tags if "data-state" in attrs]


def refreshes(page: HtmlPage) -> list[str | None]:
    return [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "refresh"]


def test_a_table_half_way(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is looked at when the second trial writes its checkpoint, in the middle of the sweep."""
    rows = [
        {"label": f"{n} layers", "settings": {"explicit_modeling": False, "finetune.decoder.layers": n}} for n in (1, 2)
    ]
    rows.append({"label": "broken", "settings": {"finetune.train.keep_best.metric": "CIDER"}})
    job = small_sweep(world, tmp_path, title="Layers & more", rows=rows)
    folder = tmp_path / "small"
    pages: list[HtmlPage] = []
    report = LocalContext.report

    def watched(self: LocalContext, metrics: dict[str, Any], checkpoint_dir: Path | None, step: int) -> None:
        report(self, metrics, checkpoint_dir, step)
        pages.append(HtmlPage((folder / PAGE).read_text(encoding="utf-8")))

    monkeypatch.setattr(LocalContext, "report", watched)
    result = run_sweep(job, ClusterConfig(), local=True)
    first = next(page for page in pages if states(page) == ["running", "pending", "pending"])
    assert "3 trials: 1 running, 2 pending" in first.text
    second = next(page for page in pages if states(page) == ["done", "running", "pending"])
    assert "Best so far by CIDEr: 1 layers" in " ".join(second.text.split())
    assert refreshes(first) == refreshes(second) == [str(REFRESH_S)]
    assert any(tag == "polyline" for tag, _ in second.tags), "curves of the trial that is done"

    ended = HtmlPage((folder / PAGE).read_text(encoding="utf-8"))
    assert (states(ended), refreshes(ended)) == (["done", "done", "failed"], [])
    assert "is not measured" in ended.text
    last = HtmlPage(write_sweep(folder, result).read_text(encoding="utf-8"))
    assert (states(last), refreshes(last)) == ([], [])
    assert "broken" in last.text


def test_a_search_shows_the_trials_that_have_begun(tmp_path: Path) -> None:
    folder, store = tmp_path / "search", tmp_path / "steps"
    write_plan(folder, "", "CIDEr", "max", 4, store)
    trials = folder / "trials"
    for number in range(3):
        mark_started(folder, f"search-{number}", f"lr = <{number}>", [f"finetune-{number}"])
        run = store / f"finetune-{number}"
        run.mkdir(parents=True)
        lines = [{"step": step, "loss": 1.0 / step, "validation/CIDEr": 0.1 * number + 0.01 * step} for step in (1, 2)]
        (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
        write_json(run / ".rank0.json", {"node": "here", "pid": 1, "steps": 8})
        found = {"settings": {}, "value": None, "step": 0, "state": "stopped early"}
        write_json(trials / f"search-{number}.json", found)
    mark_ended(folder, "search-1")
    write_json(trials / "search-2.json", {"settings": {}, "value": None, "step": 0, "state": "ValueError: too large"})
    progress = read_progress(folder)
    assert [(trial.state, trial.at, trial.steps) for trial in progress.trials] == [
        ("running", 2, 8), ("stopped early", 2, 8), ("failed", 2, 8),
    ]  # fmt: skip
    assert progress.trials[1].value == pytest.approx(0.12)
    page = HtmlPage(render_live(progress))
    assert "4 trials: 1 running, 1 stopped early, 1 failed, 1 pending" in page.text
    assert "lr = <0>" in page.text
    assert "2 of 8" in page.text
    assert "1 more trials have not begun" in page.text
    assert "ValueError: too large" in page.text

    write_plan(folder, "", "CIDEr", "max", 4, store)  # the search is resumed
    states_now = [(trial.key, trial.state) for trial in read_progress(folder).trials]
    assert states_now == [("search-1", "stopped early"), ("search-2", "failed")]


def test_a_sweep_that_is_interrupted_says_so(tmp_path: Path) -> None:
    write_plan(tmp_path, "A table", "CIDEr", "max", 1, tmp_path / "steps", [("a", "row a", ["finetune-a"])])
    with pytest.raises(KeyboardInterrupt), LivePage(tmp_path):
        raise KeyboardInterrupt
    page = HtmlPage((tmp_path / PAGE).read_text(encoding="utf-8"))
    assert "The sweep has ended: KeyboardInterrupt" in page.text
    assert refreshes(page) == []
