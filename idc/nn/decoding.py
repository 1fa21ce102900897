"""Batched greedy search, beam search and sampling over any decoder that can advance one position at a time.

Self-attention keys and values are cached; cross-attention keys and values are computed once per batch. ``cached=False``
runs the whole prefix again at every step and gives the same tokens; it exists for comparison (see
``tests/nn/test_decoding.py`` and ``benchmarks/captioning.py``).

Scoring rule: the score of a hypothesis is (sum of its tokens' log-probabilities, end token included) / length **
length_penalty, where length is the number of generated tokens, end token included. A hypothesis that reaches
``max_length`` tokens without an end token is scored without one. Banned tokens have probability zero; the others are
not renormalised.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class CachedDecoder(Protocol):
    """The interface of a text decoder that can be searched. B pairs, R = B * beams rows, V words."""

    def __call__(self, ids_RT: Tensor, memory_RSD: Tensor) -> Tensor:
        """Logits (R, T, V) of every position, computed without a cache."""

    def start(self, memory_BSD: Tensor, max_length: int, beams: int) -> Any:
        """A cache for B * beams rows: cross-attention keys and values of each pair, empty self-attention ones."""

    def step(self, ids_R: Tensor, position: int, cache: Any) -> Tensor:
        """Logits (R, V) after the token at ``position``; extends the cache in place."""

    def reorder(self, cache: Any, rows_R: Tensor) -> None:
        """Replace the content of row r by that of row ``rows_R[r]``, which belongs to the same pair."""


class Decoded(NamedTuple):
    """Generated ids, without the begin token; ``pad`` after the end token. With several hypotheses per pair every
    tensor has a dimension N of them after B, the best first (samples: in the order of drawing).

    Attributes:
        ids: (B, T) int64.
        log_probability: (B,) float32, the sum over the generated tokens, end token included; minus infinity for a
            hypothesis that does not exist, because fewer captions than ``beams`` are possible.
        lengths: (B,) int64, generated tokens, end token included.
    """

    ids: Tensor
    log_probability: Tensor
    lengths: Tensor


@torch.no_grad()
def decode(
    decoder: CachedDecoder,
    memory_BSD: Tensor,
    *,
    bos: int,
    eos: int,
    pad: int,
    max_length: int,
    banned: tuple[int, ...] = (),
    beams: int = 1,
    length_penalty: float = 1.0,
    hypotheses: int | None = None,
    cached: bool = True,
    stop_early: bool = True,
) -> Decoded:
    """Search the most probable caption, or the most probable captions, of each pair.

    Args:
        memory_BSD: input of the decoder's cross-attention, (B, S, D).
        max_length: maximum number of generated tokens, end token included.
        banned: ids that are never generated (unknown word, padding).
        beams: 1 is greedy search.
        length_penalty: the exponent of the scoring rule; used by beam search alone.
        hypotheses: return the N best of the beams by the scoring rule, instead of the best one.
        stop_early: stop once every row has ended; ``False`` always takes ``max_length`` steps, as the official
            ProCap code does when it measures tokens per second.
    """
    if beams < 1 or max_length < 1:
        raise ValueError(f"beams and max_length must be at least 1, got beams={beams}, max_length={max_length}")
    if hypotheses is not None and not 1 <= hypotheses <= beams:
        raise ValueError(f"hypotheses={hypotheses}: beams={beams} give 1 to {beams} hypotheses")
    pairs, device = memory_BSD.shape[0], memory_BSD.device
    rows = pairs * beams
    cache = decoder.start(memory_BSD, max_length, beams) if cached else None
    memory_RSD = memory_BSD if cached else memory_BSD.repeat_interleave(beams, dim=0)
    ids = torch.full((rows, max_length + 1), pad, dtype=torch.long, device=device)
    ids[:, 0] = bos
    score = torch.zeros(pairs, beams, device=device)
    score[:, 1:] = float("-inf")  # the beams of a pair start equal: only the first may grow at the first step
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    length = torch.zeros(rows, dtype=torch.long, device=device)
    first_row = torch.arange(pairs, device=device).unsqueeze(1) * beams
    forbidden = torch.tensor(banned, dtype=torch.long, device=device)

    for position in range(max_length):
        if cached:
            logits_RV = decoder.step(ids[:, position], position, cache)
        else:
            logits_RV = decoder(ids[:, : position + 1], memory_RSD)[:, -1]
        # In float32 even under autocast: the sum over a caption would lose its digits in bfloat16.
        log_RV = logits_RV.float().log_softmax(dim=-1)
        log_RV.index_fill_(1, forbidden, float("-inf"))
        # A row that has ended continues with padding at no cost. (Indexing by `ended` would wait for a GPU.)
        log_RV.masked_fill_(ended.unsqueeze(1), float("-inf"))
        log_RV[:, pad].masked_fill_(ended, 0.0)
        vocabulary = log_RV.shape[1]
        if beams == 1:
            gain, words = log_RV.max(dim=-1)
            score = score + gain.unsqueeze(1)
        else:
            total_BKV = score.unsqueeze(-1) + log_RV.view(pairs, beams, vocabulary)
            # Ranked by the length with the new token; a hypothesis that has ended keeps its own.
            grown = (~ended).view(pairs, beams, 1).long() + length.view(pairs, beams, 1)
            ranked = total_BKV / grown.clamp_min(1).float() ** length_penalty
            chosen = ranked.flatten(1).topk(beams, dim=-1).indices
            score = total_BKV.flatten(1).gather(1, chosen)
            parents = (first_row + chosen // vocabulary).flatten()
            words = (chosen % vocabulary).flatten()
            ids, ended, length = ids[parents], ended[parents], length[parents]
            if cached:
                decoder.reorder(cache, parents)
        ids[:, position + 1] = torch.where(ended, torch.full_like(words, pad), words)
        length = length + (~ended).long()
        ended = ended | (words == eos)
        if stop_early and bool(ended.all()):
            break

    final = score / length.view(pairs, beams).clamp_min(1).float() ** length_penalty
    if hypotheses is None:
        best = first_row.squeeze(1) + final.argmax(dim=-1)
    else:
        # Stable, so that of equal scores the first is the one that argmax takes.
        best = first_row + final.argsort(dim=-1, descending=True, stable=True)[:, :hypotheses]
    return Decoded(ids[best, 1:], score.flatten()[best], length[best])


@torch.no_grad()
def sample(
    decoder: CachedDecoder,
    memory_BSD: Tensor,
    draws_BNT: Tensor,
    *,
    bos: int,
    eos: int,
    pad: int,
    max_length: int,
    banned: tuple[int, ...] = (),
    temperature: float = 1.0,
) -> Decoded:
    """Draw N captions of each pair, token by token: tensors have the dimensions (B, N, ...).

    Args:
        memory_BSD, bos, eos, pad, max_length, banned: as :func:`decode`.
        draws_BNT: uniform numbers in [0, 1), one for each token: a caption depends on its own alone, not on the batch.
        temperature: divides the logits of the distribution that is drawn from, in which banned tokens have probability
            zero. The log-probabilities of the result are those of the scoring rule, at temperature 1.
    """
    pairs, count, longest = draws_BNT.shape
    assert max_length <= longest, "there is a number for each token"
    if count < 1 or max_length < 1 or not temperature > 0:
        raise ValueError(
            f"count and max_length must be at least 1 and temperature above 0, got count={count}, "
            f"max_length={max_length}, temperature={temperature}"
        )
    device, rows = memory_BSD.device, pairs * count
    draws_RT = draws_BNT.reshape(rows, longest)
    cache = decoder.start(memory_BSD, max_length, count)
    ids = torch.full((rows, max_length + 1), pad, dtype=torch.long, device=device)
    ids[:, 0] = bos
    score = torch.zeros(rows, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    length = torch.zeros(rows, dtype=torch.long, device=device)
    forbidden = torch.tensor(banned, dtype=torch.long, device=device)
    for position in range(max_length):
        logits_RV = decoder.step(ids[:, position], position, cache).float()
        log_RV = logits_RV.log_softmax(dim=-1)
        allowed_RV = (logits_RV / temperature).index_fill(1, forbidden, float("-inf"))
        words = draw_words(allowed_RV, draws_RT[:, position])
        score = score + log_RV.gather(1, words.unsqueeze(1)).squeeze(1).masked_fill(ended, 0.0)
        words = words.masked_fill(ended, pad)
        ids[:, position + 1] = words
        length = length + (~ended).long()
        ended = ended | (words == eos)
        if bool(ended.all()):
            break
    return Decoded(*(part.unflatten(0, (pairs, count)) for part in (ids[:, 1:], score, length)))


def draw_words(logits_RV: Tensor, draws_R: Tensor) -> Tensor:
    """A word of each row (R,), drawn from softmax(logits) by the row's uniform number in [0, 1): the first whose
    cumulated probability is above it, so never one of probability zero."""
    # In float64: cumulated over 150,000 words, float32 would leave the last ones no room.
    cumulated_RV = logits_RV.double().softmax(dim=-1).cumsum(dim=-1)
    wanted_R1 = draws_R.to(cumulated_RV)[:, None] * cumulated_RV[:, -1:]
    return torch.searchsorted(cumulated_RV, wanted_R1, right=True).squeeze(1).clamp(max=logits_RV.shape[1] - 1)
