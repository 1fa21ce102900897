"""Log-probabilities of given answers by teacher forcing, differentiable. Answers to one prompt share its vision pass
and its tokens, most of which belong to the images (:func:`answer_log_probabilities`).

The head is applied only to the hidden states that predict learned tokens: with a real vocabulary (150,000 words) the
logits of whole prompts would take gigabytes.

Letters: R rows, L tokens of a row, D width, A answers and K learned tokens of all rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from idc.vlm.batch import collate_encoded, model_inputs, with_answers
from idc.vlm.family import Family


def token_log_probabilities(
    model: Any, batch: Mapping[str, Any], encoded: Any, family: Family, temperature: float | None = None
) -> tuple[Tensor, Tensor]:
    """The log-probability of each learned token.

    Args:
        model: the transformers model (of a PEFT model, its base model).
        batch: see :func:`idc.vlm.batch.collate_encoded`, padded on the right, on the model's device. With ``answer``,
            each of several answers to a prompt has the probabilities that it has alone.
        encoded: as in :func:`idc.vlm.batch.model_inputs`.
        temperature: of the distribution that :func:`idc.vlm.generate.generate` draws from, in which the image token has
            probability zero; default: of the model's.

    Returns:
        Float32 natural logarithms (K,), row by row, and the row of each (K,).
    """
    inputs = model_inputs(batch, encoded, family)
    rows_K, tokens_K = batch["learned"].nonzero(as_tuple=True)
    states_K = tokens_K - 1  # a state predicts the next token
    if "answer" in batch:
        answer_RL = batch["answer"]
        inputs["attention_mask"] = _mask(visible(answer_RL), model)
        inputs["position_ids"] = family.positions(model, batch) - _position_offset(answer_RL)
        # The first token of every answer is predicted by the prompt's last state.
        first_K = answer_RL[rows_K, tokens_K] != answer_RL[rows_K, states_K]
        states_K = torch.where(first_K, (answer_RL == 0).sum(dim=1)[rows_K] - 1, states_K)
    hidden_RLD = model.model(**inputs, use_cache=False).last_hidden_state
    logits_KV = model.lm_head(hidden_RLD[rows_K, states_K]).float()
    if temperature is not None:
        image = torch.tensor([family.image_id], device=logits_KV.device)
        logits_KV = (logits_KV / temperature).index_fill(1, image, -torch.inf)
    ids_K = batch["input_ids"][rows_K, tokens_K]
    return logits_KV.log_softmax(dim=-1).gather(1, ids_K[:, None])[:, 0], rows_K


def visible(answer_RL: Tensor) -> Tensor:
    """Which tokens (last axis) a token attends to, bool (R, 1, L, L): the prompt, and its own answer up to itself."""
    prompt, same = answer_RL[:, None] == 0, answer_RL[:, None] == answer_RL[:, :, None]
    return ((prompt | same) & same.new_ones(same.shape[1:]).tril())[:, None]


def attention_of(model: Any) -> str:
    """The attention of a model's language model, which transformers does not export: sdpa, eager, flash_attention_2."""
    name: str = model.config.get_text_config()._attn_implementation
    return name


def _mask(visible_R1LL: Tensor, model: Any) -> Tensor:
    if attention_of(model) == "sdpa":
        return visible_R1LL
    return (~visible_R1LL).to(model.dtype) * torch.finfo(model.dtype).min  # eager adds its mask to the scores


def _position_offset(answer_RL: Tensor) -> Tensor:
    """Number of tokens of other answers between a token and its prompt (R, L)."""
    indices_L = torch.arange(answer_RL.shape[1], device=answer_RL.device)
    begins_RL = torch.diff(answer_RL, prepend=answer_RL[:, :1]) != 0
    start_RL = torch.where(begins_RL, indices_L, 0).cummax(dim=1).values
    return (start_RL - (answer_RL == 0).sum(dim=1, keepdim=True)).clamp(min=0)


def answer_log_probabilities(
    model: Any,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    encoded: Any,
    pixels: Mapping[str, Tensor],
    images: Sequence[Sequence[int]],
    family: Family,
    temperature: float | None = None,
) -> Tensor:
    """Log-probabilities of the tokens of several answers to each prompt (K,), answer by answer; a prompt is processed
    once for all of its answers.

    Args:
        prompts, answers: ids of each prompt, and of its answers with their end tokens.
        encoded, pixels: see :func:`gather_image_features`.
        images: for each prompt, the indices of its images.
        temperature: as of :func:`token_log_probabilities`.
    """
    apart = attention_of(model) == "flash_attention_2"  # which takes no mask that separates answers
    rows = [
        (with_answers(prompt, of_row, {}), of_prompt)
        for prompt, of_prompt_answers, of_prompt in zip(prompts, answers, images, strict=True)
        for of_row in ([[answer] for answer in of_prompt_answers] if apart else [of_prompt_answers])
        if of_row
    ]
    indices = [image for _, of_row in rows for image in of_row]
    features, language = gather_image_features(encoded, pixels, indices, family)
    batch = collate_encoded([replace(row, answer=None) if apart else row for row, _ in rows], family) | language
    batch = {key: tensor.to(model.device) for key, tensor in batch.items()}
    # The learned tokens are those of all answers, concatenated.
    return token_log_probabilities(model, batch, features, family, temperature)[0]


def sums_of_answers(logs_K: Tensor, answers: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """For each answer, prompt by prompt, the sum of the log-probabilities of its tokens and their number, (A,) each;
    arguments: the result of :func:`answer_log_probabilities` and its answers."""
    counts_A = torch.tensor([len(answer) for of_prompt in answers for answer in of_prompt], device=logs_K.device)
    answers_K = torch.arange(len(counts_A), device=logs_K.device).repeat_interleave(counts_A)
    return logs_K.new_zeros(len(counts_A)).index_add(0, answers_K, logs_K), counts_A


def gather_image_features(
    encoded: Any, pixels: Mapping[str, Tensor], images: Sequence[int], family: Family
) -> tuple[Any, dict[str, Tensor]]:
    """Features of the images of rows, which may share them, and the pixel tensors that the language model needs;
    ``encoded`` of the images of ``pixels``, ``images``: indices of the rows' images, concatenated."""
    index = torch.tensor(list(images), dtype=torch.long)
    language = {
        key: pixels[key][index.to(pixels[key].device)] for key in family.pixel_keys if key in family.language_keys
    }
    return family.pick(encoded, images), language
