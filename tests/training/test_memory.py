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
    train = TrainConfig(steps=1, batch_size=32, grad_accumulation=2, num_workers=4)
    advice = out_of_memory_advice(train, "cuda:1", RuntimeError("CUDA out of memory"))
    for text in (
        "out of memory on cuda:1: CUDA out of memory",
        "raise train.grad_accumulation, now 2 (micro-batches of 4 samples per worker); the losses stay the same",
        "train.activation_checkpointing=true",
        "lower train.batch_size, now 32",
        "train.precision=bf16",
        "train.zero_stage=2",
    ):
        assert text in advice
    least = {"batch_size": 4, "activation_checkpointing": True, "precision": "bf16", "num_workers": 4}
    advice = out_of_memory_advice(TrainConfig(steps=1, **least), "cuda:1", RuntimeError())
    for text in ("grad_accumulation", "activation_checkpointing", "precision"):
        assert text not in advice
