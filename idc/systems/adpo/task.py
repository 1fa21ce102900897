"""ADPO: preferences of captions over drawn negatives, policy and retriever in one training step; its entry and
artifact.

One vision pass a step serves the chosen caption and the negative, policy and reference. Letters: B pairs, N candidates;
2: the answers of a pair, chosen and rejected.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from idc.systems.adpo.config import AdpoJob
from idc.systems.adpo.data import PreferenceSamples, make_loaders, preference_parts
from idc.systems.adpo.preference_losses import START, draw, preference_losses, retriever_losses
from idc.systems.adpo.retriever import Retriever, frame_size, save_retriever
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.batch import encode_images
from idc.vlm.family import Family
from idc.vlm.logps import answer_log_probabilities
from idc.vlm.sft import SftTask
from idc.vlm.system import TunedSystem
from idc.vlm.tuning import without_adapters

Logs = dict[str, Tensor | float]

RETRIEVER = "retriever"
"""In a run's folder: the trained retriever."""


class PreferenceTask(SftTask):
    """L = -log sigmoid(M(theta, phi)) for the policy (equation 5) and -(R - baseline) log q_phi(T') for the retriever
    (equation 7), each a mean over samples.

    Args:
        job: of objective dpo or adpo.
        model, family: as of :class:`idc.vlm.sft.SftTask`.
        retriever: with adpo.
    """

    baseline: Tensor
    calls: Tensor

    def __init__(self, job: AdpoJob, model: Any, family: Family, retriever: Retriever | None = None) -> None:
        super().__init__(model, family, job.tune, job.generation)
        self.job = job
        if retriever is not None:
            self.retriever = retriever
        # After the model was prepared: the copy computes in the same number formats, so that the first margin is 0.
        self.frozen = copy.deepcopy(self.model).requires_grad_(False) if job.reference.by == "copy" else None
        # Both are stored: a run goes on with them.
        self.register_buffer("baseline", torch.tensor(START))
        self.register_buffer("calls", torch.tensor(0))
        self.parts: Sequence[PreferenceSamples] = ()
        self._rewards: list[Tensor] = []

    def param_groups(self) -> list[dict[str, Any]]:
        more = []
        if self.job.retriever is not None and self.job.retriever.learns:
            parameters = list(self.retriever.parameters())
            more = [{"name": "retriever", "params": parameters, **self.job.retriever.optim.model_dump()}]
        return super().param_groups() + more

    def base_parts(self) -> list[nn.Module]:
        more = [] if self.frozen is None else [self.frozen]
        return [*super().base_parts(), *more, *([self.retriever] if self.job.retriever is not None else [])]

    def use(self, parts: Sequence[PreferenceSamples]) -> None:
        """Take the bank of these folders."""
        self.parts = parts
        if self.job.retriever is not None:
            self.retriever.read(parts[0].bank.texts)

    def training_step(self, batch: Batch) -> tuple[Tensor, Logs]:
        encoded = self.encode(batch)
        log_q_BN, cosines_BN = self._retrieved(batch)
        picks_B1 = draw(log_q_BN, batch["noise"])[:, None]
        answers = self._answer_ids(batch, picks_B1)
        # First the reference: the policy's graph is then the only one alive.
        reference_B2 = self._reference(batch, answers, encoded)
        policy_B2 = self._log_p(self.model, batch, answers, encoded)
        ratios_B2 = policy_B2 - reference_B2
        rewards_B = preference_losses(self._margins(ratios_B2))
        loss = rewards_B.mean()
        logs = self._logs(ratios_B2, policy_B2, log_q_BN, cosines_BN, picks_B1)
        if self.job.retriever is not None and self.job.retriever.learns:
            log_q_B = log_q_BN.gather(1, picks_B1)[:, 0]
            baseline = 0.0 if self.job.retriever.baseline is None else self.baseline
            loss = loss + retriever_losses(rewards_B, baseline, log_q_B).mean()
        self._count(rewards_B.detach())
        return loss, logs

    def _margins(self, ratios_B2: Tensor) -> Tensor:
        """M(theta) of equation 2, (B,)."""
        return self.job.beta * (ratios_B2[:, 0] - ratios_B2[:, 1])

    def _retrieved(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log q and cosines of the candidates; without a retriever the same for all."""
        if self.job.retriever is None:
            equal = torch.zeros_like(batch["noise"])
            return equal.log_softmax(dim=1), equal
        log_q: tuple[Tensor, Tensor] = self.retriever(batch["frames"], batch["candidates"])
        return log_q

    def _answer_ids(self, batch: Batch, picks_B1: Tensor) -> list[list[Sequence[int]]]:
        """Ids of each pair's answers: chosen, rejected."""
        ids = self.parts[0].bank.answers
        rejected = batch["candidates"].gather(1, picks_B1)[:, 0]
        return [
            [ids[number] for number in pair] for pair in zip(batch["chosen"].tolist(), rejected.tolist(), strict=True)
        ]

    def _log_p(self, model: Any, batch: Batch, answers: Sequence[Sequence[Sequence[int]]], encoded: Any) -> Tensor:
        """log p of each pair's answers (B, 2)."""
        images = [[2 * pair, 2 * pair + 1] for pair in range(len(answers))]
        totals, _ = answer_log_probabilities(model, batch["prompt"], answers, encoded, batch, images, self.family)
        return totals.view(len(answers), -1)

    @torch.no_grad()
    def _reference(self, batch: Batch, answers: Sequence[Sequence[Sequence[int]]], encoded: Any) -> Tensor:
        """log p of the answers under the reference (B, 2)."""
        model = self.model if self.frozen is None else self.frozen
        with without_adapters(model):  # of a copy they are as they started, and change nothing
            if self._vision_is_trained():
                encoded = encode_images(model, batch, self.family)
            return self._log_p(model, batch, answers, encoded)

    def _vision_is_trained(self) -> bool:
        """Whether tower or projector move, as weights or by adapters: the reference then encodes for itself."""
        return any(
            parameter.requires_grad and (self.family.is_tower(name) or self.family.is_projector(name))
            for name, parameter in self.model.named_parameters()
        )

    @torch.no_grad()
    def _count(self, rewards_B: Tensor) -> None:
        """Count the micro-batch. At the end of a step the baseline becomes the running mean of the rewards of all
        micro-batches and ranks, so that it does not depend on how the batch was cut, and is the same on all ranks."""
        self._rewards.append(rewards_B.mean())
        self.calls += 1
        if int(self.calls) % self.job.train.grad_accumulation:
            return
        decay = self.job.retriever.baseline if self.job.retriever is not None else None
        if decay is not None:
            mean = torch.stack(self._rewards).mean()
            if dist.is_available() and dist.is_initialized():
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
            self.baseline.mul_(decay).add_((1 - decay) * mean)
        self._rewards = []

    @torch.no_grad()
    def _logs(
        self, ratios_B2: Tensor, policy_B2: Tensor, log_q_BN: Tensor, cosines_BN: Tensor, picks_B1: Tensor
    ) -> Logs:
        """``margin`` is M(theta, phi), ``ahead`` the share above 0."""
        margins_B = self._margins(ratios_B2)
        losses = preference_losses(margins_B).mean()
        logs: Logs = {"policy_loss": losses, "margin": margins_B.mean(), "ahead": (margins_B > 0).float().mean()}
        for number, name in enumerate(("chosen", "rejected")):
            logs |= {
                f"log_p_{name}": policy_B2[:, number].mean(), f"log_ratio_{name}": ratios_B2[:, number].mean()
            }  # fmt: skip
        if self.job.retriever is not None:
            logs |= {
                "reward": losses,
                "q_entropy": -(log_q_BN.exp() * log_q_BN).sum(dim=1).mean(),
                "drawn_rank": (log_q_BN > log_q_BN.gather(1, picks_B1)).sum(dim=1).float().mean() + 1,
                "drawn_cosine": cosines_BN.gather(1, picks_B1).mean(),
            }
        return logs


class Adpo(TunedSystem[AdpoJob]):
    """Supervised tuning, or preferences; ``objective`` decides."""

    def training_modules(self, job: AdpoJob) -> dict[str, nn.Module]:
        return {} if job.retriever is None else {"retriever": Retriever(job.retriever)}

    def task(self, job: AdpoJob, model: Any, family: Family, modules: Mapping[str, nn.Module]) -> SftTask:
        if job.objective == "sft":
            return super().task(job, model, family, modules)
        retriever = modules.get("retriever")
        assert retriever is None or isinstance(retriever, Retriever)
        return PreferenceTask(job, model, family, retriever)

    def loaders(self, job: AdpoJob, family: Family, context: Context) -> Loaders:
        if job.objective == "sft":
            return super().loaders(job, family, context)
        return make_loaders(job, family, context, frame_size(job.retriever) if job.retriever else None)

    def before_training(self, job: AdpoJob, task: SftTask, loaders: Loaders, context: Context) -> None:
        if isinstance(task, PreferenceTask):
            task.use(preference_parts(loaders))

    def exported(self, job: AdpoJob, state: Mapping[str, Tensor], context: Context) -> None:
        if job.retriever is not None and job.retriever.learns:
            prefix = "retriever.visual."
            visual = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
            save_retriever(job.retriever, visual, context.run_dir / RETRIEVER)

    def card(self, job: AdpoJob) -> str:
        return {
            "sft": super().card(job),
            "dpo": "after direct preference optimization over drawn captions (DPO).",
            "adpo": "after direct preference optimization over captions that a learned retriever drew (ADPO).",
        }[job.objective]


SYSTEM = Adpo("adpo", AdpoJob)
train = SYSTEM.train
