"""ADPO a second time, as the paper's equations: one caption of one pair at a time, each with a forward pass of its own
that looks at the images through transformers' own ``pixel_values``, the reference a copy, sums in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from idc.data.images import decode_image
from idc.data.schema import Turn
from idc.systems.adpo.task import PreferenceTask
from idc.vision.pair_encoder.model import PairEncoder
from idc.vlm.base import load_model
from idc.vlm.chat import Chat, caption_turns
from idc.vlm.config import BaseConfig


def log_p(task: PreferenceTask, model: Any, images: Sequence[bytes], caption: str) -> Tensor:
    """log pi(T | X1, X2): the sum over the caption's tokens and its end."""
    family, chat = task.family, Chat(task.family)
    pictures = [decode_image(image) for image in images]
    sizes = [(picture.shape[0], picture.shape[1]) for picture in pictures]
    encoded = chat.encode([*caption_turns(task.job.prompt), Turn("assistant", caption, "caption")], sizes)
    ids = torch.tensor([encoded.ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **family.pixels(pictures)}
    if "mm_token_type_ids" in family.language_keys:
        inputs["mm_token_type_ids"] = (ids == family.image_id).int()
    if family.name == "llava_onevision":  # else each is cut into patches, as the only image of a sample
        inputs["pixel_values"] = inputs["pixel_values"][:, None]
        inputs |= {"image_sizes": torch.tensor([[64, 64]] * 2), "batch_num_images": torch.tensor([2])}
    logits = model(**inputs).logits[0].double()
    total = logits.new_zeros(())
    for position, (token, learned) in enumerate(zip(encoded.ids, encoded.learned, strict=True)):
        if learned:
            total = total + logits[position - 1, token] - torch.logsumexp(logits[position - 1], 0)
    return total


def frozen_copy(task: PreferenceTask) -> Any:
    return load_model(task.job.base.source, BaseConfig(source=task.job.base.source))  # type: ignore[arg-type]


def margin(task: PreferenceTask, row: dict[str, Any], chosen: str, rejected: str) -> Tensor:
    """M(theta) of equation 2."""
    pair = (row["before"], row["after"])
    reference = frozen_copy(task)
    with torch.no_grad():
        of_reference = log_p(task, reference, pair, chosen) - log_p(task, reference, pair, rejected)
    return task.job.beta * (
        log_p(task, task.model, pair, chosen) - log_p(task, task.model, pair, rejected) - of_reference
    )


def losses(
    task: PreferenceTask, rows: Sequence[dict[str, Any]], chosen: Sequence[str], rejected: Sequence[str]
) -> list[Tensor]:
    """-log sigmoid(M)."""
    return [
        torch.log(1 + torch.exp(-margin(task, row, text, negative)))
        for row, text, negative in zip(rows, chosen, rejected, strict=True)
    ]


def log_q(task: PreferenceTask, frames: Tensor, candidates: Sequence[int]) -> Tensor:
    """log q_phi of equation 3, for one pair: scores over tau."""
    retriever, settings = task.retriever, task.retriever.config
    learned = PairEncoder.load(settings.encoder).clip.logit_scale
    scale = settings.similarity_scale or min(100.0, math.exp(float(learned)))
    before, after = ((picture[None].float() / 255 - retriever.mean) / retriever.std for picture in frames)
    vector = retriever.visual(before, after)[0].double()
    scores = []
    for number in candidates:
        caption = retriever.captions_CE[number].double()
        cosine = (vector * caption).sum() / (vector.norm() * caption.norm())
        scores.append(scale * cosine / settings.tau)
    return torch.stack([score - torch.logsumexp(torch.stack(scores), 0) for score in scores])
