"""The losses of ADPO (Huang et al., sections 4.1 to 4.4) as functions of log-probabilities.

The signs are those of equations 5 to 7: the policy descends -log sigmoid(M), the retriever ascends the reward R = -log
sigmoid(M). Algorithm 1 as printed has both the other way round: line 8 adds +log sigmoid(M) to a loss that line 11
descends, which raises the loss, and line 12 descends R grad log q, which makes negatives easier.

Letters: B pairs, K negatives of each, N candidates of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

START = math.log(2)
"""-log sigmoid(0): loss and reward of a policy that is its reference, with one negative."""


def preference_losses(scores_BM: Tensor) -> Tensor:
    """-log of the probability that the first of M = 1 + K answers is the first of a Plackett-Luce ranking (B,). With
    one negative this is -log sigmoid(M(theta)) (equations 2 and 5).

    Args:
        scores_BM: beta log(pi / pi_ref) of each answer, the chosen one first.
    """
    return -scores_BM.log_softmax(dim=1)[:, 0]


def draw(log_q_BN: Tensor, noise_BN: Tensor, count: int) -> Tensor:
    """``count`` different candidates of each pair (B, K), drawn one after another from q by Gumbel noise."""
    return (log_q_BN.detach() + noise_BN).topk(count, dim=1).indices


def draw_log_probabilities(log_q_BN: Tensor, picks_BK: Tensor) -> Tensor:
    """The log-probability of drawing these candidates in this order without putting any back (B,)."""
    log_q_BK = log_q_BN.gather(1, picks_BK)
    taken_BK = log_q_BK.exp().cumsum(dim=1)[:, :-1]
    # Of the first nothing is taken yet. A candidate with nearly all of q leaves 0 by rounding.
    left_BK = (1 - torch.cat([torch.zeros_like(log_q_BK[:, :1]), taken_BK], dim=1)).clamp(min=1e-6)
    return (log_q_BK - left_BK.log()).sum(dim=1)


def retriever_losses(rewards_B: Tensor, baseline: Tensor | float, log_draws_B: Tensor) -> Tensor:
    """Losses whose descent ascends the expected reward (equation 7, REINFORCE), (B,)."""
    return -(rewards_B.detach() - baseline) * log_draws_B
