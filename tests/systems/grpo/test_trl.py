"""The loss and its gradients against TRL's trainer of GRPO, which gets our answers, images and rewards and calculates
advantages, old and reference log-probabilities and the loss itself.

Not compared: LLaVA-OneVision, of whose inputs TRL 1.16 does not take the number of images; prompts of unequal lengths,
of which TRL from 1.4 on padded the kinds of tokens on another side than the tokens (its issue 5785); a greedy baseline,
which TRL lacks; rewards divided one by one, whose sums TRL divides again, by the deviation of the batch; DAPO's loss of
several pairs, which TRL divides by the tokens of the batch; its divergence times the ratio (use_bias_correction_kl, its
default); adapters.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks.tiny_vlm import processor_of
from idc.data.images import decode_image
from idc.data.schema import IMAGE
from idc.data.store import iter_rows
from idc.rewards.policy import Answers
from idc.systems.grpo.config import GrpoJob
from idc.systems.grpo.task import GrpoTask
from tests.systems.adpo.small import TRAIN, WHOLE, moved, pairs_folder
from tests.systems.grpo.small import VOWELS, assert_equal_steps, drawn, grpo_job, task_and_batch

PAIRS, GROUP, LONGEST = 4, 4, 6
REWARDS = {**VOWELS, "tests.systems.grpo.test_trl:words": 0.5}
BOUNDS = {"clip_low": 0.02, "clip_high": 0.04}
GRPO = {"length": "answer", "scale": "sum"}
DR_GRPO = {"loss_type": "dr_grpo", "scale_rewards": "none"}


def words(captions: Sequence[str], row: Any) -> list[float]:
    return [-float(len(caption.split())) for caption in captions]


def with_ends(head: nn.Linear, task: GrpoTask) -> None:
    """A head that often ends an answer, and never draws the image token, which TRL leaves in its distribution."""
    bias = torch.zeros(head.out_features)
    bias[task.family.image_id], bias[task.family.tokenizer.eos_token_id] = -1e4, 5.0
    head.bias = nn.Parameter(bias, requires_grad=False)


def trainer_of(task: GrpoTask, batch: dict[str, Any], answers: Answers, settings: dict[str, Any], out: Path) -> Any:
    """TRL's trainer of a copy of the model, and the rows that it takes, one for each answer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    job, content = task.job, list[dict[str, str]]()
    flat = [(pair, answer) for pair, group in enumerate(answers) for answer in group]
    columns = {row["pair_id"]: row for row in iter_rows(job.pairs)}
    for number, part in enumerate(job.prompt.text.split(IMAGE)):
        content += [{"type": "image"}] * (number > 0) + [{"type": "text", "text": part}]
    rows = []
    for pair, _ in flat:
        stored = columns[batch["row"][pair]["pair_id"]]
        images = [Image.fromarray(decode_image(stored[side])) for side in ("before", "after")]
        rows.append({"prompt": [{"role": "user", "content": content}], "images": images})
    earned = task.policy.rewards(answers, batch["row"])

    def reward(number: int) -> Any:
        def values(**columns: Any) -> list[float]:
            return earned[number].flatten().tolist()  # type: ignore[no-any-return]

        return values

    def rollouts(prompts: Any, trainer: Any) -> dict[str, Any]:
        prompt_ids = [list(batch["prompt"][pair]) for pair, _ in flat]
        return {"prompt_ids": prompt_ids, "completion_ids": [list(answer.ids) for _, answer in flat], "logprobs": None}

    return GRPOTrainer(
        model=copy.deepcopy(task.model).requires_grad_(True),
        reward_funcs=[reward(number) for number in range(len(job.rewards))],
        args=GRPOConfig(
            output_dir=str(out), beta=job.kl, temperature=job.temperature, epsilon=job.clip_low,
            epsilon_high=job.clip_high, importance_sampling_level=job.ratio, num_iterations=job.updates,
            reward_weights=list(job.rewards.values()), num_generations=GROUP, max_completion_length=LONGEST,
            per_device_train_batch_size=len(flat), gradient_checkpointing=False, report_to="none", use_cpu=True,
            bf16=False, use_bias_correction_kl=False, **settings,
        ),
        train_dataset=Dataset.from_list([{"prompt": "unused"}]),
        processing_class=processor_of(task.family),
        rollout_func=rollouts,
    ), rows  # fmt: skip


def compare(job: GrpoJob, kind: str, settings: dict[str, Any], folder: Path) -> None:
    """Each update's loss and gradients, the policy having moved from its reference and between the updates."""
    task, batch = task_and_batch(job, kind, folder / "run", count=1 if settings["loss_type"] == "dapo" else PAIRS)
    for model in filter(None, (task.model, task.frozen)):
        with_ends(model.lm_head, task)
    moved(task, by=0.01)
    answers = drawn(task, batch)
    assert len({len(answer.ids) for group in answers for answer in group}) > 2
    trainer, rows = trainer_of(task, batch, answers, settings, folder / "trl")
    trainer.model.train().lm_head.bias.requires_grad_(False)
    trainer.current_gradient_accumulation_steps = 1  # which its loop sets
    if trainer.ref_model is not None:
        with_ends(trainer.ref_model.lm_head, task)
    for update in range(job.updates):
        trainer._step = update
        theirs = trainer._compute_loss(trainer.model, trainer._prepare_inputs(rows))
        ours, logs = task.training_step(batch)
        assert (float(logs["clipped"]) > 0.1) == (update > 0)
        assert_equal_steps((task.model, ours), (trainer.model, theirs))
        moved(task, by=0.01)
        trainer.model.load_state_dict(task.model.state_dict())


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo": ("internvl", GRPO, {"loss_type": "grpo"}),
    "grpo, kl": ("qwen2_5_vl", {**GRPO, "kl": 0.3}, {"loss_type": "grpo"}),
    "dr_grpo": ("qwen2_5_vl", {}, DR_GRPO),
    "dr_grpo, one update, kl": ("qwen3_vl", {"updates": 1, "kl": 0.3}, DR_GRPO),
    "dapo": ("internvl", {"length": "group", "scale": "sum"}, {"loss_type": "dapo"}),
    "dapo, kl": ("internvl", {"length": "group", "scale": "sum", "kl": 0.3}, {"loss_type": "dapo"}),
    "sequence": ("internvl", {**GRPO, "ratio": "sequence"}, {"loss_type": "grpo"}),
    "sequence, kl": ("internvl", {**GRPO, "ratio": "sequence", "kl": 0.3}, {"loss_type": "grpo"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_trl(name: str, tmp_path: Path) -> None:
    kind, ours, theirs = CASES[name]
    folder = pairs_folder(tmp_path / "pairs", sizes=[(64, 64)])
    train = {**TRAIN, "steps": 4, "log_every": 2, "checkpoint_every": 2}
    settings = {"tune": WHOLE, "rewards": REWARDS, "updates": 2, "train": train, **BOUNDS, **ours}
    compare(grpo_job(kind, folder, **settings), kind, theirs, tmp_path)
