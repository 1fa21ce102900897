"""ChangeVG's chain for sweeps: what rows share, and a small table of the guide's branches from pairs to page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.config import ConfigError, load
from idc.report.sweep.sweep_page import write_sweep
from idc.sweep.config import SweepJob
from idc.systems.changevg.sweep import Trial, steps
from idc.training.artifact import read_artifact
from tests.systems.changevg.guided import TUNING, write_masked
from tests.systems.changevg.tiny import MODEL, SIDE, TRAIN
from tests.vlm.models import tiny_folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_masked(tmp_path_factory.mktemp("sweep") / "pairs", train=5, val=3, test=3)


def settings_of(pairs: str, **more: Any) -> dict[str, Any]:
    evaluation = {"metrics": ["CIDEr"], "spice": False, "resamples": 0, "allow_empty": True}
    return {
        "pairs": pairs, "until": "tuning", "guide": {"model": MODEL, "train": TRAIN, "min_count": 1},
        "changevg": {**TUNING, "base": {"source": str(tiny_folder("internvl", SIDE))}}, "evaluate": evaluation, **more,
    }  # fmt: skip


def names(pairs: str, **more: Any) -> list[str]:
    return [step.name for step in steps(load(Trial, None, settings_of(pairs, **more)), "store").scored]


def kinds(steps_of_trial: list[str]) -> list[str]:
    return [name.rsplit("-", 1)[0] for name in steps_of_trial]


def test_rows_share_what_they_have_in_common(pairs: str) -> None:
    whole = names(pairs)
    assert kinds(whole) == ["questions", "guide", "notes", "changevg", "evaluation", "answers"]
    tuned_only = {
        "summary": names(pairs, **{"changevg.quote.summary": False}),
        "regions": names(pairs, **{"changevg.quote.regions": False}),
        "tasks": names(pairs, **{"changevg.tasks": ["caption"]}),
    }
    assert all(row[:3] == whole[:3] for row in tuned_only.values()), "one guide, its notes once"
    assert len({row[3] for row in tuned_only.values()} | {whole[3]}) == 4
    without = names(pairs, guided=False)
    assert kinds(without) == ["questions", "changevg", "evaluation", "answers"]
    assert without[0] == whole[0]
    counted = names(pairs, **{"questions.regions.without_area": "count"})
    assert counted[1] == whole[1], "the guide does not count"
    assert not {counted[0], *counted[2:]} & set(whole)
    other_guide = names(pairs, **{"guide.train.seed": 4})
    assert other_guide[0] == whole[0]
    assert not set(other_guide[1:]) & set(whole)
    assert kinds(names(pairs, until="guide")) == ["guide", "evaluation"]


def test_the_chain_hands_on_its_folders(pairs: str) -> None:
    trial = steps(load(Trial, None, settings_of(pairs, **{"questions.regions.centroid": "region"})), "store")
    questions, guide, notes, tuning = trial.work
    assert tuning.payload["pairs"] == f"store/{questions.name}"
    assert tuning.payload["guide"] == notes.payload["guide"] == f"store/{guide.name}/artifact"
    assert tuning.payload["notes"] == f"store/{notes.name}"
    assert notes.payload["regions"]["centroid"] == questions.payload["regions"]["centroid"] == "region"
    assert questions.payload["splits"] == ["train", "val", "test"]
    assert trial.answers is not None
    assert trial.answers.payload["instructions"] == f"store/{questions.name}"
    assert trial.answers.payload["artifact"] == f"store/{tuning.name}/artifact"


@pytest.mark.parametrize(("more", "fault"), [
    ({"changevg.guide": "x"}, r"changevg\.guide: the sweep sets it"),
    ({"questions.splits": ["test"]}, r"questions\.splits: the sweep sets it"),
    ({"guided": False, "until": "guide"}, "guided: until=guide scores the guide"),
    ({"guided": False, "changevg.quote.summary": False}, r"changevg\.quote: guided=false has no notes to quote"),
    ({"more_pairs": ["x"]}, "more_pairs: the questions are of `pairs` alone"),
])  # fmt: skip
def test_faults_are_named(pairs: str, more: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(Trial, None, settings_of(pairs, **more))


@pytest.mark.slow
def test_a_table_runs_to_its_page(pairs: str, tmp_path: Path) -> None:
    """Without a guide, without a branch, whole, and the guide alone."""
    rows = [
        {"label": "no guide", "settings": {"guided": False}, "published": {"F1": 92.28}},
        {"label": "no regions", "settings": {"changevg.quote.regions": False}, "published": {"F1": 93.99}},
        {"label": "all", "published": {"F1": 94.74}},
        {"label": "the guide", "settings": {"until": "guide"}},
    ]
    columns = [
        {"title": "C", "metric": "CIDEr"}, {"title": "F1", "metric": "binary/F1"},
        {"title": "MAE", "metric": "count/MAE", "subset": "building"},
        {"title": "where", "metric": "location/Micro F1", "subset": "road"},
    ]  # fmt: skip
    job = load(SweepJob, None, {
        "name": "table", "system": "changevg", "runs": str(tmp_path), "settings": settings_of(pairs), "rows": rows,
        "columns": columns, "tracking": {"enabled": False},
    })  # fmt: skip
    result = run_sweep(job, ClusterConfig(), local=True)
    assert result.failed == {}
    assert len([path for path in tmp_path.glob("steps/guide-*") if path.is_dir()]) == 1
    assert len([path for path in tmp_path.glob("steps/notes-*") if path.is_dir()]) == 1
    for row in result.rows:
        answered = [row.values[title] is not None for title in ("F1", "MAE", "where")]
        assert answered == [row.label != "the guide"] * 3
        assert row.values["C"] is not None
    page = Path(write_sweep(tmp_path / "table", result)).read_text()
    assert "MAE of the answers of type count, of buildings, times 100; lower is better" in page
    artifacts = [read_artifact(path).config for path in tmp_path.glob("steps/changevg-*/artifact")]
    assert sorted(config.get("own_modules", []) == ["guide"] for config in artifacts) == [False, True, True]
