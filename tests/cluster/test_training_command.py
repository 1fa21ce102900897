"""The command of a training: how it ends where it cannot go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import Command
from tests.systems.procap.world import World, start


@pytest.mark.parametrize("job", ["train_twincap", "pretrain_procap"])
def test_a_run_whose_folder_is_a_file_ends_with_its_name_and_the_reason(
    job: str, world: World, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "taken").touch()
    inputs = [f"pairs={world.pairs}"] if job == "train_twincap" else [f"procedures={world.procedures}"]
    run = command(job, "--local", *inputs, f"runs={tmp_path}", "name=taken")
    assert run.returncode == 1
    assert run.stderr.startswith("taken: ")
    assert str(tmp_path / "taken") in run.stderr


def test_what_stands_in_the_way_is_seen_before_ray_starts_and_a_complete_run_needs_none(
    world: World, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of another run, procedures of other settings."""

    def no_ray(*_: object) -> None:
        raise AssertionError("Ray is started")

    monkeypatch.setattr("cluster.session._connect", no_ray)
    start(world.pretrain({"train.steps": 1}), tmp_path / "done")
    job = world.pretrain({"train.steps": 1}).model_dump(mode="json", exclude_none=True)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    settings = ["--config", tmp_path / "job.yaml", f"runs={tmp_path}", "name=done"]
    config = json.loads((tmp_path / "done" / "config.json").read_text())
    config |= {"name": "done", "runs": str(tmp_path)}
    (tmp_path / "done" / "config.json").write_text(json.dumps(config))
    assert "done: 1 steps" in command("pretrain_procap", *settings).stdout
    run = command("pretrain_procap", *settings, "train.steps=2")
    assert run.returncode == 1
    assert "holds a run of another config" in run.stderr
    build = [
        f"build.pairs={world.pairs}",
        f"build.tokenizer={world.tokenizer}",
        "build.depth=1",
        "build.num_keyframes=1",
    ]
    run = command("pretrain_procap", *settings, *build, "name=new")
    assert run.returncode == 1
    assert "of another configuration" in run.stderr
    assert world.procedures in run.stderr
