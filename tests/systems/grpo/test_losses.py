"""A step of GRPO against one answer at a time."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idc.rewards.policy import Answers, GroupPolicy
from idc.systems.grpo.task import GrpoTask
from idc.vlm import policy
from idc.vlm.batch import collate_encoded, encode_images, prompt_sample, with_answers
from idc.vlm.logps import token_log_probabilities
from tests.systems.adpo.small import KIND, TUNE, VISION_TOO, WHOLE, moved, pairs_folder
from tests.systems.grpo.small import assert_equal_steps, drawn, grpo_job, task_and_batch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_folder(tmp_path_factory.mktemp("data") / "pairs", sizes=[(64, 64)])


def naive_loss(task: GrpoTask, batch: dict[str, Any], answers: Answers, reference: Any) -> Tensor:
    """Each answer behind its prompt alone, from its own vision pass."""
    count = len(batch["pixel_values"]) // len(answers)

    def log_p(model: Any, tokens: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        logs = []
        for pair, ids in ((pair, ids) for pair, group in enumerate(tokens) for ids in group):
            pixels = {key: batch[key][pair * count : (pair + 1) * count] for key in task.family.pixel_keys}
            row = collate_encoded([with_answers(batch["prompt"][pair], [ids], {})], task.family) | pixels
            features = encode_images(model, pixels, task.family)
            logs.append(token_log_probabilities(model, row, features, task.family, task.job.temperature)[0])
        return torch.cat(logs)

    group = GroupPolicy(task.job, task.policy.rewards, task.job.generation.max_new_tokens, 1)
    return group.step(batch, lambda greedy: answers, partial(log_p, task.model), partial(log_p, reference))[0]


@pytest.mark.parametrize("tune", [VISION_TOO, WHOLE], ids=["adapters", "whole"])
def test_a_step_is_that_of_one_answer_at_a_time(pairs: Path, tmp_path: Path, tune: dict[str, Any]) -> None:
    """With the divergence from the model at the start, which is not the policy with its adapters on."""
    task, batch = task_and_batch(grpo_job(KIND, pairs, kl=0.4, tune=tune), KIND, tmp_path)
    start = copy.deepcopy(task.model)
    moved(task, by=0.02)
    answers = drawn(task, batch)
    loss, logs = task.training_step(batch)
    assert float(logs["kl"]) > 1e-4
    assert_equal_steps((task, loss), (task, naive_loss(task, batch, answers, start)))


def test_a_reference_with_its_adapters_on_is_found(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "without_adapters", contextlib.nullcontext)
    with pytest.raises(AssertionError):
        test_a_step_is_that_of_one_answer_at_a_time(pairs, tmp_path, TUNE)


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
