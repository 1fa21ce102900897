"""The losses of ADPO (Huang et al., sections 4.1 to 4.4) as functions of log-probabilities.

The signs are those of equations 5 to 7: the policy descends -log sigmoid(M), the retriever ascends the reward R = -log
sigmoid(M). Algorithm 1 as printed has both the other way round: line 8 adds +log sigmoid(M) to a loss that line 11
descends, which raises the loss, and line 12 descends R grad log q, which makes negatives easier.

Letters: B pairs, N candidates of each.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

START = math.log(2)
"""-log sigmoid(0): loss and reward of a policy that is its reference."""


def preference_losses(margins_B: Tensor) -> Tensor:
    """-log sigmoid(M(theta)) (equations 2 and 5).

    Args:
        margins_B: beta times log(pi / pi_ref) of the chosen caption less that of the negative.
    """
    return F.softplus(-margins_B)


def draw(log_q_BN: Tensor, noise_BN: Tensor) -> Tensor:
    """One candidate of each pair (B,), drawn from q by Gumbel noise."""
    return (log_q_BN.detach() + noise_BN).argmax(dim=1)


def retriever_losses(rewards_B: Tensor, baseline: Tensor | float, log_q_B: Tensor) -> Tensor:
    """Losses whose descent ascends the expected reward (equation 7, REINFORCE), (B,).

    Args:
        log_q_B: of the drawn candidates.
    """
    return -(rewards_B.detach() - baseline) * log_q_B
