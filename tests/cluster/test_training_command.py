"""The command of a training: how it ends where it cannot go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from cluster.train import TrainingRun, launch
from idc.data.images import encode_png
from idc.data.schema import ChangePair
from tests.conftest import Command
from tests.folders import write_rows
from tests.systems.procap.world import World, start
from tests.systems.twincap.tiny import tiny_job


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


GREY = encode_png(np.full((32, 32, 3), 100, np.uint8))


@pytest.mark.parametrize(("job", "settings"), [
    ("train_twincap", []), ("train_guide", []), ("train_pair_encoder", []), ("finetune_namc", ["model.image.cnn=stem"]),
    ("pretrain_namc", ["tokenizer=x"]), ("finetune_sft", ["base.source=x"]), ("finetune_m3diff", ["base.source=x"]),
    ("train_adpo", ["base.source=x"]), ("finetune_procap", ["procedures=x", "build.tokenizer=x"]),
])  # fmt: skip
def test_a_training_on_pairs_without_captions_is_refused_with_the_folder(
    job: str, settings: list[str], tmp_path: Path, command: Command
) -> None:
    pairs = write_rows(tmp_path / "bare", [ChangePair(f"p{n}", GREY, GREY, (), None, "train") for n in range(4)])
    field = "build.pairs" if job == "finetune_procap" else "pairs"
    run = command(job, "--local", f"{field}={pairs}", *settings)
    line = (
        f"  {field}: no pair in {pairs} has a caption, and captions are what is learned; import it again with captions"
    )
    assert (run.returncode, run.stderr.count(line)) == (2, 1), run.stderr


def test_a_training_split_without_captions_is_one_line(tmp_path: Path) -> None:
    captions = {"train": (), "val": ("a car has left",)}
    pairs = [ChangePair(split, GREY, GREY, texts, None, split) for split, texts in captions.items()]
    job = tiny_job(write_rows(tmp_path / "pairs", pairs))
    settings = job.model_dump(mode="json", exclude={"train"})
    run = TrainingRun.in_folder(job.ENTRY, settings, job.train, tmp_path / "run")
    with pytest.raises(ValueError, match=r"^no pair of the split 'train' in .*pairs has a caption"):
        launch(run, local=True)


def test_an_import_without_captions_says_so_and_what_works(tmp_path: Path, command: Command) -> None:
    for name in ("x_before.png", "x_after.png"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(GREY)
    run = command("import_dataset", "--local", f"source={tmp_path / 'in'}", f"out={tmp_path / 'pairs'}")
    assert f"warning: no pair in {tmp_path / 'pairs'} has a caption" in run.stdout
    following = f"next: python jobs/caption.py --input {tmp_path / 'pairs'} --out captions --artifact objects"
    assert following in run.stdout
    assert following in command("validate", f"pairs={tmp_path / 'pairs'}").stdout


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
