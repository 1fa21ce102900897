"""Answers by transformers' own ``generate``: greedy, beams, samples, each with its log-probability.

The settings are ours alone. The generation config of a model, which ``generate`` would merge into them, may sample or
punish repeated words; the log-probabilities would then be those of another distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from idc.nn.decoding import draw_words
from idc.vlm.batch import model_inputs, pad_id
from idc.vlm.config import GenerateConfig
from idc.vlm.family import Family

_SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
"""The whole distribution; the default of transformers is the 50 most probable words."""


@dataclass(frozen=True)
class Hypothesis:
    """A generated answer.

    Attributes:
        ids: its tokens, the end token included if it has one.
        total: natural logarithm of its probability, sum over the tokens, at temperature 1.
        ended: it ends with the end token, not because it reached the maximum length.
    """

    ids: tuple[int, ...]
    total: float
    ended: bool

    @property
    def mean(self) -> float:
        return self.total / len(self.ids)


@torch.no_grad()
def generate(
    model: Any,
    batch: Mapping[str, Any],
    encoded: Any,
    family: Family,
    settings: GenerateConfig,
    *,
    hypotheses: int = 1,
    temperature: float = 1.0,
    draws: Tensor | None = None,
    progress: Callable[[int, Sequence[int]], None] | None = None,
) -> list[list[Hypothesis]]:
    """Generate answers to a batch of prompts: per prompt its answers, of a search the best first.

    Args:
        model: in evaluation mode.
        batch: of :func:`idc.vlm.batch.collate_encoded` with padding at the left, on the model's device.
        encoded: features of the batch's images, None if it has none; they do not change.
        hypotheses: answers per prompt: final beams, at most as many as there are beams; or samples.
        temperature: divides the logits of ``draws``.
        draws: uniform numbers in [0, 1), (B, hypotheses, T), one for each token, at least settings.max_new_tokens: draw
            at random in place of a search; beams do not count then. An answer depends on its own numbers alone, not on
            the batch.
        progress: called after each step with every prompt's index and the tokens of its answer so far, until the answer
            ends; of a search with one beam only.
    """
    beams = settings.beams if draws is None else 1
    end: int = family.tokenizer.eos_token_id
    config = GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        # Draws leave each row one word, which transformers then samples; its search has one answer to a prompt.
        **({"do_sample": False} if draws is None else _SAMPLING),
        num_beams=beams,
        num_return_sequences=hypotheses,
        length_penalty=settings.length_penalty,
        early_stopping=False,
        repetition_penalty=1.0,
        eos_token_id=end,
        pad_token_id=pad_id(family),
        use_cache=True,
    )
    start = batch["input_ids"].shape[1]
    if draws is not None:
        draws = draws.to(model.device).flatten(0, 1)
    recorder = _Recorder(start, beams, end, family.image_id, temperature, draws)
    if encoded is not None:  # a copy: generate repeats the features of what it is given for its beams
        encoded = family.pick(encoded, range(len(encoded.pooler_output)))
    gpus = [model.device] if model.device.type == "cuda" else []
    # Sampling of the one word that draws leave advances the generators of others.
    with _only_our_settings(model), torch.random.fork_rng(devices=gpus, enabled=draws is not None):
        sequences = model.generate(
            **model_inputs(batch, encoded, family),
            generation_config=config,
            logits_processor=LogitsProcessorList([recorder]),
            streamer=None if progress is None else _Streamer(progress, end),
        )
    answers = [_cut(ids, end) for ids in sequences[:, start:].tolist()]
    rows = [
        Hypothesis(ids, recorder.total(row // hypotheses if beams > 1 else row, ids), ids[-1] == end)
        for row, ids in enumerate(answers)
    ]
    return [rows[first : first + hypotheses] for first in range(0, len(rows), hypotheses)]


@contextmanager
def _only_our_settings(model: Any) -> Iterator[None]:
    original, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = original


def _cut(ids: list[int], end: int) -> tuple[int, ...]:
    return tuple(ids[: ids.index(end) + 1] if end in ids else ids)


class _Streamer(BaseStreamer):  # type: ignore[misc]
    """Calls ``progress`` of :func:`generate`; ``end`` is the end token."""

    def __init__(self, progress: Callable[[int, Sequence[int]], None], end: int) -> None:
        self._progress, self._end_token = progress, end
        self._answers: list[list[int]] = []

    def put(self, value: Tensor) -> None:
        if value.dim() == 2:  # the prompts come first
            self._answers = [[] for _ in value]
            return
        for row, (ids, token) in enumerate(zip(self._answers, value.tolist(), strict=True)):
            if ids[-1:] != [self._end_token]:  # afterwards there is only padding
                ids.append(token)
                self._progress(row, ids)

    def end(self) -> None:
        pass


class _Recorder(LogitsProcessor):  # type: ignore[misc]
    """Adds up the log-probabilities of all that ``generate`` might return, without keeping its scores: those of 32
    pairs, 4 beams, 64 tokens and 150,000 words would be 5 GB. An answer has no image tokens: there would be no image
    for them.

    A processor of logits sees, at every step, the tokens of all rows so far, and the scores of the next one. What a row
    has so far names it: the rows of beams change their positions.
    """

    def __init__(
        self, start: int, beams: int, end: int, image: int, temperature: float, draws_RT: Tensor | None
    ) -> None:
        self._start, self._beams, self._end, self._image = start, beams, end, image
        self._temperature, self._draws_RT = temperature, draws_RT
        self._ended: dict[tuple[int, tuple[int, ...]], float] = {}
        self._rows: dict[tuple[int, tuple[int, ...]], int] = {}
        self._totals: list[float] = []
        self._logs_RV = torch.empty(0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        names = [(row // self._beams, tuple(ids)) for row, ids in enumerate(input_ids[:, self._start :].tolist())]
        if self._rows:
            before = [self._rows[group, ids[:-1]] for group, ids in names]
            last = self._logs_RV[before, [ids[-1] for _, ids in names]].tolist()
            self._totals = [self._totals[row] + value for row, value in zip(before, last, strict=True)]
        else:
            self._totals = [0.0] * len(names)
        self._logs_RV = scores.float().log_softmax(dim=-1)
        self._rows = {name: row for row, name in enumerate(names)}
        for (group, ids), total, value in zip(names, self._totals, self._logs_RV[:, self._end].tolist(), strict=True):
            self._ended.setdefault((group, (*ids, self._end)), total + value)
        scores = scores.index_fill(1, torch.tensor([self._image], device=scores.device), -torch.inf)
        if self._draws_RT is None:
            return scores
        draws_R = self._draws_RT[:, input_ids.shape[1] - self._start]
        words_R1 = draw_words(scores.float() / self._temperature, draws_R)[:, None]
        return torch.full_like(scores, -torch.inf).scatter(1, words_R1, 0.0)

    def total(self, group: int, ids: tuple[int, ...]) -> float:
        """Of an answer to a prompt (of samples: of a row)."""
        if ids[-1] == self._end:
            return self._ended[group, ids]
        row = self._rows[group, ids[:-1]]
        return self._totals[row] + float(self._logs_RV[row, ids[-1]])
