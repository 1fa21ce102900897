"""Small jobs of both trainings by rewards, on the pairs of ADPO's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idc.config import load
from idc.rewards.policy import Answers
from idc.rewards.rewards import Rewards, Row, training_rows
from idc.systems.grpo.config import GrpoJob
from idc.systems.grpo.data import collate_drawn, make_loaders
from idc.systems.grpo.task import GrpoTask
from idc.training.context import LocalContext
from idc.vlm.base import load_model
from idc.vlm.config import BaseConfig
from tests.systems.adpo.small import TRAIN, TUNE
from tests.vlm.models import found, tiny_folder

VOWELS = {"tests.systems.grpo.small:vowels": 1.0}
"""A reward of the captions of a model that never ends one: those are negative."""


def vowels(captions: Sequence[str], row: Row) -> list[float]:
    return [-len(caption) + 3.0 * sum(caption.count(letter) for letter in "aeiou") - 400.0 for caption in captions]


def grpo_job(kind: str, pairs: Path | str, **settings: Any) -> GrpoJob:
    values: dict[str, Any] = {
        "pairs": str(pairs), "base": {"source": str(tiny_folder(kind))}, "tune": TUNE, "train": TRAIN,
        "rewards": VOWELS,
        "generation": {"max_new_tokens": 6}, "group": 4, "temperature": 1.3,
    }  # fmt: skip
    return load(GrpoJob, None, {**values, **settings})


def task_and_batch(
    job: GrpoJob, kind: str, run: Path, epoch: int = 0, count: int = 4
) -> tuple[GrpoTask, dict[str, Any]]:
    torch.manual_seed(0)
    model = load_model(found(kind).folder, BaseConfig(source=job.base.source))
    task = GrpoTask(job, model, found(kind).family, Rewards(job.rewards, training_rows([job.pairs])))
    dataset = make_loaders(job, found(kind).family, LocalContext(run)).train.dataset
    samples = [dataset.get(index, epoch) for index in range(count)]
    return task, {**collate_drawn(samples, found(kind).family), "num_samples": count}


def drawn(task: GrpoTask, batch: dict[str, Any]) -> Answers:
    """The answers of the task's next step."""
    with torch.no_grad():
        return task._sample(batch, task.encode(batch), False)


def assert_equal_steps(ours: tuple[nn.Module, Tensor], theirs: tuple[nn.Module, Tensor]) -> None:
    """Equal losses, and equal gradients of the models that they are of."""
    both = []
    for model, loss in (ours, theirs):
        model.zero_grad()
        loss.backward()
        weights = model.named_parameters()
        both.append({name: weight.grad.clone() for name, weight in weights if weight.grad is not None})
    assert both[0].keys() == both[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in both[1].values())
    assert largest > 1e-3
    for name, gradient in both[1].items():
        torch.testing.assert_close(both[0][name], gradient, rtol=1e-3, atol=1e-5 * largest)
    assert float(ours[1].detach()) == pytest.approx(float(theirs[1].detach()), rel=1e-4, abs=1e-6)
