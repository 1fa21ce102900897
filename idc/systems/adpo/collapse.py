"""Signs of a training that goes wrong, each as one warning that names the setting to change."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from idc import logs
from idc.systems.adpo.config import AdpoJob

LARGEST_SHARE = 0.95
"""Mean of the largest q among the candidates, above which the retriever draws one caption for each pair."""
FALLEN = 5.0
"""Nats that both captions' log-probabilities lie below the reference's, on average."""
WORSE = 0.9
"""Share of the best CIDEr below which captions count as worse, while margins grow."""


class CollapseWatch:
    """Means of what a step logs since the last look, and the warnings; each is given once in a run of the program."""

    def __init__(self, job: AdpoJob) -> None:
        self.job = job
        self._sums: dict[str, Tensor | float] = {}
        self._count = 0
        self._warned: set[str] = set()
        self._margin = -math.inf
        self.speaks = True
        """Whether this process, of all of a run, gives the warnings."""
        self._best: tuple[float, float] | None = None

    def add(self, values: Mapping[str, Tensor | float]) -> None:
        """What a micro-batch logs."""
        self._count += 1
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def look(self, step: int) -> None:
        """Compare the means since the last look with the limits."""
        means = {name: float(torch.as_tensor(value)) / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        self._margin = means["margin"]
        if self.job.retriever is not None and self.job.retriever.learns and means["q_largest"] > LARGEST_SHARE:
            self._warn(
                "q", step,
                f"the retriever gives one candidate {means['q_largest']:.0%} of its probability, and explores no "
                f"others; raise retriever.tau (now {self.job.retriever.tau:g}) or lower retriever.optim.lr",
            )  # fmt: skip
        if means["log_ratio_chosen"] < -FALLEN and means["log_ratio_rejected"] < -FALLEN:
            self._warn(
                "log_p", step,
                f"the right captions are {-means['log_ratio_chosen']:.1f} nats less probable than at the start, the "
                f"negatives {-means['log_ratio_rejected']:.1f}: both fall; raise beta (now {self.job.beta:g}), lower "
                "tune.language_optim.lr, or train fewer steps",
            )  # fmt: skip

    def compare(self, score: float | None, step: int) -> None:
        """Compare a validation's CIDEr with the best before."""
        if score is None:
            return
        if self._best is not None and score < WORSE * self._best[0] and self._margin > self._best[1]:
            self._warn(
                "captions", step,
                f"the margin grew from {self._best[1]:.2f} to {self._margin:.2f} while CIDEr fell from "
                f"{self._best[0]:.3f} to {score:.3f}: preferences are won without better captions; lower "
                "tune.language_optim.lr or train fewer steps, or look at the drawn negatives (negatives/ in the run)",
            )  # fmt: skip
        if self._best is None or score > self._best[0]:
            self._best = (score, self._margin)

    def _warn(self, kind: str, step: int, text: str) -> None:
        if self.speaks and kind not in self._warned:
            self._warned.add(kind)
            logs.event("collapse", f"step {step}: {text}", "warning", kind=kind, step=step)
