"""The losses against a second implementation, finite differences, the paper's printed signs, and TRL's trainer."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.tiny_vlm import processor_of
from idc.data.images import decode_image
from idc.systems.adpo.task import PreferenceTask, draw_candidates
from idc.vision.pair_encoder.model import PairEncoder
from idc.vlm.batch import encode_images
from idc.vlm.chat import caption_turns
from tests.systems.adpo import naive
from tests.systems.adpo.small import (
    KIND,
    VISION_TOO,
    WHOLE,
    batch_of,
    encoder_folder,
    job_of,
    loaders_of,
    moved,
    pairs_folder,
    task_of,
)


def prepared(pairs: Path, kind: str = KIND, **settings: Any) -> tuple[PreferenceTask, dict[str, Any]]:
    job = job_of(kind, pairs, **settings)
    loaders = loaders_of(job, kind, pairs.parent / "run")
    return task_of(job, kind, loaders), batch_of(loaders)


def drawn(task: PreferenceTask, batch: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str], list[str], Tensor]:
    """Rows, chosen captions, negatives and picks (B,) of the task's next step."""
    part = task.parts[0]
    rows = [part.rows[row] for _, row in batch["row"]]
    texts = part.bank.texts
    picks = draw_candidates(task._log_q(batch)[0], batch["noise"])
    numbers = batch["candidates"].gather(1, picks[:, None])[:, 0].tolist()
    return rows, [texts[n] for n in batch["chosen"].tolist()], [texts[n] for n in numbers], picks


@pytest.mark.parametrize("kind", ["internvl", "qwen2_5_vl", "llava_onevision"])
def test_the_loss_is_that_of_the_equations(pairs: Path, kind: str) -> None:
    task, batch = prepared(pairs, kind, beta=0.5)
    moved(task)
    loss, logs = task.training_step(batch)
    loss.backward()
    ours = {name: parameter.grad.clone() for name, parameter in task.named_parameters() if parameter.grad is not None}
    task.zero_grad()
    rows, chosen, rejected, picks = drawn(task, batch)
    rewards = naive.losses(task, rows, chosen, rejected)
    log_draws = []
    for pair in range(len(rows)):
        log_q = naive.log_q(task, batch["frames"][pair], batch["candidates"][pair].tolist())
        log_draws.append(log_q[int(picks[pair])])
    policy = sum(rewards) / len(rewards)
    retriever = -sum(float(r.detach()) * log for r, log in zip(rewards, log_draws, strict=True)) / len(rewards)
    assert float(logs["policy_loss"]) == pytest.approx(float(policy), rel=1e-5)
    assert float(loss) == pytest.approx(float(policy + retriever), rel=1e-5)
    (policy + retriever).backward()
    theirs = {name: parameter.grad for name, parameter in task.named_parameters() if parameter.grad is not None}
    assert ours.keys() == theirs.keys()
    assert {name.partition(".")[0] for name in ours} == {"model", "retriever"}
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-5 * largest), name


@pytest.mark.parametrize(
    ("settings", "learned"), [({}, 14.0), ({"tau": 0.5}, 250.0), ({"tau": 3.0, "similarity_scale": 7.0}, 14.0)]
)
def test_q_is_that_of_equation_3(pairs: Path, tmp_path: Path, settings: dict[str, float], learned: float) -> None:
    """By tau, which flattens it, and the encoder's learned scale, which is at most 100 as where it was learned."""
    encoder = PairEncoder.load(encoder_folder())
    encoder.clip.logit_scale.data.fill_(math.log(learned))
    encoder.save(tmp_path / "encoder")
    task, batch = prepared(pairs, retriever={"encoder": str(tmp_path / "encoder"), **settings})
    log_q_BN, _ = task._log_q(batch)
    for frames, candidates, log_q in zip(batch["frames"], batch["candidates"].tolist(), log_q_BN, strict=True):
        torch.testing.assert_close(log_q.double(), naive.log_q(task, frames, candidates), atol=2e-4, rtol=1e-4)


def test_the_draw_is_from_q() -> None:
    torch.manual_seed(0)
    log_q = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    count = 20_000
    picks = draw_candidates(log_q.expand(count, 4), -torch.log(-torch.log(torch.rand(count, 4))))
    for number, probability in enumerate(log_q[0].exp().tolist()):
        share = float((picks == number).float().mean())
        assert share == pytest.approx(probability, abs=4 * math.sqrt(probability / count) + 1e-3)


@pytest.mark.parametrize(
    "settings",
    [{"objective": "dpo"}, {}, {"tune": WHOLE}, {"tune": VISION_TOO}],
)  # fmt: skip
def test_the_reference_is_the_untouched_model_and_does_not_move_with_the_policy(
    pairs: Path, settings: dict[str, Any]
) -> None:
    task, batch = prepared(pairs, **settings)
    _, logs = task.training_step(batch)
    assert float(logs["margin"]) == 0
    assert float(logs["policy_loss"]) == pytest.approx(math.log(2), abs=1e-7)
    trained = {name for name, parameter in task.named_parameters() if parameter.requires_grad}
    answers = task._answer_ids(batch, torch.zeros(4, 1, dtype=torch.long))
    untouched = naive.frozen_copy(task)
    with torch.no_grad():
        expected = task.answer_log_p(batch, answers, encode_images(untouched, batch, task.family), model=untouched)
    for _ in range(2):
        reference = task.reference_log_p(batch, answers, task.encode(batch))
        assert torch.equal(reference, expected)
        assert not reference.requires_grad
        moved(task)
    assert not torch.equal(task.answer_log_p(batch, answers, task.encode(batch)), expected)
    assert trained == {name for name, parameter in task.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("frozen.") for name in task.checkpoint_keys()), "the copy is not stored"


def test_the_running_baseline_of_an_accumulated_step_is_of_all_its_rewards(pairs: Path) -> None:
    """It moves at the end of the step alone, by the mean over the pairs of both micro-batches; it is subtracted from
    the retriever's reward and not from the policy's loss."""
    job = job_of(KIND, pairs, **{"retriever.baseline": 0.5, "train.grad_accumulation": 2})
    loaders = loaders_of(job, KIND, pairs.parent / "run")
    task = task_of(job, KIND, loaders)
    moved(task)
    baselines, rewards = [float(task.baseline)], []
    for indices in ((0, 1), (2, 3)):
        batch = batch_of(loaders, indices)
        rows, chosen, rejected, picks = drawn(task, batch)
        reward = torch.stack([loss.detach() for loss in naive.losses(task, rows, chosen, rejected)])
        log_draws = task._log_q(batch)[0].gather(1, picks[:, None])[:, 0]
        loss, _ = task.training_step(batch)
        assert float(loss) == pytest.approx(
            float(reward.mean() - ((reward - math.log(2)) * log_draws).mean()), rel=1e-5
        )
        rewards += reward.tolist()
        baselines.append(float(task.baseline))
    assert max(rewards) > min(rewards) + 0.01
    assert baselines == pytest.approx([math.log(2)] * 2 + [0.5 * math.log(2) + 0.5 * sum(rewards) / 4], rel=1e-6)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_loss_and_gradients_are_those_of_trl(kind: str, tmp_path: Path) -> None:
    """A model that is tuned whole, moved away from its reference. TRL gets the prompt as our template renders it, and
    captions with the end token: from messages it would also learn the template's newline after it."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    folder = pairs_folder(tmp_path / "pairs", sizes=[(64, 64)])
    job = job_of(kind, folder, objective="dpo", tune=WHOLE, beta=0.5)
    loaders = loaders_of(job, kind, tmp_path)
    task, batch = task_of(job, kind, loaders), batch_of(loaders)
    moved(task, by=0.01)
    policy = copy.deepcopy(task.model).requires_grad_(True)
    loss, logs = task.training_step(batch)
    loss.backward()
    assert abs(float(logs["margin"])) > 0.01

    part = task.parts[0]
    family, chat = part.chat.family, part.chat
    prompt = family.tokenizer.apply_chat_template(
        chat.messages(caption_turns(job.prompt)), add_generation_prompt=True, tokenize=False
    )
    examples: list[dict[str, Any]] = []
    for (_, row), chosen, (rejected,) in zip(
        batch["row"], batch["chosen"].tolist(), batch["candidates"].tolist(), strict=True
    ):
        columns = part.rows[row]
        images = [Image.fromarray(decode_image(columns[side])) for side in ("before", "after")]
        texts = {
            name: part.bank.texts[number] + chat.end for name, number in (("chosen", chosen), ("rejected", rejected))
        }
        examples.append({"images": images, "prompt": prompt, **texts})
    trainer = DPOTrainer(
        model=policy,
        ref_model=naive.frozen_copy(task),
        args=DPOConfig(
            output_dir=str(tmp_path / "trl"), beta=0.5, max_length=None, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, per_device_train_batch_size=4,
        ),
        train_dataset=Dataset.from_list(examples),
        processing_class=processor_of(family),
    )  # fmt: skip
    theirs = trainer.compute_loss(trainer.model, trainer.data_collator(examples))
    theirs.backward()
    assert float(loss) == pytest.approx(float(theirs), rel=1e-5)
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}
    ours = {name: parameter.grad for name, parameter in task.model.named_parameters() if parameter.grad is not None}
    assert ours.keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-5 * largest), name
