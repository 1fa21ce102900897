"""ChangeVG's chain for sweeps: what rows share, and a small table of the guide's branches from pairs to page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.config import ConfigError, load
from idc.sweep.config import SweepJob
from idc.systems.changevg.sweep import Trial
from idc.training.artifact import read_artifact
from tests.systems.changevg.tiny import MODEL, SIDE, TRAIN, TUNING, write_scenes
from tests.vlm.models import tiny_folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_scenes(tmp_path_factory.mktemp("sweep") / "pairs", train=5, test=3, masked=True)


def settings_of(pairs: str, **more: Any) -> dict[str, Any]:
    evaluation = {"metrics": ["CIDEr"], "spice": False, "resamples": 0, "allow_empty": True}
    return {
        "pairs": pairs, "until": "tuning", "guide": {"model": MODEL, "train": TRAIN, "min_count": 1},
        "changevg": {**TUNING, "base": {"source": str(tiny_folder("internvl", SIDE))}}, "evaluate": evaluation, **more,
    }  # fmt: skip


def names(pairs: str, **more: Any) -> list[str]:
    return [step.name for step in load(Trial, None, settings_of(pairs, **more)).steps("store").scored]


def test_rows_share_what_they_have_in_common(pairs: str) -> None:
    whole = names(pairs)
    assert [name.rsplit("-", 1)[0] for name in whole] == [
        "questions", "guide", "changevg", "evaluation", "answers",
    ]  # fmt: skip
    for setting, value, shared in (
        ("changevg.quote.summary", False, 2),
        ("changevg.tasks", ["caption"], 2),
        ("guide.train.seed", 4, 1),
        ("questions.regions.as_published", False, 0),
    ):
        row = names(pairs, **{setting: value})
        assert row[:shared] == whole[:shared], setting
        assert not {row[shared], *row[2:]} & set(whole), setting
    assert names(pairs, **{"questions.regions.as_published": False})[1] == whole[1], "the guide does not count"
    assert names(pairs, guided=False)[0] == whole[0]
    assert len(names(pairs, until="guide")) == 2


def test_the_chain_hands_on_its_folders(pairs: str) -> None:
    trial = load(Trial, None, settings_of(pairs, **{"questions.regions.as_published": False})).steps("store")
    questions, guide, tuning = trial.work
    asked, artifact = f"store/{questions.name}", f"store/{guide.name}/artifact"
    assert tuning.payload.items() >= {"pairs": asked, "guide": artifact, "regions": None}.items()
    assert questions.payload["regions"] == {"as_published": False}
    assert questions.payload["splits"] == ["train", "val", "test"]
    assert trial.answers is not None
    expected = {"instructions": asked, "artifact": f"store/{tuning.name}/artifact"}
    assert trial.answers.payload.items() >= expected.items()


@pytest.mark.parametrize(("more", "fault"), [
    ({"guided": False, "until": "guide"}, "guided: until=guide scores the guide"),
    ({"guided": False, "changevg.quote.summary": False}, r"changevg\.quote: guided=false has no notes to quote"),
    ({"more_pairs": ["x"]}, "more_pairs: the questions are of `pairs` alone"),
])  # fmt: skip
def test_faults_are_named(pairs: str, more: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(Trial, None, settings_of(pairs, **more))


@pytest.mark.slow
def test_a_table_runs_to_its_page(pairs: str, tmp_path: Path) -> None:
    rows = [
        {"label": "no guide", "settings": {"guided": False}, "published": {"F1": 92.28}},
        {"label": "all", "published": {"F1": 94.74}},
        {"label": "the guide", "settings": {"until": "guide"}},
    ]
    columns = [
        {"title": "C", "metric": "CIDEr"}, {"title": "F1", "metric": "binary/F1"},
        {"title": "MAE", "metric": "count/MAE", "subset": "building"},
    ]  # fmt: skip
    job = load(SweepJob, None, {
        "name": "table", "system": "changevg", "runs": str(tmp_path), "settings": settings_of(pairs), "rows": rows,
        "columns": columns, "tracking": {"enabled": False},
    })  # fmt: skip
    result = run_sweep(job, ClusterConfig(), local=True)
    assert result.failed == {}
    for row in result.rows:
        answered = [row.values[title] is not None for title in ("C", "F1", "MAE")]
        assert answered == [True, *[row.label != "the guide"] * 2]
    artifacts = [read_artifact(path).config for path in tmp_path.glob("steps/changevg-*/artifact")]
    assert sorted(config.get("own_modules", []) == ["guide"] for config in artifacts) == [False, True]
