"""DPO against TRL's trainer: the same loss and gradients on one batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from idc.data.images import decode_image
from idc.vlm.chat import caption_turns
from tests.systems.adpo import naive
from tests.systems.adpo.small import WHOLE, batch_of, job_of, loaders_of, moved, pairs_folder, task_of
from tests.vlm.processors import processor_of


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_loss_and_gradients_are_those_of_trl(kind: str, tmp_path: Path) -> None:
    """A model that is tuned whole, moved away from its reference. TRL gets the prompt as our template renders it, and
    captions with the end token: from messages it would also learn the template's newline after it."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    folder = pairs_folder(tmp_path / "pairs", sizes=[(64, 64)])
    job = job_of(kind, folder, objective="dpo", tune=WHOLE, beta=0.5, **{"reference.by": "copy"})
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
