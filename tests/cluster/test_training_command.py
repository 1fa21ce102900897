"""The command of a training: how it ends where it cannot go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command
from tests.systems.procap.world import World


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


def test_a_training_on_gpus_that_are_not_there_claims_no_folder(world: World, tmp_path: Path, command: Command) -> None:
    run = command("train_twincap", "--local", f"pairs={world.pairs}", f"runs={tmp_path}", "train.gpus_per_worker=99")
    assert run.returncode == 2
    assert "  train.num_workers: 1 workers of 99 GPUs each, and this machine has " in run.stderr
    assert list(tmp_path.iterdir()) == []
