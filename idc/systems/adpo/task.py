"""ADPO (Huang et al., sections 4.1 to 4.4): preferences of captions over drawn negatives, policy and retriever in one
training step; the training entry and the artifact.

The signs are those of equations 5 to 7: the policy descends -log sigmoid(M), the retriever ascends the reward R = -log
sigmoid(M). Algorithm 1 as printed has both the other way round: line 8 adds +log sigmoid(M) to a loss that line 11
descends, which raises the loss, and line 12 descends R grad log q, which makes negatives easier.

One vision pass a step serves the chosen caption and the negative, policy and reference. Letters: B pairs, N candidates;
2: the two answers about a pair, chosen and rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from idc.systems.adpo.config import AdpoJob
from idc.systems.adpo.data import PreferenceSamples, make_loaders, preference_parts
from idc.systems.adpo.retriever import Retriever, frame_size, save_retriever
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.family import Family
from idc.vlm.logps import sums_of_answers
from idc.vlm.policy import PolicyTask
from idc.vlm.system import SftTask, TunedSystem

Logs = dict[str, Tensor | float]

INITIAL_LOSS = math.log(2)
"""-log sigmoid(0): loss and reward while the policy equals its reference."""
RETRIEVER = "retriever"
"""Folder of the trained retriever in a run's folder."""


def draw_candidates(log_q_BN: Tensor, noise_BN: Tensor) -> Tensor:
    """One candidate of each pair (B,), drawn from q by Gumbel noise."""
    return (log_q_BN.detach() + noise_BN).argmax(dim=1)


class PreferenceTask(PolicyTask):
    """L = -log sigmoid(M(theta, phi)) for the policy (equation 5) and -(R - baseline) log q_phi(T') for the
    retriever (equation 7, REINFORCE; with objective=adpo), each averaged over samples."""

    baseline: Tensor
    calls: Tensor

    def __init__(self, job: AdpoJob, model: Any, family: Family, retriever: Retriever | None = None) -> None:
        super().__init__(job, model, family)
        self.job = job
        if retriever is not None:
            self.retriever = retriever
        # Part of the checkpoints, because a resumed run continues with them.
        self.register_buffer("baseline", torch.tensor(INITIAL_LOSS))
        self.register_buffer("calls", torch.tensor(0))
        self.parts: Sequence[PreferenceSamples] = ()
        self._rewards: list[Tensor] = []

    def set_caption_bank(self, parts: Sequence[PreferenceSamples]) -> None:
        """Draw from the captions of these folders, which share one bank."""
        self.parts = parts
        if self.job.retriever is not None:
            self.retriever.index_captions(parts[0].bank.texts)

    def param_groups(self) -> list[dict[str, Any]]:
        groups = super().param_groups()
        if self.job.retriever is not None and self.job.retriever.learns:
            optim = self.job.retriever.optim.model_dump()
            groups.append({"name": "retriever", "params": list(self.retriever.parameters()), **optim})
        return groups

    def base_parts(self) -> list[nn.Module]:
        return [*super().base_parts(), *([] if self.job.retriever is None else [self.retriever])]

    def training_step(self, batch: Batch) -> tuple[Tensor, Logs]:
        encoded = self.encode(batch)
        log_q_BN, cosines_BN = self._log_q(batch)
        picks_B1 = draw_candidates(log_q_BN, batch["noise"])[:, None]
        answers = self._answer_ids(batch, picks_B1)
        # The reference comes first, so that the policy's graph is the only one in memory.
        reference_K = self.reference_log_p(batch, answers, encoded)
        policy_K = self.answer_log_p(batch, answers, encoded)
        reference_B2, policy_B2 = (
            sums_of_answers(logs_K, answers)[0].view(-1, 2) for logs_K in (reference_K, policy_K)
        )
        ratios_B2 = policy_B2 - reference_B2
        margins_B = self.job.beta * (ratios_B2[:, 0] - ratios_B2[:, 1])  # equation 2
        losses_B = F.softplus(-margins_B)  # equation 5
        loss, rewards_B = losses_B.mean(), losses_B.detach()
        log_q_B1 = log_q_BN.gather(1, picks_B1)
        with torch.no_grad():
            logs: Logs = {"policy_loss": rewards_B.mean(), "margin": margins_B.mean(),
                          "reward_accuracy": (margins_B > 0).float().mean()}  # fmt: skip
            for number, name in enumerate(("chosen", "rejected")):
                logs[f"log_p_{name}"] = policy_B2[:, number].mean()
                logs[f"log_ratio_{name}"] = ratios_B2[:, number].mean()
            if self.job.retriever is not None:
                logs |= {
                    "reward": rewards_B.mean(),
                    "q_entropy": -(log_q_BN.exp() * log_q_BN).sum(dim=1).mean(),
                    "drawn_rank": (log_q_BN > log_q_B1).sum(dim=1).float().mean() + 1,
                    "drawn_cosine": cosines_BN.gather(1, picks_B1).mean(),
                }
        if self.job.retriever is not None and self.job.retriever.learns:
            baseline = 0.0 if self.job.retriever.baseline is None else self.baseline
            loss = loss - ((rewards_B - baseline) * log_q_B1[:, 0]).mean()
        self._update_baseline(rewards_B)
        return loss, logs

    def _log_q(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log q of the candidates and their cosines; uniform without a retriever."""
        if self.job.retriever is None:
            zeros = torch.zeros_like(batch["noise"])
            return zeros.log_softmax(dim=1), zeros
        log_q: tuple[Tensor, Tensor] = self.retriever(batch["frames"], batch["candidates"])
        return log_q

    def _answer_ids(self, batch: Batch, picks_B1: Tensor) -> list[list[Sequence[int]]]:
        ids = self.parts[0].bank.answers
        rejected = batch["candidates"].gather(1, picks_B1)[:, 0]
        return [
            [ids[number] for number in pair] for pair in zip(batch["chosen"].tolist(), rejected.tolist(), strict=True)
        ]

    @torch.no_grad()
    def _update_baseline(self, rewards_B: Tensor) -> None:
        """At the end of an optimizer step, the running mean of the rewards of all micro-batches and ranks: it does not
        depend on how the batch was cut, and is the same on all ranks."""
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


class Adpo(TunedSystem[AdpoJob]):
    """Tuning by preferences."""

    def training_modules(self, job: AdpoJob) -> dict[str, nn.Module]:
        return {} if job.retriever is None else {"retriever": Retriever(job.retriever)}

    def task(self, job: AdpoJob, model: Any, family: Family, modules: Mapping[str, nn.Module]) -> PreferenceTask:
        retriever = modules.get("retriever")
        assert retriever is None or isinstance(retriever, Retriever)
        return PreferenceTask(job, model, family, retriever)

    def loaders(self, job: AdpoJob, family: Family, context: Context) -> Loaders:
        return make_loaders(job, family, context, frame_size(job.retriever) if job.retriever else None)

    def before_training(self, job: AdpoJob, task: SftTask, loaders: Loaders, context: Context) -> None:
        assert isinstance(task, PreferenceTask)
        task.set_caption_bank(preference_parts(loaders))

    def exported(self, job: AdpoJob, state: Mapping[str, Tensor], context: Context) -> None:
        if job.retriever is not None and job.retriever.learns:
            prefix = "retriever.visual."
            visual = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
            save_retriever(job.retriever, visual, context.run_dir / RETRIEVER)

    def card(self, job: AdpoJob) -> str:
        if job.objective == "dpo":
            return "after direct preference optimization over drawn captions (DPO)."
        return "after direct preference optimization over captions drawn by a learned retriever (ADPO)."


SYSTEM = Adpo("adpo", AdpoJob)
train = SYSTEM.train
