from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from idc.config import ConfigError, load
from idc.training.config import GroupConfig, KeepBest, ScheduleName, TrainConfig, learning_rate


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give exactly one"),
        ({"steps": 5, "epochs": 1}, "steps=5 and epochs=1.0: give exactly one"),
        (
            {"steps": 5, "batch_size": 10, "grad_accumulation": 2, "num_workers": 2},
            "batch_size=10 is not divisible by grad_accumulation * num_workers = 2 * 2 = 4; take 8",
        ),
        ({"steps": 5, "zero_stage": 2}, "zero_stage=2 needs engine=deepspeed"),
        ({"steps": 5, "zero_stage": 4, "engine": "deepspeed"}, "zero_stage"),
        ({"steps": 5, "betas": [0.9, 1.0]}, "1.0 is not in [0, 1)"),
        ({"steps": 5, "deepspeed_extra": {"a": 1}}, "the engine is torch"),
        ({"steps": 5, "precision": "fp16"}, "precision"),
        ({"steps": 5, "loader_threads": 2, "loader_processes": 2}, "processes replace threads"),
        ({"steps": 5, "prefetch": 0, "loader_processes": 2}, "and prefetch is 0"),
        (
            {"steps": 5, "engine": "deepspeed", "deepspeed_extra": {"bf16": {"enabled": True}}},
            "switches on a lower precision",
        ),
        ({"warmup_steps": 2}, "schedule: 'constant' has no warm-up"),
        ({"schedule": "linear_warmup", "warmup_steps": 2, "warmup_share": 0.1}, "give only one of them"),
        ({"lr": 1e-5, "warmup_lr": 1e-4}, "warmup_lr=0.0001 is above lr=1e-05"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(GroupConfig if "warmup_steps" in values or "warmup_lr" in values else TrainConfig, overrides=values)
    assert message in str(refused.value)


def test_steps_of_a_run() -> None:
    assert TrainConfig(steps=7).total_steps(10) == 7
    assert TrainConfig(epochs=2, batch_size=4).total_steps(10) == 5
    assert TrainConfig(epochs=0.5, batch_size=4).total_steps(10) == 2
    assert TrainConfig(steps=7, batch_size=12, grad_accumulation=3).micro_batch_size == 4


def test_constant_and_linear_schedules() -> None:
    assert [learning_rate(GroupConfig(lr=2.0), step, 5) for step in range(5)] == [2.0] * 5
    warm = GroupConfig(lr=1.0, schedule="linear_warmup", warmup_steps=4)
    assert [learning_rate(warm, step, 6) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    decay = GroupConfig(lr=1.0, schedule="linear_warmup_decay", warmup_share=0.2)
    rates = [learning_rate(decay, step, 10) for step in range(10)]
    assert rates == pytest.approx([0.5, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0.0])
    cosine = GroupConfig(lr=2.0, schedule="linear_warmup_cosine", warmup_steps=2)
    rates = [learning_rate(cosine, step, 6) for step in range(6)]
    half = math.sqrt(0.5)
    assert rates == pytest.approx([1.0, 2.0, 1 + half, 1.0, 1 - half, 0.0])


@pytest.mark.parametrize("schedule", ["linear_warmup_decay", "linear_warmup_cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 4, 9])
def test_a_decay_goes_from_the_peak_to_final_lr_at_the_last_step(schedule: ScheduleName, warmup: int) -> None:
    """Against numpy's own straight line, or half a turn of a circle, between the two."""
    group = GroupConfig(lr=1.0, final_lr=0.1, schedule=schedule, warmup_steps=warmup)
    first = max(0, warmup - 1)
    line = np.linspace(0, np.pi, 10 - first)
    shape = 1 - line / np.pi if schedule == "linear_warmup_decay" else (1 + np.cos(line)) / 2
    rates = [learning_rate(group, step, 10) for step in range(first, 10)]
    assert rates == pytest.approx(list(0.1 + 0.9 * shape))
    assert rates[-1] == 0.1
    assert learning_rate(group.model_copy(update={"warmup_steps": 0}), 0, 1) == 1.0, "a run of one step learns"


def test_log_warmup_is_deepspeeds() -> None:
    """Against deepspeed.runtime.lr_schedules.WarmupLR, which is stepped after each optimizer step."""
    import torch
    from deepspeed.runtime.lr_schedules import WarmupLR

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = WarmupLR(optimizer, warmup_min_lr=1e-6, warmup_max_lr=1e-4, warmup_num_steps=20)
    group = GroupConfig(lr=1e-4, warmup_lr=1e-6, schedule="log_warmup", warmup_steps=20)
    for step in range(40):
        assert learning_rate(group, step, 40) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), step
        theirs.step()
    assert learning_rate(group, 5, 40) == pytest.approx(1e-6 + (1e-4 - 1e-6) * math.log(5) / math.log(20))


def test_keep_best_by_mode() -> None:
    highest, lowest = KeepBest(metric="CIDEr"), KeepBest(metric="loss", mode="min")
    assert [highest.better(value, 1.0) for value in (2.0, 1.0)] == [True, False]
    assert lowest.better(1.0, 2.0)
    assert lowest.better(9.0, None)


def test_every_allowed_number_of_workers_shares_a_batch() -> None:
    def refused(**settings: int) -> str:
        with pytest.raises(ValidationError) as caught:
            TrainConfig(steps=1, **settings)  # type: ignore[arg-type]
        return str(caught.value)

    assert TrainConfig(steps=1, num_workers=3, min_workers=2, batch_size=12, grad_accumulation=2).min_workers == 2
    assert "min_workers=3 is above num_workers=2" in refused(num_workers=2, min_workers=3, batch_size=12)
    assert "min_workers=2 allows 3 workers" in (said := refused(num_workers=4, min_workers=2, batch_size=32))
    assert "take batch_size=36, or set min_workers=" in said
    assert "take batch_size=24" in refused(num_workers=4, min_workers=2, batch_size=32, grad_accumulation=2)
