"""Registering, promoting and rolling back in a real MLflow on SQLite, with evaluations that were really scored."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.promotion import describe_promotion, promote, register, status
from cluster.promotion_config import PromoteJob, RegisterJob
from cluster.registry import PROMOTION_TAG, Promotion, Registry
from cluster.tracking import MlflowTracker
from idc.captioning.sources import ModelSources
from idc.config import ConfigError, load
from idc.data.store import fingerprint
from idc.evaluation import record as ev
from idc.training.artifact import captioning_identity, write_artifact
from idc.training.config import TrackingConfig
from tests.evaluation.test_promotion import scored
from tests.systems.procap.world import World, start

ROOT = Path(__file__).resolve().parents[2]
DATA = {"data_set": "rendered", "fingerprint": "f00d"}


def make_artifact(path: Path, value: float) -> Path:
    return write_artifact(path, system="toy", config={}, state_dict={"weight": torch.full((3,), value)})


def make_evaluation(
    folder: Path, artifact: Path, wrong: int, pairs: int = 60, data: dict[str, str] | None = None, split: str = "test"
) -> Path:
    """An evaluation of the artifact in which the first ``wrong`` captions are wrong."""
    evaluation, rows = scored(range(wrong), pairs, split)
    mark = fingerprint(artifact.name, wrong, pairs, split, data)
    protocol = {**evaluation.protocol, "data": data or DATA, "pairs": "data/pairs", "captioner": str(artifact)}
    update = {"fingerprint": mark, "artifact": captioning_identity(artifact), "protocol": protocol}
    ev.save(folder, evaluation.model_copy(update=update), rows)
    return folder


class Place:
    """A registry, and artifacts with evaluations to put into it."""

    def __init__(self, uri: str, folder: Path):
        self.uri, self.folder = uri, folder
        self.registry = Registry(uri, "captioner")

    def add(self, value: float, wrong: int | None = 6, **settings: Any) -> str:
        """Register an artifact; what the job says."""
        artifact = self.folder / f"artifact-{value}"
        if not artifact.exists():
            make_artifact(artifact, value)
        evaluation = None
        if wrong is not None:
            evaluation = str(make_evaluation(self.folder / f"evaluation-{value}", artifact, wrong, **settings))
        return register(RegisterJob(artifact=str(artifact), evaluation=evaluation, tracking_uri=self.uri))

    def job(self, **settings: Any) -> PromoteJob:
        return load(PromoteJob, None, {"tracking_uri": self.uri, **settings})

    def promote(self, **settings: Any) -> Promotion:
        return promote(self.job(**settings))


@pytest.fixture
def place(tracking_uri: str, tmp_path: Path) -> Place:
    return Place(tracking_uri, tmp_path)


# -- registering ----------------------------------------------------------------------------------------------------


def test_an_artifact_is_registered_once_and_gets_further_evaluations(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "registered as version 1 of captioner" in (said := place.add(1.0))
    assert (tmp_path / "mlartifacts").as_uri() in said, "files lie beside the database, and it says so"
    assert "is version 1 of captioner" in (said := place.add(1.0))
    assert "has this evaluation" in said
    assert "60 pairs of val" in place.add(1.0, split="val")
    assert "registered as version 2" in (said := place.add(2.0, wrong=None))
    assert "cannot be promoted" in said
    assert "is version 2" in place.add(2.0)
    first, second = place.registry.versions()
    assert [one.split for one in first.evaluations.values()] == ["test", "val"]
    (scored,) = second.evaluations.values()
    assert scored.scores["CIDEr"] == pytest.approx(
        ev.load_evaluation(tmp_path / "evaluation-2.0").scores["CIDEr"], abs=1e-6
    )
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    fetched = Path(ModelSources(place.uri).fetch("models:/captioner/1"))
    assert sorted(p.name for p in fetched.iterdir()) == sorted(p.name for p in (tmp_path / "artifact-1.0").iterdir())


def test_the_files_go_to_the_training_run(place: Place, tmp_path: Path) -> None:
    run = tmp_path / "train-0"
    tracker = MlflowTracker(TrackingConfig(), run, run.name)
    tracker.end(finished=True)
    artifact = make_artifact(run / "artifact", 1.0)
    (run / "config.json").write_text('{"train": {"tracking": {}}}')
    register(RegisterJob(artifact=str(artifact)))
    assert tracker.uri == place.uri, "that of the run was taken"
    (version,) = place.registry.versions()
    assert version.run_id == tracker.run_id
    assert tracker.client.get_run(tracker.run_id).info.status == "FINISHED"


def test_nothing_is_written_when_the_evaluation_is_of_another_artifact(place: Place, tmp_path: Path) -> None:
    place.add(1.0)
    other = make_artifact(tmp_path / "artifact-2.0", 2.0)
    files = sorted((tmp_path / "mlartifacts").rglob("*"))
    job = RegisterJob(artifact=str(other), evaluation=str(tmp_path / "evaluation-1.0"), tracking_uri=place.uri)
    with pytest.raises(ValueError, match="is of another artifact"):
        register(job)
    (other / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"incomplete, model\.safetensors is missing"):
        register(job)
    assert len(place.registry.versions()) == 1
    assert sorted((tmp_path / "mlartifacts").rglob("*")) == files


# -- promoting ------------------------------------------------------------------------------------------------------


def test_a_life_first_better_worse_equal_forced_and_back(place: Place) -> None:
    sources = ModelSources(place.uri)

    def champion() -> str:
        return sources.version("models:/captioner@champion")

    with pytest.raises(ValueError, match="captioner has no versions"):
        place.promote()
    place.add(1.0, wrong=20)
    assert place.promote().kind == "first"
    assert champion() == "models:/captioner/1"
    again = place.promote()
    assert (again.kind, again.new) == ("unchanged", 1)
    assert "version 1 is champion of captioner already" in describe_promotion(again, PromoteJob(tracking_uri=place.uri))
    assert len(Registry(place.uri, "captioner").history()) == 1, "the second promotion was written down"

    place.add(2.0, wrong=5)
    would = place.promote(dry_run=True)
    assert would.decision.verdict == "better"
    assert "would go from version 1 to version 2" in describe_promotion(would, place.job(dry_run=True))
    assert champion() == "models:/captioner/1", "a dry run moves nothing"
    assert place.promote().decision == would.decision
    assert champion() == "models:/captioner/2"

    place.add(3.0, wrong=20)
    with pytest.raises(ValueError, match=r"version 3 stays a candidate: worse: CIDEr .* --force promotes it"):
        place.promote()
    assert champion() == "models:/captioner/2"
    place.add(4.0, wrong=5)
    assert place.promote().decision.verdict == "within the margin"  # type: ignore[union-attr]
    assert champion() == "models:/captioner/4"

    forced = place.promote(version=3, force=True)
    assert (forced.kind, forced.old, forced.new) == ("forced", 4, 3)
    assert forced.why.startswith("forced, although worse: CIDEr")
    for expected in (4, 2, 1):
        assert place.promote(rollback=True).new == expected
        assert champion() == f"models:/captioner/{expected}"
    with pytest.raises(ValueError, match="no champion of captioner before version 1"):
        place.promote(rollback=True)
    with pytest.raises(ValueError, match="version 4 was rolled back; version=4 promotes it again"):
        place.promote()
    assert place.promote(version=4).new == 4, "what was rolled back may come again"
    assert place.promote(rollback=True).new == 1

    assert place.promote(alias="canary", version=2).kind == "first", "another alias has a history of its own"
    history = place.registry.history()
    assert [(one.old, one.new, one.kind) for one in history] == [
        (None, 1, "first"), (1, 2, "compared"), (2, 4, "compared"), (4, 3, "forced"),
        (3, 4, "rollback"), (4, 2, "rollback"), (2, 1, "rollback"), (1, 4, "compared"), (4, 1, "rollback"),
    ]  # fmt: skip
    table = status(place.job(status=True))
    assert table.count("<- champion") == 1
    assert "1 -> 2  compared: better: CIDEr" in table
    row = next(line for line in table.splitlines() if "<- champion" in line)
    assert row.split()[0] == "1"


def test_what_was_not_evaluated_as_the_champion_was_is_refused_with_the_commands(place: Place) -> None:
    place.add(1.0)
    place.promote()
    place.add(2.0, wrong=None)
    with pytest.raises(
        ValueError, match=r"version 2 has no evaluation:\n.*add that to it:\n  python jobs/evaluate\.py"
    ):
        place.promote()
    cases: list[dict[str, Any]] = [{"data": {**DATA, "fingerprint": "beef"}}, {"split": "val"}, {"pairs": 50}]
    for settings in cases:
        place.add(2.0, **settings)
        with pytest.raises(ValueError, match="not evaluated on the same pairs") as caught:
            place.promote()
        assert "pairs=data/pairs split=test out=" in str(caught.value)
        assert f"tracking_uri={place.uri}" in str(caught.value)
    place.add(2.0)
    assert place.promote().decision is not None, "the evaluation that was asked for is enough"
    assert place.registry.champion() == 2


def test_the_remedy_for_a_version_of_another_program_has_no_gap(place: Place) -> None:
    """It has no folder that could be evaluated."""
    place.add(1.0)
    place.promote()
    source = place.registry.client.get_model_version("captioner", "1").source
    place.registry.client.create_model_version("captioner", source)
    with pytest.raises(ValueError, match=r"version 2 was not registered by jobs/register\.py") as caught:
        place.promote()
    assert f"python jobs/register.py artifact=FOLDER name=captioner tracking_uri={place.uri}" in str(caught.value)
    assert "artifact= " not in str(caught.value)


def test_contradictory_wishes_are_refused() -> None:
    for settings, message in (
        ({"rollback": True, "force": True}, "rollback: returns to the previous champion"),
        ({"status": True, "version": 2}, "status: changes nothing"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(PromoteJob, None, settings)


# -- the commands ---------------------------------------------------------------------------------------------------


def test_the_jobs_register_what_captions_and_nothing_else(
    place: Place, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(world.pretrain({"train.steps": 1}), tmp_path / "pretrain")
    start(world.finetune({"train.steps": 1}), tmp_path / "finetune")
    artifact = tmp_path / "finetune" / "artifact"
    make_evaluation(tmp_path / "evaluation", artifact, wrong=6)

    def run(job: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(ROOT / "jobs" / f"{job}.py"), *arguments, f"tracking_uri={place.uri}"])
        importlib.import_module(f"jobs.{job}").main()
        return capsys.readouterr().out

    with pytest.raises(SystemExit, match=r"register: .*stage 1, which cannot caption"):
        run("register", f"artifact={tmp_path / 'pretrain' / 'artifact'}")
    assert place.registry.versions() == []
    assert "version 1" in run("register", f"artifact={artifact}", f"evaluation={tmp_path / 'evaluation'}")
    assert "goes to version 1\nthe first champion" in run("promote")
    assert "<- champion" in run("promote", "--status")
    with pytest.raises(SystemExit, match="promote: there was no champion of captioner before version 1"):
        run("promote", "--rollback")
    (move,) = place.registry.history()
    assert move.command == f"python jobs/promote.py tracking_uri={place.uri}"


def test_promotions_of_before_with_p_values_are_read(place: Place) -> None:
    place.add(1.0, wrong=20)
    place.promote()
    place.add(2.0, wrong=5)
    second = place.promote()
    client, name = place.registry.client, place.registry.name
    tags = client.get_registered_model(name).tags
    key = max(tag for tag in tags if tag.startswith(PROMOTION_TAG))
    promotion = json.loads(tags[key])
    promotion["decision"]["difference"]["p"] = 0.001
    client.set_registered_model_tag(name, key, json.dumps(promotion))
    assert place.registry.history()[-1] == second
    assert place.promote(rollback=True).new == 1


# -- at once --------------------------------------------------------------------------------------------------------


def wish(old: int | None, new: int) -> Promotion:
    return Promotion(
        at=datetime.now(UTC), alias="champion", kind="compared", old=old, new=new, why="a test", command=""
    )


def test_whoever_was_compared_with_another_champion_comes_too_late(place: Place) -> None:
    for value in (1.0, 2.0, 3.0):
        place.add(value, wrong=None)
    place.registry.move(wish(None, 1))
    late = wish(1, 3)
    place.registry.move(wish(1, 2))
    with pytest.raises(ValueError, match="has moved meanwhile, from version 1 to 2; start again"):
        place.registry.move(late)
    assert place.registry.champion() == 2
    assert [one.new for one in place.registry.history()] == [1, 2], "what was not done is not in the history"
