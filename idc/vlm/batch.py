"""Batches for a vision-language model: dialogues padded to one length, and the pixels of all their images concatenated.

Letters: B samples, L tokens, N images of all samples together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from idc.vlm.family import Family


@dataclass(frozen=True)
class Sample:
    """A dialogue with its images.

    Attributes:
        ids, learned: as in :class:`idc.vlm.chat.EncodedDialogue`; nothing of a prompt is learned.
        pixels: see :meth:`idc.vlm.family.Family.pixels`.
        answer: None for a dialogue. For a prompt followed by several answers, the number of the answer that each token
            belongs to, from 1; 0 for the prompt.
    """

    ids: Sequence[int]
    learned: Sequence[bool]
    pixels: Mapping[str, Tensor]
    answer: Sequence[int] | None = None


def prompt_sample(ids: Sequence[int], pixels: Mapping[str, Tensor] | None = None) -> Sample:
    return Sample(ids, [False] * len(ids), pixels or {})


def with_answers(prompt: Sequence[int], answers: Iterable[Sequence[int]], pixels: Mapping[str, Tensor]) -> Sample:
    """A prompt with several learned answers (ids with end tokens), none of which attends to another
    (:func:`idc.vlm.logps.token_log_probabilities`)."""
    ids, answer = [*prompt], [0] * len(prompt)
    for number, of_answer in enumerate(answers, 1):
        ids += of_answer
        answer += [number] * len(of_answer)
    return Sample(ids, [number > 0 for number in answer], pixels, answer)


def collate_encoded(
    samples: Sequence[Sample], family: Family, side: Literal["left", "right"] = "right"
) -> dict[str, Any]:
    """Pad, at the right for training, at the left for generation, and stack: ``input_ids``, ``attention_mask``,
    ``mm_token_type_ids`` (1 for an image's tokens) and ``learned`` (B, L), and the family's pixel keys (N, ...); for
    prompts with several answers also ``answer`` (B, L), -1 for padding."""

    def padded(rows: Iterable[Sequence[int]], value: int) -> Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)

    input_ids = padded((sample.ids for sample in samples), pad_id(family))
    numbers = [sample.answer for sample in samples if sample.answer is not None]
    return {
        "input_ids": input_ids,
        "attention_mask": padded(([1] * len(sample.ids) for sample in samples), 0),
        "mm_token_type_ids": (input_ids == family.image_id).int(),
        "learned": padded((sample.learned for sample in samples), 0).bool(),
        **({"answer": padded(numbers, -1)} if numbers else {}),
        **join_pixels([sample.pixels for sample in samples], family),
    }


def join_pixels(pixels: Sequence[Mapping[str, Tensor]], family: Family) -> dict[str, Tensor]:
    """The pixels of several samples as those of one; empty if no sample has images."""
    with_images = [part for part in pixels if part]
    return {key: torch.cat([part[key] for part in with_images]) for key in family.pixel_keys} if with_images else {}


def pad_id(family: Family) -> int:
    """The tokenizer's padding token, else its end token, which the mask hides."""
    padding = family.tokenizer.pad_token_id
    return int(family.tokenizer.eos_token_id if padding is None else padding)


def model_inputs(batch: Mapping[str, Any], encoded: Any, family: Family) -> dict[str, Any]:
    """Arguments of the model's ``forward`` and ``generate``, from a batch of :func:`collate_encoded` on the model's
    device and the features of its images; None for a batch without images."""
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", *family.language_keys) if key in batch}
    if encoded is not None:
        # With this keyword, which transformers does not document, forward does not run the tower
        # (tests/vlm/test_captioner.py, test_one_vision_pass_serves_all_that_is_asked).
        inputs["mm_encoder_outputs"] = {"image": encoded}
    return inputs


def encode_images(model: Any, batch: Mapping[str, Any], family: Family) -> Any:
    """Features of a batch's images by the transformers model, None without images."""
    pixels = {key: batch[key] for key in family.pixel_keys if key in batch}
    return family.encode(model, pixels) if pixels else None
