"""A step of GRPO against one answer at a time, and against TRL."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from idc.rewards.policy import Answers
from idc.systems.grpo.task import GrpoTask
from idc.vlm import policy
from idc.vlm.batch import collate_encoded, encode_images, prompt_sample, with_answers
from idc.vlm.chat import caption_turns
from idc.vlm.logps import token_log_probabilities
from tests.systems.adpo.small import KIND, VISION_TOO, WHOLE, moved, pairs_folder
from tests.systems.grpo.small import grpo_job, task_and_batch, vowels
from tests.vlm.models import picture, processor_of


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_folder(tmp_path_factory.mktemp("data") / "pairs", sizes=[(64, 64)])


def drawn(task: GrpoTask, batch: dict[str, Any]) -> Answers:
    with torch.no_grad():
        return task._sample(batch, task.encode(batch), False)


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


TRL = {
    "grpo": {"scale": "sum", "length": "answer"},
    "dr_grpo": {"scale": "none", "length": "longest"},
    "dapo": {"scale": "sum", "length": "group", "clip_high": 0.28},
    "sequence": {"scale": "sum", "length": "answer", "ratio": "sequence"},
}
CASES = [(kind, name, 0.0 if n % 2 else 0.3) for n, kind in enumerate(("qwen2_5_vl", "internvl")) for name in TRL]


def trl_losses(
    task: GrpoTask, batch: dict[str, Any], answers: Answers, model: Any, reference: Any, folder: Path, name: str
) -> Sequence[Any]:
    """TRL's trainer with our captions in the place of its own, and its batch."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    job, family = task.job, task.family
    turns = task.chat.messages(caption_turns(job.prompt))
    ids = [list(answer.ids) for group in answers for answer in group]
    prompts = [list(prompt) for prompt in batch["prompt"] for _ in range(job.group)]
    rows = [row for row in batch["row"] for _ in range(job.group)]

    def reward(completions: Any, **columns: Any) -> list[float]:
        texts = [answer.text for group in answers for answer in group]
        return [vowels([text], row)[0] for text, row in zip(texts, rows, strict=True)]

    images = [[Image.fromarray(picture(2 * n + side)) for side in range(2)] for n in range(len(answers))]
    examples = [{"prompt": turns, "images": images[n]} for n in range(len(answers)) for _ in range(job.group)]
    config = GRPOConfig(
        output_dir=str(folder), loss_type="grpo" if name == "sequence" else name, beta=job.kl, epsilon=job.clip_low,
        epsilon_high=job.clip_high, scale_rewards="none" if job.scale == "none" else "group", num_iterations=2,
        importance_sampling_level=job.ratio, num_generations=job.group, temperature=job.temperature,
        max_completion_length=job.generation.max_new_tokens, per_device_train_batch_size=len(ids), report_to="none",
        use_cpu=True, bf16=False, gradient_checkpointing=False, gradient_accumulation_steps=1, steps_per_generation=1,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, reward_funcs=[reward], args=config, train_dataset=Dataset.from_list(examples),
        processing_class=processor_of(family),
        rollout_func=lambda prompts_, trainer: {"prompt_ids": prompts, "completion_ids": ids, "logprobs": None},
    )  # fmt: skip
    trainer.ref_model = reference
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    return trainer, trainer._generate_and_score_completions(examples)
