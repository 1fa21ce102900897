"""A step of GRPO over one of TRL's trainer, on the small base that comes with the program, and the share of sampling.

    python -m benchmarks.grpo pairs=data/demo/pairs

Both take the same pairs, draw as many captions of each, calculate the same rewards and update all weights once. TRL is
among the development requirements.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from benchmarks.measurement import Row, by_turns, markdown
from benchmarks.tiny_vlm import processor_of
from idc.config import ConfigModel, cli, load

if TYPE_CHECKING:
    from idc.systems.grpo.config import GrpoJob
    from idc.systems.grpo.data import DrawnDialogues
    from idc.systems.grpo.task import GrpoTask

RATE = 2e-4


class GrpoBenchmark(ConfigModel):
    """A step by both trainers, in one thread."""

    pairs: str = "data/demo/pairs"
    """Folder of pairs with scenes."""
    batch: int = Field(16, ge=1)
    """Pairs a step."""
    repeats: int = Field(10, ge=1)
    """Timed steps of each, after one warm-up."""


class RewardedStep:
    """A step of ours: samples from the folder, draws, rewards, update."""

    def __init__(self, config: GrpoBenchmark, job: GrpoJob, task: GrpoTask, dataset: DrawnDialogues) -> None:
        import torch

        self.job, self.task, self.dataset, self.batch, self.number = job, task, dataset, config.batch, 0
        self.optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=RATE)
        self.logs: list[Mapping[str, Any]] = []

    def indices(self) -> range:
        self.number += 1
        return range(self.number * self.batch, (self.number + 1) * self.batch)

    def __call__(self) -> None:
        from idc.systems.grpo.data import collate_drawn

        samples = [self.dataset.get(index, 0) for index in self.indices()]
        batch = {**collate_drawn(samples, self.task.family), "num_samples": self.batch}
        loss, logs = self.task.training_step(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.logs.append(logs)


class TrlStep(RewardedStep):
    """The same by TRL."""

    def __init__(self, config: GrpoBenchmark, job: GrpoJob, task: GrpoTask, dataset: DrawnDialogues) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        super().__init__(config, job, task, dataset)
        task.family.tokenizer.padding_side = "left"
        self.trainer = GRPOTrainer(
            model=task.model,
            reward_funcs=[self._reward(name) for name in job.rewards],
            args=GRPOConfig(
                output_dir=tempfile.gettempdir(), loss_type="dr_grpo", scale_rewards="none", num_generations=job.group,
                reward_weights=list(job.rewards.values()), max_completion_length=job.generation.max_new_tokens,
                per_device_train_batch_size=config.batch * job.group, gradient_checkpointing=False, report_to="none",
                use_cpu=True, bf16=False,
            ),
            train_dataset=Dataset.from_list([{"prompt": "unused"}]),
            processing_class=processor_of(task.family),
        )  # fmt: skip
        self.trainer.current_gradient_accumulation_steps = 1
        task.model.train()

    def _reward(self, name: str) -> Callable[..., Any]:
        function = self.task.policy.rewards.functions[name]

        def reward(completions: Any, row: Any, **_: Any) -> list[float]:
            texts = [completion[0]["content"] for completion in completions]
            return [float(function([text], pair)[0]) for text, pair in zip(texts, row, strict=True)]

        return reward

    def __call__(self) -> None:
        from PIL import Image

        from idc.data.images import decode_image
        from idc.data.schema import IMAGE
        from idc.rewards.rewards import with_meta

        content: list[dict[str, str]] = []
        for number, part in enumerate(self.job.prompt.text.split(IMAGE)):
            content += [{"type": "image"}] * (number > 0) + [{"type": "text", "text": part}]
        rows = []
        for index in self.indices():
            stored = self.dataset.rows[index]
            images = [Image.fromarray(decode_image(stored[side])) for side in ("before", "after")]
            example = {"prompt": [{"role": "user", "content": content}], "images": images, "row": with_meta(stored)}
            rows += [example] * self.job.group
        self.trainer._step = 0  # draw anew
        loss = self.trainer._compute_loss(self.task.model, self.trainer._prepare_inputs(rows))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def steps_of(config: GrpoBenchmark) -> dict[str, RewardedStep]:
    from idc.rewards.rewards import Rewards, training_rows
    from idc.systems.grpo.config import GrpoJob
    from idc.systems.grpo.data import DrawnDialogues
    from idc.systems.grpo.task import GrpoTask
    from idc.vlm.base import find_base, load_model
    from idc.vlm.chat import Chat

    job = load(GrpoJob, "jobs/configs/grpo/small.yaml", {"pairs": config.pairs, "train.batch_size": config.batch})
    base = find_base(job.base)
    rewards = Rewards(job.rewards, training_rows([job.pairs]))
    steps: dict[str, RewardedStep] = {}
    for name, kind in {"ours": RewardedStep, "TRL": TrlStep}.items():
        task = GrpoTask(job, load_model(base.folder, job.base), base.family, rewards)
        steps[name] = kind(config, job, task, DrawnDialogues(job, job.pairs, 0, Chat(base.family)))
    return steps


def measure(config: GrpoBenchmark) -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    steps = steps_of(config)
    for step in steps.values():
        step()
    steps["ours"].logs.clear()
    seconds = by_turns(dict(steps), config.repeats)
    yield Row("a step of GRPO, here over TRL", "s", seconds["ours"], seconds["TRL"])
    for part in ("sampling", "rewards"):
        shares = [logs[f"seconds/{part}"] for logs in steps["ours"].logs]
        yield Row(f"{part} over a step", "s", shares, seconds["ours"])


def main() -> None:
    print(markdown(measure(cli(GrpoBenchmark, __doc__, local=False, overwrite=False).config)))


if __name__ == "__main__":
    main()
