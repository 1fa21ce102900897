from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from idc.training.config import TrainConfig
from idc.training.memory import is_out_of_memory, out_of_memory_advice


def cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        (lambda: torch.empty(1 << 50), True),
        (lambda: np.empty(1 << 58), True),
        (cuda, True),
        (lambda: torch.ones(2) + torch.ones(3), False),
        (lambda: {}["out of memory"], False),
    ],
)
def test_errors_of_a_full_memory_are_recognised(fail: Callable[[], Any], expected: bool) -> None:
    with pytest.raises((RuntimeError, MemoryError, LookupError)) as caught:
        fail()
    assert is_out_of_memory(caught.value) == expected


def test_the_advice_names_settings_that_are_left_to_change() -> None:
    error, left = (
        RuntimeError("CUDA out of memory"),
        ("grad_accumulation", "activation_checkpointing", "precision=bf16"),
    )
    advice = out_of_memory_advice(
        TrainConfig(steps=1, batch_size=8, grad_accumulation=2, num_workers=2), "cuda:1", error
    )
    assert "out of memory on cuda:1: CUDA out of memory" in advice
    assert "now 2 (micro-batches of 2 samples per worker)" in advice
    assert all(f"train.{setting}" in advice for setting in (*left, "batch_size, now 8", "zero_stage=2"))
    least = {"batch_size": 4, "activation_checkpointing": True, "precision": "bf16", "num_workers": 4}
    advice = out_of_memory_advice(TrainConfig(steps=1, **least), "cuda:1", error)
    assert not any(setting in advice for setting in left)
