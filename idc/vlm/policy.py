"""A tuned model next to its reference: what trainings that compare both share."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from idc.training.task import Batch
from idc.vlm.batch import encode_images
from idc.vlm.config import PolicyJob
from idc.vlm.family import Family
from idc.vlm.logps import answer_log_probabilities
from idc.vlm.system import SftTask
from idc.vlm.tuning import without_adapters

AnswerIds = Sequence[Sequence[Sequence[int]]]
"""Of each pair the ids of its answers, with their end tokens."""


class PolicyTask(SftTask):
    """The model and its reference (:class:`idc.vlm.config.PolicyJob`); ``frozen``: the copy, if the reference needs
    one.

    Args:
        has_reference: False keeps no copy; :meth:`reference_log_p` may not be used then.
    """

    def __init__(self, job: PolicyJob, model: Any, family: Family, has_reference: bool = True) -> None:
        super().__init__(model, family, job.tune, job.generation)
        copied = has_reference and not job.trains_adapters_alone
        # Copied after the model was prepared, in the same number formats, so that both are equal at first.
        self.frozen = copy.deepcopy(self.model).requires_grad_(False) if copied else None

    def base_parts(self) -> list[nn.Module]:
        return [*super().base_parts(), *([] if self.frozen is None else [self.frozen])]

    def answer_log_p(
        self, batch: Batch, answers: AnswerIds, encoded: Any, temperature: float | None = None, model: Any = None
    ) -> Tensor:
        """Log-probabilities of the tokens of the answers to each pair of a batch (K,), answer by answer, whose pixels
        are those of the pairs, before and after alternating, and ``prompt`` the ids of their questions; see
        :func:`idc.vlm.logps.answer_log_probabilities`. ``model``: default the policy."""
        images = [[2 * pair, 2 * pair + 1] for pair in range(len(answers))]
        model = self.model if model is None else model
        return answer_log_probabilities(
            model, batch["prompt"], answers, encoded, batch, images, self.family, temperature
        )

    @torch.no_grad()
    def reference_log_p(
        self, batch: Batch, answers: AnswerIds, encoded: Any, temperature: float | None = None
    ) -> Tensor:
        """The same of the reference."""
        with self._reference(batch, encoded) as (model, features):
            return self.answer_log_p(batch, answers, features, temperature, model)

    @contextmanager
    def _reference(self, batch: Batch, encoded: Any) -> Iterator[tuple[Any, Any]]:
        """The reference and its features of a batch's images; ``encoded``: those of the policy."""
        model = self.model if self.frozen is None else self.frozen
        with without_adapters(model):  # those of a frozen copy are as they started, and change nothing
            if any(
                parameter.requires_grad and (self.family.is_tower(name) or self.family.is_projector(name))
                for name, parameter in self.model.named_parameters()
            ):
                encoded = encode_images(model, batch, self.family)
            yield model, encoded
