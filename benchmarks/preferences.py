"""A step of DPO beside TRL's ``DPOTrainer``: the same base model, pairs, captions and adapters in one run.

    python -m benchmarks.preferences pairs=data/demo/pairs
    python -m benchmarks.preferences pairs=data/demo/pairs base.source=runs/sft-small/merged batch_size=32 threads=2

Needs TRL, which comes with the tests (`pip install -e .[dev]`). Both train adapters on the language model alone, with
the switched-off adapters as the reference; a third row has the reference's log-probabilities stored. A step is forward,
backward and AdamW on one batch that is in memory: the preparation of data counts for neither. Seconds are measured by
turns in one process, peak memory in a process of each. Prints a table; the first losses are compared, and an unequal
one ends the command.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from benchmarks.measurement import by_turns, peak_memory_mib
from benchmarks.processes import apart
from benchmarks.processors import processor_of
from idc.config import ConfigModel, cli, missing
from idc.vlm.config import BaseConfig

STORED = "ours, stored"
KINDS = ("ours", STORED, "TRL")
"""``STORED``: with the reference's log-probabilities stored, which TRL refuses for models with images."""


class PreferenceBenchmark(ConfigModel):
    """Measure a step of both."""

    pairs: str = Field("data/demo/pairs", min_length=1)
    """Folder of pairs; the first ones of its training split are taken."""
    base: BaseConfig = BaseConfig(source="shipped")
    """The model that is tuned."""
    batch_size: int = Field(16, ge=1)
    """Pairs of a step."""
    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    repeats: int = Field(9, ge=1)
    """Timed rounds, by turns."""
    threads: int = Field(1, ge=1)
    """Torch threads."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")


class Stepper(NamedTuple):
    """A step that can be repeated, and what it has looked at.

    Attributes:
        step: forward, backward, update; returns the loss.
        images: how many images have gone through the vision tower in each of its calls so far.
    """

    step: Callable[[], float]
    images: list[int]


def stepper(kind: str, config: PreferenceBenchmark, folder: Path) -> Stepper:
    """The step of one of :data:`KINDS`."""
    import torch

    from idc.config import load
    from idc.systems.adpo.config import AdpoJob, ReferenceConfig
    from idc.systems.adpo.data import collate_preferences, samples_of
    from idc.systems.adpo.task import PreferenceTask
    from idc.vlm.base import find_base, load_model
    from idc.vlm.chat import Chat

    torch.set_num_threads(config.threads)
    tune = {"lora": {"rank": config.rank, "alpha": config.rank, "dropout": 0.0}}
    settings = {"pairs": config.pairs, "base": config.base.model_dump(), "objective": "dpo", "tune": tune}
    job = load(
        AdpoJob, None, {**settings, "captions": "one", "train": {"precision": "fp32", "steps": 1, "epochs": None}}
    )
    base = find_base(job.base)
    chat = Chat(base.family, job.cutoff)
    (part,) = samples_of(job, chat, None).values()
    batch = dict(collate_preferences([part.get(index, 0) for index in range(config.batch_size)], base.family))
    torch.manual_seed(0)
    task = PreferenceTask(job, load_model(base.folder, job.base), base.family, None)
    task.use([part])
    if kind == STORED:
        task.job = job.model_copy(update={"reference": ReferenceConfig(by="stored")})
        with torch.no_grad():  # the model is still its own reference
            answers = task._asked(batch, torch.zeros(config.batch_size, 1, dtype=torch.long))
            batch["stored"] = task._log_p(task.model, batch, answers, task.encode(batch))
    if kind != "TRL":
        return _optimised(lambda: task.training_step(batch)[0], task, task.model)
    trainer, inputs = _trainer(job, task, part, batch, load_model(base.folder, job.base), folder)
    return _optimised(lambda: trainer.compute_loss(trainer.model, inputs), trainer.model, trainer.model)


def _optimised(loss_of: Callable[[], Any], trained: Any, model: Any) -> Stepper:
    import torch

    optimizer = torch.optim.AdamW([weight for weight in trained.parameters() if weight.requires_grad], lr=1e-4)
    images: list[int] = []
    towers = [module for name, module in model.named_modules() if name.endswith((".vision_tower", ".visual"))]
    # Of a tower the first input: pixels, of which some families cut the images into patches in one row each.
    towers[0].register_forward_pre_hook(lambda _, inputs, named: images.append(_rows(inputs, named)), with_kwargs=True)

    def step() -> float:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return Stepper(step, images)


def _rows(inputs: tuple[Any, ...], named: dict[str, Any]) -> int:
    return len(inputs[0] if inputs else named["pixel_values"])


def _trainer(job: Any, task: Any, part: Any, batch: Any, model: Any, folder: Path) -> tuple[Any, Any]:
    """TRL's trainer with the same adapters, and its batch of the same captions."""
    from datasets import Dataset
    from peft import LoraConfig
    from PIL import Image
    from trl import DPOConfig, DPOTrainer

    from idc.data.images import decode_image
    from idc.vlm.dialogue import caption_turns

    family, chat = part.chat.family, part.chat
    prompt = family.tokenizer.apply_chat_template(
        chat.messages(caption_turns(job.prompt)), add_generation_prompt=True, tokenize=False
    )
    examples = []
    for (_, row), chosen, (rejected,) in zip(
        batch["row"], batch["chosen"].tolist(), batch["candidates"].tolist(), strict=True
    ):
        images = [Image.fromarray(decode_image(image)) for image in part.images(row)]
        texts = {name: part.bank.texts[number] + chat.end
                 for name, number in (("chosen", chosen), ("rejected", rejected))}  # fmt: skip
        examples.append({"images": images, "prompt": prompt, **texts})
    adapted = sorted(name for name, module in task.model.named_modules() if hasattr(module, "lora_A"))
    rank = job.tune.lora.rank
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(
            output_dir=str(folder), beta=job.beta, max_length=None, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, per_device_train_batch_size=len(examples),
        ),
        train_dataset=Dataset.from_list(examples),
        processing_class=processor_of(family),
        peft_config=LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=adapted),
    )  # fmt: skip
    return trainer, trainer.data_collator(examples)


def measured_alone(kind: str, settings: dict[str, Any]) -> dict[str, float]:
    """Passes of the tower a step, images in them, and MiB of the process, which only this step has."""
    config = PreferenceBenchmark.model_validate(settings)
    with tempfile.TemporaryDirectory() as folder:
        parts = stepper(kind, config, Path(folder))
        parts.step()  # allocates the optimizer's state
        before = _forget()
        parts.images.clear()
        loss = parts.step()
        return {
            "passes": len(parts.images),
            "rows": sum(parts.images),
            "added": peak_memory_mib() - before,
            "peak": peak_memory_mib(),
            "loss": loss,
        }


def _forget() -> float:
    """Start the peak of this process anew (Linux); MiB that are in use."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_memory_mib()


def seconds_by_turns(settings: dict[str, Any]) -> dict[str, float]:
    """Median seconds of a step of each kind.

    Raises:
        ValueError: the first losses differ.
    """
    config = PreferenceBenchmark.model_validate(settings)
    with tempfile.TemporaryDirectory() as folder:
        steps = {kind: stepper(kind, config, Path(folder)).step for kind in KINDS}
        losses = {kind: step() for kind, step in steps.items()}
        if not all(math.isclose(loss, losses["TRL"], rel_tol=1e-4) for loss in losses.values()):
            raise ValueError(f"the losses of the first step differ: {losses}")
        timed = by_turns(dict(steps), config.repeats, lambda: None)
    return {kind: statistics.median(seconds) for kind, seconds in timed.items()}


def main() -> None:
    config = cli(PreferenceBenchmark, __doc__, local=False, overwrite=False).config
    settings = config.model_dump(mode="json")
    alone = {kind: apart(measured_alone, kind, settings) for kind in KINDS}
    seconds = apart(seconds_by_turns, settings)
    print(f"{'':12} {'passes':>7} {'rows of pixels':>15} {'ms a pair':>10} {'MiB of a step':>14} {'MiB in all':>11}")
    for kind in KINDS:
        row, ms = alone[kind], 1000 * seconds[kind] / config.batch_size
        print(f"{kind:12} {row['passes']:7.0f} {row['rows']:15.0f} {ms:10.2f} {row['added']:14.0f} {row['peak']:11.0f}")
    for kind in KINDS[:2]:
        print(f"{kind}: {seconds[kind] / seconds['TRL']:.2f} of TRL's seconds")


if __name__ == "__main__":
    main()
