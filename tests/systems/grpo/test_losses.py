"""A step of GRPO against one answer at a time."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idc.rewards.policy import Answers
from idc.systems.grpo.task import GrpoTask
from idc.vlm import policy
from idc.vlm.batch import collate_encoded, encode_images, prompt_sample, with_answers
from idc.vlm.logps import token_log_probabilities
from tests.systems.adpo.small import KIND, VISION_TOO, WHOLE, moved, pairs_folder
from tests.systems.grpo.small import drawn, grpo_job, task_and_batch, vowels


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_folder(tmp_path_factory.mktemp("data") / "pairs", sizes=[(64, 64)])


def naive_loss(task: GrpoTask, batch: dict[str, Any], answers: Answers, reference: Any = None) -> Tensor:
    """Each answer behind its prompt alone, from its own vision pass; Dr. GRPO's loss."""
    job, family, total = task.job, task.family, torch.zeros(())
    for pair, group in enumerate(answers):
        values = [vowels([answer.text], batch["row"][pair])[0] for answer in group]
        values = [value if answer.ended or value < 0 else 0.0 for value, answer in zip(values, group, strict=True)]
        for answer, value in zip(group, values, strict=True):
            logs = []
            for model in filter(None, (task.model, reference)):
                count = len(batch["pixel_values"]) // len(answers)
                pixels = {key: batch[key][pair * count : (pair + 1) * count] for key in family.pixel_keys}
                row = collate_encoded([with_answers(batch["prompt"][pair], [answer.ids], {})], family) | pixels
                logs.append(
                    token_log_probabilities(model, row, encode_images(model, pixels, family), family, job.temperature)[
                        0
                    ]
                )
            advantage = value - sum(values) / len(values)
            losses = -advantage * (logs[0] - logs[0].detach()).exp()
            if reference is not None:
                away = logs[1].detach() - logs[0]
                losses = losses + job.kl * (away.exp() - away - 1)
            total = total + losses.sum() / job.generation.max_new_tokens / (len(answers) * job.group)
    return total


def gradients(task: GrpoTask) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in task.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("tune", [VISION_TOO, WHOLE], ids=["adapters", "whole"])
def test_a_step_is_that_of_one_answer_at_a_time(pairs: Path, tmp_path: Path, tune: dict[str, Any]) -> None:
    """With the divergence from the model at the start, which is not the policy with its adapters on."""
    task, batch = task_and_batch(grpo_job(KIND, pairs, kl=0.4, tune=tune), KIND, tmp_path)
    start = copy.deepcopy(task.model)
    moved(task, by=0.02)
    answers = drawn(task, batch)
    loss, logs = task.training_step(batch)
    loss.backward()
    ours = gradients(task)
    task.zero_grad()
    theirs = naive_loss(task, batch, answers, start)
    theirs.backward()
    assert float(logs["kl"]) > 1e-4
    assert float(loss.detach()) == pytest.approx(float(theirs), rel=1e-4)
    largest = max(float(gradient.abs().max()) for gradient in ours.values())
    for name, gradient in gradients(task).items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-5 * largest)


def test_a_reference_with_its_adapters_on_is_found(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "without_adapters", contextlib.nullcontext)
    task, batch = task_and_batch(grpo_job(KIND, pairs, kl=0.4), KIND, tmp_path)
    start = copy.deepcopy(task.model)
    moved(task)
    assert float(task.training_step(batch)[0]) != pytest.approx(
        float(naive_loss(task, batch, drawn(task, batch), start)), rel=1e-3
    )


def test_answers_do_not_depend_on_the_batch_and_keep_the_likely_words(pairs: Path, tmp_path: Path) -> None:
    task, batch = task_and_batch(grpo_job(KIND, pairs), KIND, tmp_path)
    answers = drawn(task, batch)
    assert len({answer.ids for group in answers for answer in group}) > 8
    size = len(batch["pixel_values"]) // 4
    for pair in range(4):
        alone = {
            "padded": collate_encoded([prompt_sample(batch["prompt"][pair])], task.family, "left"),
            "pixel_values": batch["pixel_values"][pair * size : (pair + 1) * size],
            "draws": batch["draws"][pair : pair + 1],
        }  # fmt: skip
        assert drawn(task, alone) == [answers[pair]]
    other = task_and_batch(grpo_job(KIND, pairs), KIND, tmp_path, epoch=1)[1]
    assert not torch.equal(other["draws"], batch["draws"])
    assert task.training, "sampling leaves the mode as it was"
