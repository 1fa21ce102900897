"""Supervised tuning of a vision-language model on dialogues about images: the task on the one training loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from idc.training.caption_validation import Captioned, metric_names_of, score_captions
from idc.training.context import Context
from idc.training.task import SAMPLES, Batch, Task
from idc.vlm.batch import encode_images
from idc.vlm.chat import Chat
from idc.vlm.config import GenerateConfig, TuneConfig
from idc.vlm.family import Family
from idc.vlm.generate import generate
from idc.vlm.logps import token_log_probabilities
from idc.vlm.samples import DialogueSamples
from idc.vlm.tuning import groups, prepare


class SftTask(Task):
    """Cross-entropy of the answers' tokens, each answer token of a sample counting the same, each sample the same.

    A system with a module of its own between tower and language model overrides :meth:`encode` and
    :meth:`param_groups`; the module is an attribute with another name than ``model``.

    Args:
        model: the transformers model with the base's weights; it is prepared here.
        generation: how captions are written in validation.
    """

    def __init__(self, model: Any, family: Family, tune: TuneConfig, generation: GenerateConfig):
        super().__init__()
        prepare(model, family, tune)
        self.model, self.family, self.tune, self.generation = model, family, tune, generation
        self.chat = Chat(family)

    def encode(self, batch: Batch) -> Any:
        """Features of a batch's images, in the form of :meth:`idc.vlm.family.Family.encode`."""
        return encode_images(self.model, batch, self.family)

    def token_losses(self, batch: Batch, encoded: Any) -> tuple[Tensor, Tensor]:
        """Losses of the K learned tokens of a batch (K,), and the sample of each (K,), from its images' features."""
        logs, rows = token_log_probabilities(self.model, batch, encoded, self.family)
        return -logs, rows

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        losses_K, rows_K = self.token_losses(batch, self.encode(batch))
        return sample_losses(losses_K, rows_K, batch[SAMPLES]).mean(), {}

    def caption(self, batch: Batch) -> list[str]:
        return self._answers(batch, self.encode(batch))

    def _answers(self, batch: Batch, encoded: Any) -> list[str]:
        pixels = {key: batch[key] for key in self.family.pixel_keys if key in batch}
        answers = generate(self.model, {**batch["prompt"], **pixels}, encoded, self.family, self.generation)
        return [self.chat.decode(answer[0].ids) for answer in answers]

    def param_groups(self) -> list[dict[str, Any]]:
        return groups(self.model, self.family, self.tune)

    def base_parts(self) -> list[nn.Module]:
        return [self.model]

    def checkpointed_parts(self) -> list[nn.Module]:
        return [self.model]

    def metric_names(self, validation: DialogueSamples) -> set[str]:
        return {"loss", "right_minus_shuffled"} | metric_names_of(validation.truths())

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """``loss`` as in training; ``right_minus_shuffled``: loss per token with the right images minus loss per token
        with those of another row, below 0 for a model that sees; scores of the generated answers
        (:func:`idc.training.caption_validation.score_captions`)."""
        mine: list[Captioned] = []
        # Samples, their loss; tokens, their loss right and shuffled. In float64: float32 rounds counts above 2**24.
        sums = torch.zeros(5, dtype=torch.float64)
        for batch in loader:
            encoded = self.encode(batch)
            losses, rows = self.token_losses(batch, encoded)
            each = sample_losses(losses, rows, batch[SAMPLES])
            batch_sums = [batch[SAMPLES], float(each.sum()), 0.0, 0.0, 0.0]
            if batch["shuffled"] is not None:
                right = torch.isin(rows, torch.tensor(batch["right"], device=rows.device))
                other = self.token_losses(batch["shuffled"], self.encode(batch["shuffled"]))[0]
                batch_sums[2:] = [len(other), float(losses[right].sum()), float(other.sum())]
            sums += torch.tensor(batch_sums, dtype=torch.float64)
            mine += zip(batch["name"], self._answers(batch, encoded), batch["references"], batch["scene"], strict=True)
        samples, loss, tokens, right_loss, shuffled_loss = sum(context.all_gather_object(sums)).tolist()
        seen = {"right_minus_shuffled": (right_loss - shuffled_loss) / tokens} if tokens else {}
        return {"loss": loss / samples, **seen, **score_captions(mine, context)}


def sample_losses(losses: Tensor, rows: Tensor, samples: int) -> Tensor:
    """The mean over each sample's tokens (B,), of losses (K,) of the samples ``rows`` (K,)."""
    total = losses.new_zeros(samples).index_add(0, rows, losses)
    return total / losses.new_zeros(samples).index_add(0, rows, torch.ones_like(losses))
