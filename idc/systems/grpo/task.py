"""GRPO: a vision-language model tuned by what its own captions earn; the training entry and the artifact.

One vision pass a step serves draws and learning; the answers to a pair are one row behind their prompt
(:func:`idc.vlm.logps.answer_log_probabilities`). Letters: B pairs, K tokens of all answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from idc.rewards.policy import Answers, GroupPolicy
from idc.rewards.rewards import DrawnCaption, Rewards, training_rows
from idc.systems.grpo.config import GrpoJob
from idc.systems.grpo.data import make_loaders
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.family import Family
from idc.vlm.generate import generate
from idc.vlm.policy import PolicyTask
from idc.vlm.system import TunedSystem


class GrpoTask(PolicyTask):
    """The loss of :func:`idc.rewards.policy.policy_loss`, averaged over pairs. Validation is that of SFT."""

    def __init__(self, job: GrpoJob, model: Any, family: Family, rewards: Rewards) -> None:
        super().__init__(job, model, family, has_reference=job.kl > 0)
        self.job = job
        self.policy = GroupPolicy(job, rewards, job.generation.max_new_tokens, job.train.grad_accumulation)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        encoded = self.encode(batch)
        settings = {"encoded": encoded, "temperature": self.job.temperature}
        return self.policy.step(
            batch,
            sample=partial(self._sample, batch, encoded),
            log_p=partial(self.answer_log_p, batch, **settings),
            reference=partial(self.reference_log_p, batch, **settings),
        )

    def _sample(self, batch: Batch, encoded: Any, greedy: bool) -> Answers:
        pixels = {key: batch[key] for key in self.family.pixel_keys if key in batch}
        search = self.job.generation.model_copy(update={"beams": 1})
        options = {} if greedy else {"hypotheses": self.job.group, "draws": batch["draws"]}
        training = self.training
        self.set_training(False)  # recomputed activations would leave no cache of keys and values
        hypotheses = generate(
            self.model, {**batch["padded"], **pixels}, encoded, self.family, search,
            temperature=self.job.temperature, **options,
        )  # fmt: skip
        self.set_training(training)
        return [
            [DrawnCaption(each.ids, self.chat.decode(each.ids), each.ended) for each in group] for group in hypotheses
        ]


class Grpo(TunedSystem[GrpoJob]):
    """Tuning by rewards."""

    def task(self, job: GrpoJob, model: Any, family: Family, modules: Mapping[str, nn.Module]) -> GrpoTask:
        return GrpoTask(job, model, family, Rewards(job.rewards, training_rows((job.pairs, *job.more_pairs))))

    def loaders(self, job: GrpoJob, family: Family, context: Context) -> Loaders:
        return make_loaders(job, family, context)

    def card(self, job: GrpoJob) -> str:
        return f"after group-relative policy optimization by rewards ({', '.join(job.rewards)})."


SYSTEM = Grpo("grpo", GrpoJob)
train = SYSTEM.train
