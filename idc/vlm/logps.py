"""Log-probabilities of given answers by teacher forcing, differentiable; several answers share one vision pass.

The language model's head is applied to the hidden states that predict learned tokens, and to no others: with a real
vocabulary (some 150,000 words) the logits of a whole prompt would take gigabytes.

Letters: R rows (dialogues that end with an answer), K learned tokens of all rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from idc.vlm.batch import Sample, collate_encoded, model_inputs
from idc.vlm.family import Family


def token_log_probabilities(
    model: Any, batch: Mapping[str, Any], encoded: Any, family: Family
) -> tuple[Tensor, Tensor]:
    """The log-probability of each learned token.

    Args:
        model: the transformers model (of a PEFT model, its base model).
        batch: of :func:`idc.vlm.batch.collate_encoded`, with ``learned``, on the model's device.
        encoded: as in :func:`idc.vlm.batch.model_inputs`.

    Returns:
        Float32 natural logarithms (K,), row by row, and the row of each (K,).
    """
    hidden_RLD = model.model(**model_inputs(batch, encoded, family), use_cache=False).last_hidden_state
    learned_RL = batch["learned"][:, 1:]
    # A state predicts the token after it. Of the learned tokens alone: logits of all would be a large (R, L, V).
    logits_KV = model.lm_head(hidden_RLD[:, :-1][learned_RL])
    ids_K = batch["input_ids"][:, 1:][learned_RL]
    logs_K = logits_KV.float().log_softmax(dim=-1).gather(1, ids_K[:, None])[:, 0]
    return logs_K, learned_RL.nonzero()[:, 0]


def log_probabilities(model: Any, batch: Mapping[str, Any], encoded: Any, family: Family) -> tuple[Tensor, Tensor]:
    """Per row, the sum over its learned tokens and their number, (R,) each; arguments as
    :func:`token_log_probabilities`."""
    logs_K, rows_K = token_log_probabilities(model, batch, encoded, family)
    totals_R = logs_K.new_zeros(len(batch["learned"])).index_add(0, rows_K, logs_K)
    return totals_R, batch["learned"][:, 1:].sum(dim=1)


def answer_rows(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]], family: Family
) -> dict[str, Any]:
    """A batch with a row for each answer: its prompt and the answer, which is learned; without the images' tensors.

    Args:
        prompts: ids of each prompt.
        answers: of each prompt, the ids of its answers, with end tokens.
    """
    rows = [
        Sample([*prompt, *ids], [False] * len(prompt) + [True] * len(ids), {})
        for prompt, several in zip(prompts, answers, strict=True)
        for ids in several
    ]
    return collate_encoded(rows, family)


def repeated(encoded: Any, pixels: Mapping[str, Tensor], images: Sequence[int], family: Family) -> tuple[Any, dict]:
    """Features of images for rows that share them, and the tensors of these images that the language model reads.

    Args:
        encoded: of :meth:`idc.vlm.family.Family.encode`, for the images of ``pixels``.
        images: of each row, one row after another, which images it has.
    """
    index = torch.tensor(list(images), dtype=torch.long)
    language = {
        key: pixels[key][index.to(pixels[key].device)] for key in family.pixel_keys if key in family.language_keys
    }
    return family.pick(encoded, images), language
