"""Advantages and the loss of drawn captions, and a step of the training from draws to loss, whatever the captioner.

Letters: R rewards, B pairs, G answers to each, A = B * G answers pair by pair, K tokens of all answers, one after
another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.rewards.config import RewardSettings
from idc.rewards.rewards import DrawnCaption, Rewards, Row

_EPSILON = 1e-4
"""Added to deviations, as in TRL."""
_DRAWS = 5
"""Last word of the seeds of draws; others: :mod:`idc.training.data`."""

Answers = Sequence[Sequence[DrawnCaption]]
_Tokens = Sequence[Sequence[Sequence[int]]]


def draws_of(seed: int, epoch: int, index: int, group: int, longest: int) -> Tensor:
    """Uniform numbers (G, T) in [0, 1) of a sample, one for each token of each of its answers. They depend on (seed,
    epoch, index) and the number of the answer alone."""
    return torch.from_numpy(np.random.default_rng((seed, epoch, index, _DRAWS)).random((group, longest)))


def collate_draws(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``visit``, part, sample and epoch, which name the draws, and ``row``, the pair: lists of B; ``draws`` (B, G,
    T)."""
    lists: dict[str, Any] = {name: [sample[name] for sample in samples] for name in ("visit", "row")}
    return lists | {"draws": torch.stack([sample["draws"] for sample in samples])}


def advantages(
    rewards_RBG: Tensor, weights_R: Tensor, settings: RewardSettings, baselines_RB: Tensor | None = None
) -> Tensor:
    """Advantages (B, G). ``baselines_RB``: rewards of the greedy answers, with baseline=greedy."""
    weights_R11 = weights_R[:, None, None]
    baselines_RB1 = rewards_RBG.mean(dim=2, keepdim=True) if baselines_RB is None else baselines_RB[:, :, None]
    centred_RBG = rewards_RBG - baselines_RB1
    if settings.scale == "each":
        centred_RBG = centred_RBG / (rewards_RBG.std(dim=2, keepdim=True) + _EPSILON)
    total_BG = (weights_R11 * centred_RBG).sum(dim=0)
    if settings.scale == "sum":
        total_BG = total_BG / ((weights_R11 * rewards_RBG).sum(dim=0).std(dim=1, keepdim=True) + _EPSILON)
    return total_BG


def policy_loss(
    log_p_K: Tensor,
    drawn_K: Tensor,
    counts_A: Tensor,
    advantages_A: Tensor,
    settings: RewardSettings,
    longest: int,
    reference_K: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, a mean over answers, and values to log.

    Args:
        log_p_K: log-probabilities of the policy.
        drawn_K: those of the policy that the answers were drawn from.
        counts_A: tokens of each answer, the end token included.
        longest: tokens of the longest possible answer.
        reference_K: log-probabilities of the reference, with settings.kl.
    """
    answers_K = torch.arange(len(counts_A), device=log_p_K.device).repeat_interleave(counts_A)
    log_ratio_K = log_p_K - drawn_K
    if settings.ratio == "sequence":
        sums_A = torch.zeros_like(advantages_A, dtype=log_p_K.dtype).index_add(0, answers_K, log_ratio_K)
        log_ratio_K = (sums_A / counts_A)[answers_K]
    ratio_K = log_ratio_K.exp()
    clipped_K = ratio_K.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    advantages_K = advantages_A[answers_K]
    losses_K = -torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K)
    logs = {"clipped": (ratio_K != clipped_K).float().mean(), "ratio": ratio_K.mean().detach()}
    if reference_K is not None:
        distance_K = reference_K - log_p_K
        divergence_K = distance_K.exp() - distance_K - 1
        losses_K = losses_K + settings.kl * divergence_K
        logs["kl"] = divergence_K.mean().detach()
    if settings.length == "longest":
        return losses_K.sum() / (longest * len(counts_A)), logs
    lengths_A = counts_A.float()
    if settings.length == "group":
        lengths_A = lengths_A.view(-1, settings.group).mean(dim=1).repeat_interleave(settings.group)
    return (losses_K / lengths_A[answers_K]).sum() / len(counts_A), logs


@dataclass
class _Rollout:
    """Drawn answers with their advantages; ``drawn_K`` from the first update on."""

    answers: Answers
    advantages_A: Tensor
    logs: Mapping[str, float]
    drawn_K: Tensor | None = None
    reference_K: Tensor | None = None


class GroupPolicy:
    """A step of the training: draws answers, or takes those of the updates before, and returns the loss.

    Args:
        longest: tokens of the longest possible answer.
        micro_batches: batches of one optimizer step.
    """

    def __init__(self, settings: RewardSettings, rewards: Rewards, longest: int, micro_batches: int) -> None:
        self.settings, self.rewards, self.longest, self.micro_batches = settings, rewards, longest, micro_batches
        self._rollouts: dict[Hashable, _Rollout] = {}

    def step(
        self,
        batch: Mapping[str, Any],
        sample: Callable[[bool], Answers],
        log_p: Callable[[_Tokens], Tensor],
        reference: Callable[[_Tokens], Tensor],
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The loss of a batch, and values to log.

        Args:
            batch: of :func:`collate_draws`; the same visits in consecutive steps are updates with the same answers.
            sample: draws the answers, or, given True, returns the greedy one of each pair.
            log_p: log-probabilities (K,) of the tokens of each pair's answers, differentiable.
            reference: the same of the reference, used with settings.kl.
        """
        visits = tuple(batch["visit"])
        rollout = self._rollouts.get(visits)
        if rollout is None:
            rollout = self._draw(batch["row"], sample)
            if self.settings.updates > 1:
                self._rollouts[visits] = rollout
                for old in list(self._rollouts)[: -self.micro_batches]:
                    del self._rollouts[old]
        tokens = [[answer.ids for answer in group] for group in rollout.answers]
        if self.settings.kl and rollout.reference_K is None:
            with torch.no_grad():  # before the policy's graph is in memory
                rollout.reference_K = reference(tokens)
        log_p_K = log_p(tokens)
        if rollout.drawn_K is None:
            rollout.drawn_K = log_p_K.detach()
        counts_A = torch.tensor([len(ids) for group in tokens for ids in group], device=log_p_K.device)
        loss, logs = policy_loss(
            log_p_K, rollout.drawn_K, counts_A, rollout.advantages_A.to(log_p_K), self.settings, self.longest,
            rollout.reference_K,
        )  # fmt: skip
        times = {name: 0.0 for name in rollout.logs if name.startswith("seconds/")}
        logged, rollout.logs = rollout.logs, {**rollout.logs, **times}  # an update with these answers draws nothing
        return loss, {**logs, **logged}

    def _draw(self, rows: Sequence[Row], sample: Callable[[bool], Answers]) -> _Rollout:
        clocks = [time.perf_counter()]
        answers = sample(False)
        greedy = sample(True) if self.settings.baseline == "greedy" else None
        clocks.append(time.perf_counter())
        rewards_RBG = torch.from_numpy(self.rewards(answers, rows))
        baselines_RB = None if greedy is None else torch.from_numpy(self.rewards(greedy, rows))[:, :, 0]
        weights_R = torch.tensor(list(self.rewards.weights.values()), dtype=rewards_RBG.dtype)
        advantages_BG = advantages(rewards_RBG, weights_R, self.settings, baselines_RB)
        clocks.append(time.perf_counter())
        flat = [answer for group in answers for answer in group]
        means = zip(self.rewards.weights, rewards_RBG.mean(dim=(1, 2)).tolist(), strict=True)
        sampling, rewarding = (self.micro_batches * (after - before) for before, after in pairwise(clocks))
        logs = {
            **{f"reward/{name}": value for name, value in means},
            "reward": float((weights_R[:, None, None] * rewards_RBG).sum(dim=0).mean()),
            "groups_that_differ": float((advantages_BG.abs().amax(dim=1) > 0).double().mean()),
            "answer_tokens": float(np.mean([len(answer.ids) for answer in flat])),
            "unfinished": float(np.mean([not answer.ended for answer in flat])),
            "seconds/sampling": sampling,
            "seconds/rewards": rewarding,
        }
        return _Rollout(answers, advantages_BG.flatten(), logs)
