"""ADPO: preferences of captions over drawn negatives, policy and retriever in one training step; its entry and
artifact.

One vision pass a step serves the chosen caption and all negatives, policy and reference. Letters: B pairs, K negatives,
N candidates, M = 1 + K + image negatives: the answers of a pair.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from idc.atomic import write_text
from idc.report.negatives_page import DrawnNegative, negatives_page
from idc.systems.adpo.caption_bank import is_true
from idc.systems.adpo.collapse import CollapseWatch
from idc.systems.adpo.config import ORDERS, AdpoJob
from idc.systems.adpo.data import PreferenceSamples, RankedSamples, make_loaders, preference_parts, visits
from idc.systems.adpo.preference_losses import (
    START,
    draw,
    draw_log_probabilities,
    preference_losses,
    retriever_losses,
)
from idc.systems.adpo.retriever import Retriever, frame_size, save_retriever
from idc.systems.adpo.stored_reference import StoredReference, reference_key
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.batch import encode_images
from idc.vlm.family import Family
from idc.vlm.logps import answer_log_probabilities
from idc.vlm.lora import without_adapters
from idc.vlm.sft import SftTask
from idc.vlm.system import TunedSystem

Logs = dict[str, Tensor | float]

NEGATIVES, RETRIEVER, REFERENCE = "negatives", "retriever", "reference"
"""In a run's folder: pages of drawn negatives, the trained retriever, stored log-probabilities."""


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
        self.register_buffer("baseline", torch.tensor(START + _more_than_one(job.negatives)))
        self.register_buffer("calls", torch.tensor(0))
        self.parts: Sequence[PreferenceSamples | RankedSamples] = ()
        self.truths = False
        self.watch = CollapseWatch(job)
        self._rewards: list[Tensor] = []
        self._last: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """Number of the optimizer step, from 0."""
        return int(self.calls) // self.job.train.grad_accumulation

    def param_groups(self) -> list[dict[str, Any]]:
        more = []
        if self.job.retriever is not None and self.job.retriever.learns:
            parameters = list(self.retriever.parameters())
            more = [{"name": "retriever", "params": parameters, **self.job.retriever.optim.model_dump()}]
        return super().param_groups() + more

    def base_parts(self) -> list[nn.Module]:
        return [*super().base_parts(), *self._frozen_models()]

    def _frozen_models(self) -> list[nn.Module]:
        models = [] if self.frozen is None else [self.frozen]
        return [*models, self.retriever] if self.job.retriever is not None else models

    def use(self, parts: Sequence[PreferenceSamples | RankedSamples], rank: int = 0) -> None:
        """Take the bank of these folders."""
        self.parts = parts
        # Of all pairs or of none: what is logged must have the same names on all ranks.
        self.truths = all(part.has_truths() for part in parts)
        self.watch.speaks = rank == 0
        if self.job.retriever is not None:
            self.retriever.read(parts[0].bank.texts)

    # -- a step --------------------------------------------------------------------------------------------------------

    def training_step(self, batch: Batch) -> tuple[Tensor, Logs]:
        encoded = self.encode(batch)
        log_q_BN, cosines_BN = self._retrieved(batch)
        picks_BK = draw(log_q_BN, batch["noise"], self.job.negatives)
        answers = self._asked(batch, picks_BK)
        # First the reference: the policy's graph is then the only one alive.
        reference_BM = self._reference(batch, answers, encoded, picks_BK)
        policy_BM = self._log_p(self.model, batch, answers, encoded)
        ratios_BM = policy_BM - reference_BM
        count = 1 + self.job.negatives
        rewards_B = preference_losses(self.job.beta * ratios_BM[:, :count])
        policy_loss = rewards_B.mean() + self.job.image_weight * self._image_losses(
            ratios_BM[:, count:], ratios_BM, batch
        )
        log_draws_B = draw_log_probabilities(log_q_BN, picks_BK)
        loss = policy_loss
        if self.job.retriever is not None and self.job.retriever.learns:
            retriever_loss = retriever_losses(rewards_B, self._subtracted(), log_draws_B).mean()
            policy_on, retriever_on = self._learning()
            loss = policy_on * policy_loss + retriever_on * retriever_loss
        logs = self._logs(batch, ratios_BM, policy_BM, policy_loss, log_q_BN, cosines_BN, picks_BK)
        self._count(rewards_B.detach(), logs)
        return loss, logs

    def _retrieved(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log q and cosines of the candidates; without a retriever the same for all."""
        if self.job.retriever is None:
            equal = torch.zeros_like(batch["noise"])
            return equal.log_softmax(dim=1), equal
        log_q: tuple[Tensor, Tensor] = self.retriever(batch["frames"], batch["candidates"])
        return log_q

    def _asked(self, batch: Batch, picks_BK: Tensor) -> list[list[tuple[int, str]]]:
        """(number in the bank, order of the images) of each pair's answers: chosen, negatives, image negatives."""
        drawn = batch["candidates"].gather(1, picks_BK).tolist()
        return [
            [(chosen, "right"), *((caption, "right") for caption in negatives),
             *((chosen, order) for order in self.job.image_negatives)]
            for chosen, negatives in zip(batch["chosen"].tolist(), drawn, strict=True)
        ]  # fmt: skip

    def _log_p(self, model: Any, batch: Batch, answers: Sequence[Sequence[tuple[int, str]]], encoded: Any) -> Tensor:
        """log p of each pair's answers (B, M)."""
        bank = self.parts[0].bank
        prompts, ids, images = [], [], []
        for pair, of_pair in enumerate(answers):
            for order in ("right", *self.job.image_negatives):  # in which _asked has them
                prompts.append(batch["prompts"][pair][order])
                ids.append([bank.answers[caption] for caption, shown in of_pair if shown == order])
                images.append([2 * pair + image for image in ORDERS[order]])
        totals, _ = answer_log_probabilities(model, prompts, ids, encoded, batch, images, self.family)
        return totals.view(len(answers), -1)

    @torch.no_grad()
    def _reference(
        self, batch: Batch, answers: Sequence[Sequence[tuple[int, str]]], encoded: Any, picks_BK: Tensor
    ) -> Tensor:
        """log p of the answers under the reference (B, M)."""
        if self.job.reference.by == "stored":
            chosen_B1, candidates_BN, more = batch["stored"].split(
                [1, batch["candidates"].shape[1], len(self.job.image_negatives)], dim=1
            )
            return torch.cat([chosen_B1, candidates_BN.gather(1, picks_BK), more], dim=1)
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

    def _image_losses(self, negatives_BI: Tensor, ratios_BM: Tensor, batch: Batch) -> Tensor:
        """The sum over the kinds of the mean over samples; a pair to which they say nothing counts as 0."""
        margins_BI = self.job.beta * (ratios_BM[:, :1] - negatives_BI)
        return (F.softplus(-margins_BI) * batch["changed"][:, None]).mean(dim=0).sum()

    # -- what goes on from step to step --------------------------------------------------------------------------------

    def _subtracted(self) -> Tensor | float:
        assert self.job.retriever is not None
        return 0.0 if self.job.retriever.baseline is None else self.baseline

    def _learning(self) -> tuple[float, float]:
        """1 or 0 for policy and retriever."""
        if self.job.alternate is None:
            return 1.0, 1.0
        policy, retriever = self.job.alternate
        of_policy = self.step % (policy + retriever) < policy
        return float(of_policy), float(not of_policy)

    @torch.no_grad()
    def _count(self, rewards_B: Tensor, logs: Logs) -> None:
        """Count the micro-batch. At the end of a step the baseline becomes the running mean of the rewards of all
        micro-batches and ranks, so that it does not depend on how the batch was cut, and is the same on all ranks."""
        self._rewards.append(rewards_B.mean())
        self.watch.add(logs)
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
        if self.step % self.job.train.log_every == 0:
            self.watch.look(self.step)

    # -- what is logged ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _logs(
        self, batch: Batch, ratios_BM: Tensor, policy_BM: Tensor, policy_loss: Tensor, log_q_BN: Tensor,
        cosines_BN: Tensor, picks_BK: Tensor,
    ) -> Logs:  # fmt: skip
        """``margin`` is M(theta, phi), ``ahead`` the share above 0. Of the negatives the mean over all K."""
        count = 1 + self.job.negatives
        margins_BK = self.job.beta * (ratios_BM[:, :1] - ratios_BM[:, 1:count])
        logs: Logs = {
            "policy_loss": policy_loss.detach(),
            "margin": margins_BK.mean(),
            "ahead": (margins_BK > 0).float().mean(),
            "log_p_chosen": policy_BM[:, 0].mean(),
            "log_p_rejected": policy_BM[:, 1:count].mean(),
            "log_ratio_chosen": ratios_BM[:, 0].mean(),
            "log_ratio_rejected": ratios_BM[:, 1:count].mean(),
        }
        for number, order in enumerate(self.job.image_negatives):
            margins_B = self.job.beta * (ratios_BM[:, 0] - ratios_BM[:, count + number]) * batch["changed"]
            logs[f"margin_{order}"] = margins_B.mean()
        q_BK = log_q_BN.gather(1, picks_BK).exp()
        ranks_BK = (log_q_BN[:, None] > log_q_BN.gather(1, picks_BK)[..., None]).sum(dim=2) + 1
        if self.job.retriever is not None:
            logs |= {
                "reward": preference_losses(self.job.beta * ratios_BM[:, :count]).mean(),
                "q_entropy": -(log_q_BN.exp() * log_q_BN).sum(dim=1).mean(),
                "q_largest": log_q_BN.exp().amax(dim=1).mean(),
                "drawn_rank": ranks_BK.float().mean(),
                "drawn_cosine": cosines_BN.gather(1, picks_BK).mean(),
            }
        drawn = batch["candidates"].gather(1, picks_BK).tolist()
        texts = self.parts[0].bank.texts
        if self.truths:
            true = [[is_true(texts[caption], truth) for caption in negatives]
                    for negatives, truth in zip(drawn, batch["truth"], strict=True)]  # fmt: skip
            logs["true_negatives"] = sum(map(sum, true)) / (len(true) * self.job.negatives)
        self._last = {
            "name": batch["name"], "row": batch["row"], "truth": batch["truth"], "chosen": batch["chosen"].tolist(),
            "drawn": drawn, "margin": margins_BK, "q": q_BK, "rank": ranks_BK,
        }  # fmt: skip
        return logs

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """As of the base class; rank 0 also writes a page of the negatives that were drawn last."""
        metrics = super().validate(loader, context)
        if context.rank == 0:
            self.watch.compare(metrics.get("CIDEr"), self.step)
            if self._last:
                page = context.run_dir / NEGATIVES / f"step_{self.step:08d}.html"
                page.parent.mkdir(exist_ok=True)
                write_text(page, negatives_page(self._drawn(), self.step))
        return metrics

    def _drawn(self) -> list[DrawnNegative]:
        last, bank = self._last, self.parts[0].bank
        q, ranks, margins = (last[key].float().cpu().tolist() for key in ("q", "rank", "margin"))
        negatives = []
        for pair, (part, row) in enumerate(last["row"]):
            before, after = self.parts[part].images(row)
            for number, caption in enumerate(last["drawn"][pair]):
                truth = last["truth"][pair]
                negatives.append(DrawnNegative(
                    pair_id=last["name"][pair], before=before, after=after,
                    chosen=bank.texts[last["chosen"][pair]], negative=bank.texts[caption],
                    margin=margins[pair][number],
                    q=q[pair][number] if self.job.retriever is not None else None, rank=int(ranks[pair][number]),
                    true=None if truth is None else is_true(bank.texts[caption], truth),
                ))  # fmt: skip
        return negatives


def _more_than_one(negatives: int) -> float:
    """Added to the loss at the start, ln 2, by further negatives: it is ln(1 + K)."""
    return float(torch.log(torch.tensor((1 + negatives) / 2)))


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
        stored = None
        if job.reference.by == "stored":
            folder = Path(job.reference.folder or context.run_dir / REFERENCE)
            stored = StoredReference(folder, reference_key(job))
            stored.refuse_other()
        return make_loaders(job, family, context, frame_size(job.retriever) if job.retriever else None, stored)

    def before_training(self, job: AdpoJob, task: SftTask, loaders: Loaders, context: Context) -> None:
        if isinstance(task, PreferenceTask):
            parts = preference_parts(loaders)
            task.use(parts, context.rank)
            if parts[0].stored is not None:
                parts[0].stored.prepare(parts, visits(job, loaders), task, context)

    def exported(self, job: AdpoJob, state: Mapping[str, Tensor], context: Context) -> None:
        if job.retriever is not None and job.retriever.learns:
            prefix = "retriever.visual."
            visual = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
            save_retriever(job.retriever, visual, context.run_dir / RETRIEVER)

    def trained_on(self, job: AdpoJob) -> str:
        ranked = {} if job.preferences is None else {"pairs": job.preferences, "more_pairs": ()}
        return super().trained_on(job.model_copy(update=ranked))

    def card(self, job: AdpoJob) -> str:
        return {
            "sft": super().card(job),
            "dpo": "after direct preference optimization over drawn captions (DPO).",
            "adpo": "after direct preference optimization over captions that a learned retriever drew (ADPO).",
        }[job.objective]


SYSTEM = Adpo("adpo", AdpoJob)
train = SYSTEM.train
