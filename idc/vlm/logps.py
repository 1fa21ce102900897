"""Log-probabilities of given answers by teacher forcing, differentiable. Several answers to a prompt share one vision
pass and one reading of the prompt, most of whose tokens are the images' (:func:`answer_log_probabilities`).

The language model's head is applied to the hidden states that predict learned tokens, and to no others: with a real
vocabulary (some 150,000 words) the logits of a whole prompt would take gigabytes.

Letters: R rows, L tokens of a row, D width, A answers of all rows, K learned tokens of all rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idc.vlm.batch import Sample, collate_encoded, model_inputs
from idc.vlm.family import Family
from idc.vlm.transformers_internals import attention_of


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


class SharedPrompts(NamedTuple):
    """Rows of a prompt and all its answers, none of which sees another: what the answers have in common, the images'
    tokens above all, is read once for all of them.

    Attributes:
        batch: of :func:`idc.vlm.batch.collate_encoded`, without the images' tensors; ``learned`` are the answers.
        answer_RL: which answer of its row a token is in, from 1; 0 for the prompt's, -1 for padding.
        back_RL: by how many positions a token is nearer to the prompt than it is in the row, for the answers before
            its own.
        rows_K, states_K: of each learned token, its row and the place of the state that predicts it: the last of the
            prompt for the first token of every answer.
        answers_K: of each learned token, which of the A answers it is in.
    """

    batch: dict[str, Any]
    answer_RL: Tensor
    back_RL: Tensor
    rows_K: Tensor
    states_K: Tensor
    answers_K: Tensor


def shared_prompts(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]], family: Family
) -> SharedPrompts:
    """A row for each prompt.

    Args:
        prompts: ids of each prompt.
        answers: of each prompt, the ids of its answers, with end tokens.
    """
    samples = []
    for prompt, of_prompt in zip(prompts, answers, strict=True):
        ids = [token for answer in of_prompt for token in answer]
        samples.append(Sample([*prompt, *ids], [False] * len(prompt) + [True] * len(ids), {}))
    batch = collate_encoded(samples, family)
    answer_RL, back_RL = torch.full_like(batch["input_ids"], -1), torch.zeros_like(batch["input_ids"])
    rows, states, numbers = [], [], []
    total = 0
    for row, (prompt, of_prompt) in enumerate(zip(prompts, answers, strict=True)):
        start = len(prompt)
        answer_RL[row, :start] = 0
        for number, answer in enumerate(of_prompt, 1):
            end = start + len(answer)
            answer_RL[row, start:end] = number
            back_RL[row, start:end] = start - len(prompt)
            rows += [row] * len(answer)
            states += [len(prompt) - 1, *range(start, end - 1)][: len(answer)]
            numbers += [total] * len(answer)
            start, total = end, total + 1
    return SharedPrompts(batch, answer_RL, back_RL, *(torch.tensor(each) for each in (rows, states, numbers)))


def visible(answer_RL: Tensor) -> Tensor:
    """Which tokens (last axis) a token reads, bool (R, 1, L, L): the prompt and its own answer up to itself."""
    prompt, own = answer_RL[:, None] == 0, answer_RL[:, None] == answer_RL[:, :, None]
    return ((prompt | own) & own.new_ones(own.shape[1:]).tril())[:, None]


def answer_log_probabilities(
    model: Any,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    encoded: Any,
    pixels: Mapping[str, Tensor],
    images: Sequence[Sequence[int]],
    family: Family,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of several answers to each prompt.

    Args:
        model: the transformers model (of a PEFT model, its base model).
        prompts, answers: as of :func:`shared_prompts`.
        encoded, pixels: as of :func:`repeated`.
        images: of each prompt, which images it has.

    Returns:
        Of each answer, one prompt after another, the sum over its tokens and their number, (A,) each.
    """
    attention = attention_of(model)
    apart = attention == "flash_attention_2"  # knows no other mask than that of padding: a row for each answer
    asked = [
        (prompt, of_row, of_prompt)
        for prompt, of_prompt_answers, of_prompt in zip(prompts, answers, images, strict=True)
        for of_row in ([[answer] for answer in of_prompt_answers] if apart else [of_prompt_answers])
        if of_row
    ]
    features, language = repeated(encoded, pixels, [image for *_, of_row in asked for image in of_row], family)
    rows = shared_prompts([prompt for prompt, *_ in asked], [of_row for _, of_row, _ in asked], family)
    device = model.device
    batch = {key: tensor.to(device) for key, tensor in rows.batch.items()} | language
    inputs = model_inputs(batch, features, family)
    if not apart:
        inputs["position_ids"] = family.positions(model, batch) - rows.back_RL.to(device)
        mask = visible(rows.answer_RL).to(device)
        # "eager" adds its mask to the scores.
        least = torch.finfo(model.dtype).min
        inputs["attention_mask"] = mask if attention == "sdpa" else (~mask).to(model.dtype) * least
    hidden_RLD = model.model(**inputs, use_cache=False).last_hidden_state
    rows_K, answers_K = rows.rows_K.to(device), rows.answers_K.to(device)
    logits_KV = model.lm_head(hidden_RLD[rows_K, rows.states_K.to(device)])
    logs_K = logits_KV.float().log_softmax(dim=-1).gather(1, batch["input_ids"][batch["learned"]][:, None])[:, 0]
    counts_A = torch.tensor([len(answer) for of_prompt in answers for answer in of_prompt], device=device)
    return logs_K.new_zeros(len(counts_A)).index_add(0, answers_K, logs_K), counts_A


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
