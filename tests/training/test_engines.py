from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from idc.training.config import TrainConfig
from idc.training.engines import deepspeed_config
from tests.training.test_loop import TRAIN, curve, run, weights


def test_the_deepspeed_config_is_ours_with_the_extra_merged_last() -> None:
    train = TrainConfig(
        steps=1,
        batch_size=24,
        grad_accumulation=3,
        num_workers=4,
        engine="deepspeed",
        zero_stage=2,
        optimizer="adam",
        betas=(0.8, 0.9),
        deepspeed_extra={
            "zero_optimization": {"offload_optimizer": {"device": "cpu"}},
            "optimizer": {"params": {"eps": 1e-6}},
            "steps_per_print": 5,
        },
    )
    config = deepspeed_config(train, 4)
    assert config["train_batch_size"] == 24
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 3
    assert config["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert config["optimizer"]["type"] == "Adam"
    assert config["optimizer"]["params"] == {"betas": [0.8, 0.9], "eps": 1e-6, "torch_adam": True, "adam_w_mode": False}
    assert config["steps_per_print"] == 5
    assert train.deepspeed_extra["optimizer"] == {"params": {"eps": 1e-6}}


STAGES = (0, 2, 3)


def _interrupted_and_undisturbed(folder: Path) -> None:
    for stage in STAGES:
        train: dict[str, Any] = {
            **TRAIN,
            "engine": "deepspeed",
            "zero_stage": stage,
            "deepspeed_extra": {"zero_optimization": {"stage3_param_persistence_threshold": 0}},
        }
        run(folder / f"undisturbed{stage}", train, dropout=0.2)
        kill = {"kill_step": 36, "kill_marker": str(folder / f"raise{stage}")}
        with pytest.raises(RuntimeError, match="killed by the test"):
            run(folder / f"interrupted{stage}", train, dropout=0.2, **kill)
        run(folder / f"interrupted{stage}", train, dropout=0.2, **kill)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In one process of its own: DeepSpeed leaves a process changed."""
    folder = tmp_path_factory.mktemp("runs")
    process = multiprocessing.get_context("spawn").Process(target=_interrupted_and_undisturbed, args=(folder,))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    return folder


@pytest.mark.parametrize("stage", STAGES)
def test_deepspeed_goes_on_from_its_checkpoint(runs: Path, stage: int) -> None:
    interrupted, undisturbed = runs / f"interrupted{stage}", runs / f"undisturbed{stage}"
    assert curve(interrupted) == curve(undisturbed)
    a, b = weights(interrupted), weights(undisturbed)
    assert all(a[name].equal(b[name]) for name in b)
