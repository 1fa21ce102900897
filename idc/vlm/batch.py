"""Batches for a vision-language model: dialogues padded to one length, the pixels of all images one after another.

Letters: B samples, L tokens, N images of all samples together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from idc.vlm.family import Family


@dataclass(frozen=True)
class Sample:
    """One dialogue with its images.

    Attributes:
        ids, learned: as in :class:`idc.vlm.chat.EncodedDialogue`; of a prompt nothing is learned.
        pixels: of :meth:`idc.vlm.family.Family.pixels`.
        answer: of a prompt with several answers, one after another, which of them a token is in, from 1, and 0 for the
            prompt's; None for a dialogue.
    """

    ids: Sequence[int]
    learned: Sequence[bool]
    pixels: Mapping[str, Tensor]
    answer: Sequence[int] | None = None


def with_answers(prompt: Sequence[int], answers: Iterable[Sequence[int]], pixels: Mapping[str, Tensor]) -> Sample:
    """A prompt with several answers, none of which sees another (:func:`idc.vlm.logps.token_log_probabilities`).

    Args:
        prompt: ids of the prompt.
        answers: ids of each, with end tokens; all are learned.
    """
    ids, answer = [*prompt], [0] * len(prompt)
    for number, of_answer in enumerate(answers, 1):
        ids += of_answer
        answer += [number] * len(of_answer)
    return Sample(ids, [number > 0 for number in answer], pixels, answer)


def collate_encoded(
    samples: Sequence[Sample], family: Family, side: Literal["left", "right"] = "right"
) -> dict[str, Any]:
    """Pad and stack.

    Args:
        side: where the padding is: right for training, left for generation.

    Returns:
        ``input_ids``, ``attention_mask``, ``mm_token_type_ids`` (1 for an image's token) and ``learned`` (B, L), and
        the family's pixel keys (N, ...); for prompts with several answers also ``answer`` (B, L), -1 for padding.
    """
    longest = max(len(sample.ids) for sample in samples)
    ids = np.full((len(samples), longest), pad_id(family), np.int64)
    mask = np.zeros_like(ids)
    learned = np.zeros(ids.shape, bool)
    for row, sample in enumerate(samples):
        count = len(sample.ids)
        span = slice(longest - count, longest) if side == "left" else slice(0, count)
        ids[row, span], mask[row, span], learned[row, span] = sample.ids, 1, sample.learned
    input_ids = torch.from_numpy(ids)
    numbers = [torch.tensor(sample.answer) for sample in samples if sample.answer is not None]
    several = {"answer": pad_sequence(numbers, batch_first=True, padding_value=-1)} if numbers else {}
    return {
        "input_ids": input_ids,
        "attention_mask": torch.from_numpy(mask),
        "mm_token_type_ids": (input_ids == family.image_id).int(),
        "learned": torch.from_numpy(learned),
        **several,
        **join_pixels([sample.pixels for sample in samples], family),
    }


def join_pixels(pixels: Sequence[Mapping[str, Tensor]], family: Family) -> dict[str, Tensor]:
    """The pixels of several samples as those of one; samples without images have none."""
    with_images = [part for part in pixels if part]
    return {key: torch.cat([part[key] for part in with_images]) for key in family.pixel_keys} if with_images else {}


def pad_id(family: Family) -> int:
    """The id of padding: the tokenizer's own, else its end token (which the mask hides)."""
    padding = family.tokenizer.pad_token_id
    return int(family.tokenizer.eos_token_id if padding is None else padding)


def model_inputs(batch: Mapping[str, Any], encoded: Any, family: Family) -> dict[str, Any]:
    """Arguments of ``forward`` and ``generate`` of the model.

    Args:
        batch: of :func:`collate_encoded`, on the model's device.
        encoded: of :meth:`idc.vlm.family.Family.encode`; None if the batch has no images.
    """
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", *family.language_keys) if key in batch}
    if encoded is not None:
        # With this keyword of transformers, which its documentation does not name, forward does not run the tower
        # (tests/vlm/test_captioner.py, test_one_vision_pass_serves_all_that_is_asked).
        inputs["mm_encoder_outputs"] = {"image": encoded}
    return inputs


def encode_images(model: Any, batch: Mapping[str, Any], family: Family) -> Any:
    """Features of a batch's images, None if it has none. ``model``: the transformers model itself."""
    pixels = {key: batch[key] for key in family.pixel_keys if key in batch}
    return family.encode(model, pixels) if pixels else None
