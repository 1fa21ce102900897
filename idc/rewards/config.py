"""Settings of a training by rewards, whatever the captioner. Loads no torch.

References: GRPO (Shao et al., arXiv 2402.03300), Dr. GRPO (Liu et al., 2503.20783), DAPO (Yu et al., 2503.14476), GSPO
(Zheng et al., 2507.18071), GDPO (Liu et al., 2601.05242), self-critical training (Rennie et al., CVPR 2017). r_i is the
reward of answer i of a group of G answers o_1 .. o_G to one pair, A_i its advantage, rho a ratio of probabilities of
the policy and of the policy that the answers were drawn from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.training.config import TrainConfig
from idc.util.model_faults import did_you_mean

SCENE_REWARDS = ("differences", "object", "change_type", "unchanged")
"""Rewards that compare with the scene of a rendered pair."""
REWARDS = (*SCENE_REWARDS, "cider")
"""Rewards by name; others are the user's functions, ``MODULE:FUNCTION``."""


class RewardSettings(ConfigModel):
    """What is drawn, what it earns, and the loss."""

    rewards: dict[str, float] = Field({"differences": 1.0, "cider": 0.3}, min_length=1)
    """Rewards and their weights. differences: F1 of the caption's claims, each weighted by the attributes that it
    names rightly, less what is invented. object, change_type: of pairs with a single change, the changed object and
    the type. unchanged: of unchanged pairs. cider: CIDEr-D against the pair's captions, with the document frequencies
    of the training split. MODULE:FUNCTION: a function of yours, `f(captions, row) -> numbers`, one for each caption;
    `row` has pair_id, captions, change_type and meta. An unfinished caption earns at most 0, and what repeats itself is
    paid by the share of its four-word sequences that differ."""
    group: int = Field(8, ge=1)  # G
    """Captions that are drawn of each pair."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits, of the draws and of the log-probabilities that are learned."""
    baseline: Literal["group", "greedy"] = "group"
    """Subtracted from a reward. group: the mean of the pair's captions, A_i = r_i - mean(r) (GRPO). greedy: the reward
    of the greedy caption (self-critical training)."""
    scale: Literal["none", "sum", "each"] = "none"
    """none: advantages as they are (Dr. GRPO). sum: A_i / (std(r) + 1e-4), the deviation of the group's weighted sums,
    with G - 1 (GRPO). each: every reward is divided by its own deviation before they are weighted and added (GDPO,
    whose second normalisation over the batch is left out: it would depend on how a batch is cut)."""
    ratio: Literal["token", "sequence"] = "token"
    """token: rho of each token (GRPO). sequence: one of each answer, the exponential of the mean over its tokens' log
    ratios (GSPO, equation 7)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The loss of a token is -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)."""
    clip_high: float = Field(0.2, gt=0)
    """See clip_low. DAPO: 0.28, so that rare tokens can grow."""
    length: Literal["answer", "group", "longest"] = "longest"
    """What the sum of an answer's token losses is divided by. answer: its length (GRPO). group: the mean length of the
    pair's answers (DAPO, equation 8, of one question; over a whole batch the loss would depend on how the batch is
    cut). longest: the longest possible answer, the same for all (Dr. GRPO): long and short answers learn alike."""
    kl: float = Field(0.0, ge=0)  # beta
    """Weight of the divergence from the model at the start of the training, by the estimator k3: exp(d) - d - 1 of each
    token, d = log p_ref - log p, not times rho, as TRL has it by default. 0: none, and no reference."""
    updates: int = Field(1, ge=1)  # mu
    """Optimizer steps with the same captions; train.steps counts them all."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        for name, weight in self.rewards.items():
            if name not in REWARDS and ":" not in name:
                hint = did_you_mean(name, REWARDS) or f"; available: {', '.join(REWARDS)}, MODULE:FUNCTION"
                yield f"rewards: no reward is called {name!r}{hint}"
            if not weight > 0:
                yield f"rewards: the weight of {name} is {weight}; give a positive one, or leave the reward out"
        if self.group == 1 and self.baseline == "group":
            yield "group=1: a caption alone is its own baseline and learns nothing; take group=8, or baseline=greedy"
        elif self.group == 1 and self.scale != "none":
            yield f"group=1: a caption alone has no deviation; take scale=none, or group=8 for scale={self.scale}"
        train: TrainConfig | None = getattr(self, "train", None)
        if train is not None and self.updates > 1:
            # Drawn captions are not part of a checkpoint: a run is resumed where new ones are drawn.
            counts = {name: getattr(train, name) for name in ("steps", "checkpoint_every", "log_every")}
            for name, count in counts.items():
                if count is None or count % self.updates:
                    yield f"train.{name}={count} is not a multiple of updates={self.updates}; give one that is"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for name in self.rewards:
            if ":" in name:
                try:
                    resolve_name(name)
                except (ImportError, AttributeError, ValueError) as error:
                    yield f"rewards: {name} cannot be imported ({error}); give MODULE:FUNCTION of a module on the path"
