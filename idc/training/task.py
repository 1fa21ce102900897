"""The contract between a system and the training loop: model and losses together as one module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from idc.training.context import Context

Batch = Mapping[str, Any]
"""What a dataset's collate returns (tensors, lists, plain values), and how many samples it has (:data:`SAMPLES`)."""

SAMPLES = "num_samples"
"""Key of a batch's number of samples; the loaders of :mod:`idc.training.data` add it to what collate returns."""


class Task(nn.Module):
    """Model plus losses. The loop calls ``training_step`` and ``validate``, jobs call ``caption``.

    The loop averages over micro-batches of equal size and over workers. So that the gradient is the mean over all
    samples of the batch, however it is cut, ``training_step`` returns a mean over *samples*: a loss over masked tokens
    is first divided by the number of masked tokens of its own sample (:func:`mean_per_sample`), never by the
    number in the micro-batch.

    Under ZeRO-3 a parameter is whole only while the module that owns it is called: use submodules that have parameters
    of their own by calling them (``forward``), and take parameters by attribute, not from a list kept elsewhere.
    """

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        return self.training_step(batch)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The scalar loss (mean over the samples) and what to log beside it (scalars, means over the samples).

        Random choices that must not depend on how the batch is cut belong into the dataset's ``get``; torch's
        generator (dropout) is seeded by the loop for every (seed, step, micro-batch, rank).
        """
        raise NotImplementedError

    def caption(self, batch: Batch) -> list[str]:
        """One caption for each sample. Tasks without a decoder do not have it."""
        raise NotImplementedError

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups ``{"name", "params", "lr", "weight_decay", "schedule", "warmup_steps" | "warmup_share",
        "warmup_lr"}``.

        All but ``name``, ``params`` and ``lr`` may be left out; their meaning and defaults stand in
        :class:`idc.training.config.GroupConfig`. Every trainable parameter must be in exactly one group.
        """
        raise NotImplementedError

    def compiled_parts(self) -> list[nn.Module]:
        """Submodules that `train.compile` hands to ``torch.compile``: those with most of the work, called with tensors
        whose shapes do not change from step to step."""
        return []

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Metrics on the validation split; called on all ranks, each with its own share of the samples.

        The default is the mean of the training loss and logs. A captioning task gathers its predictions with
        ``context.all_gather_object`` and scores them on rank 0; what rank 0 returns counts.
        """
        sums: dict[str, float] = {}
        count = 0
        for batch in loader:
            loss, logs = self.training_step(batch)
            size = batch[SAMPLES]
            count += size
            for name, value in {"loss": loss, **logs}.items():
                sums[name] = sums.get(name, 0.0) + float(value) * size
        parts = context.all_gather_object((count, sums))
        total = sum(count for count, _ in parts)
        names = dict.fromkeys(name for _, sums in parts for name in sums)
        return {name: sum(sums.get(name, 0.0) for _, sums in parts) / total for name in names}


def mean_per_sample(loss: Tensor, weight: Tensor) -> Tensor:
    """Mean over samples of each sample's weighted mean: ``loss`` and ``weight`` (B, ...), weight 0 leaves out.

    A sample whose weights are all 0 counts as a loss of 0.
    """
    weight = weight.to(loss.dtype)
    per_sample = (loss * weight).flatten(1).sum(1) / weight.flatten(1).sum(1).clamp(min=torch.finfo(loss.dtype).tiny)
    return per_sample.mean()
