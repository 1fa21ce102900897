"""A captioner with our own text decoder: captions, candidates, scores and samples from the memory of pairs.

A system subclasses :class:`WordCaptioner` with two methods: how pairs are encoded, and what of that belongs in a
description besides captions.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from idc.captioning.calibration import AssessedCaptioner
from idc.captioning.contract import (
    Candidate,
    Capability,
    CaptionScore,
    ClassMap,
    Description,
    Images,
    InputSize,
    SearchOptions,
    Speed,
    number_of_pairs,
)
from idc.data.images import resize_image
from idc.nn.config import WordCaptionerSettings
from idc.nn.decoding import Decoded, decode, sample
from idc.nn.word_decoder import CachingDecoder
from idc.training.artifact import Artifact
from idc.util.cores import bfloat16_is_native

log = logging.getLogger(__name__)


class EncodedPairs(Protocol):
    """All that a system computes of a batch of pairs before the words; the decoder reads the memory, (B, S, D)."""

    @property
    def memory(self) -> Tensor: ...


EncodedT = TypeVar("EncodedT", bound=EncodedPairs)


@dataclass(frozen=True)
class DescriptionExtras:
    """Parts of a description besides captions, fields of :class:`~idc.captioning.contract.Description`; ``evidence``
    of a change has exactly the names that the captioner was made with."""

    evidence: Mapping[str, float] = field(default_factory=dict)
    change_map: np.ndarray | None = None
    attributes: Mapping[str, Any] | None = None
    class_map: ClassMap | None = None


class WordCaptioner(AssessedCaptioner, ABC, Generic[EncodedT]):
    """A loaded artifact, which also scores and samples. ``net``: the network whose weights the artifact holds.

    Args:
        artifact: has a vocabulary; its calibration and familiarity are read if it has them.
        device: torch device of the model.
        decoder: the text decoder, on that device and in evaluation mode.
        settings: the search that the artifact was validated with, which is the default.
        rules: what replaces those of the decoder, :meth:`~idc.nn.word_decoder.CachingDecoder.rules`.
        evidence: names of the system's evidence of a change.
        has_map: whether there are change maps.
        image_size: height and width (or one number for both) to which every image is resized.
        cached: cache the decoder's keys and values in a search.
        speed: "bf16" computes in bfloat16 where autocast does, all others in float32; for systems that do not override
            :meth:`_running`.
    """

    net: Any

    def __init__(
        self,
        artifact: Artifact,
        device: str,
        decoder: CachingDecoder,
        settings: WordCaptionerSettings,
        *,
        rules: Mapping[str, Any] = MappingProxyType({}),
        evidence: Sequence[str] = (),
        has_map: bool = True,
        image_size: int | tuple[int, int],
        cached: bool = True,
        speed: Speed = "auto",
    ):
        assert artifact.vocabulary is not None
        super().__init__(artifact.path, artifact.trained_on, evidence)
        self.path, self.vocabulary = artifact.path, artifact.vocabulary
        self.capabilities: frozenset[Capability] = frozenset(
            ("score", "sample", "map") if has_map else ("score", "sample")
        )
        self.device = torch.device(device)
        self.beams = settings.beams
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        self._input_size = InputSize((height, width), (height, width))
        self._decoder, self._rules = decoder, {**decoder.rules(), **rules}
        options = {**self._rules, "length_penalty": settings.length_penalty, "cached": cached}
        self._search: Callable[..., Decoded] = partial(decode, decoder, **options)
        self.bf16 = speed == "bf16"
        if self.bf16 and self.device.type == "cpu" and not bfloat16_is_native():
            log.warning("speed=bf16: this processor has no bfloat16 instructions and emulates them; take speed=auto")

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Context of everything that the model computes: no gradients, number format."""
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            yield

    def _images(self, befores: Images, afters: Images) -> Tensor:
        """Resized to the size of the model, uint8 (B, 2, H, W, 3), on its device."""
        pairs, size = zip(befores, afters, strict=True), self._input_size.before
        images = np.stack([[resize_image(image, size) for image in pair] for pair in pairs])
        return torch.from_numpy(images).to(self.device)

    @abstractmethod
    def _encode(self, befores: Images, afters: Images) -> EncodedT:
        """Encode at least one pair of uint8 RGB images (H, W, 3) of any sizes."""

    @abstractmethod
    def _findings(self, encoded: EncodedT, decoded: Decoded, change_map: bool) -> Sequence[DescriptionExtras]:
        """The parts of the descriptions besides captions, one per pair; ``decoded``: the best caption of each."""

    def __call__(self, befores: Images, afters: Images) -> list[str]:
        """Captions of pairs of uint8 RGB images (H, W, 3) of any sizes; one batch."""
        if not number_of_pairs(befores, afters):
            return []
        with self._running():
            decoded = self._search(self._encode(befores, afters).memory, beams=self.beams)
        return [self.text(ids) for ids in decoded.ids.tolist()]

    def _describe(self, befores: Images, afters: Images, options: SearchOptions) -> list[Description]:
        """The candidates are the final beams."""
        beams = options.beams_of(self.beams)
        with self._running():
            encoded = self._encode(befores, afters)
            # Two hypotheses may have the same text: all beams are taken, so that enough texts remain.
            decoded = self._search(encoded.memory, beams=beams, hypotheses=beams if options.candidates > 1 else 1)
            more = self._findings(encoded, Decoded(*(part[:, 0] for part in decoded)), options.change_map)
        parts = (part.tolist() for part in (decoded.ids, decoded.lengths, decoded.log_probability))
        return [
            self._description(
                before,
                after,
                map(self._candidate, ids, lengths, totals),
                options.candidates,
                input_size=self._input_size,
                **vars(findings),
            )
            for before, after, ids, lengths, totals, findings in zip(befores, afters, *parts, more, strict=True)
        ]

    def score(self, befores: Images, afters: Images, captions: Sequence[Sequence[str]]) -> list[list[CaptionScore]]:
        """See :meth:`idc.captioning.contract.Captioner.score`. A word outside the vocabulary counts as the unknown
        word, and a caption is cut to the number of steps of a search. One that fills all of them has no room for the
        end token and is scored without it, as in the search."""
        count = number_of_pairs(befores, afters)
        if len(captions) != count:
            raise ValueError(f"{len(captions)} lists of captions for {count} pairs; give one list per pair")
        tokens = [[self._tokens(caption) for caption in texts] for texts in captions]
        if not any(tokens):
            return [[] for _ in captions]
        with self._running():
            words_K = self.token_log_probabilities(self.memory(befores, afters), tokens)
        logs = iter(words_K.split([len(ids) for texts in tokens for ids in texts]))
        return [[CaptionScore(math.fsum(next(logs).tolist()), len(ids)) for ids in texts] for texts in tokens]

    def memory(self, befores: Images, afters: Images) -> Tensor:
        """What the decoder reads of pairs, (B, S, D); differentiable."""
        return self._encode(befores, afters).memory

    def token_log_probabilities(
        self,
        memory_BSD: Tensor,
        tokens: Sequence[Sequence[Sequence[int]]],
        temperature: float | None = None,
    ) -> Tensor:
        """Log-probabilities of the words of captions (K,), caption by caption; differentiable.

        Args:
            tokens: of each pair's captions, the ids without the beginning mark, at least one caption.
            temperature: of the distribution that :meth:`draw` draws from, in which banned words have probability zero;
                default: of the model's.
        """
        rows = [ids for texts in tokens for ids in texts]
        longest, bos, pad = max(map(len, rows)), self._rules["bos"], self._rules["pad"]
        pair_of_row = torch.tensor([pair for pair, texts in enumerate(tokens) for _ in texts], device=self.device)
        ids_RT = torch.tensor([[bos, *ids, *[pad] * (longest - len(ids))] for ids in rows], device=self.device)
        is_word_RT = torch.arange(longest) < torch.tensor([len(ids) for ids in rows])[:, None]
        logits_RTV = self._decoder(ids_RT[:, :-1], memory_BSD[pair_of_row]).float()
        if temperature is not None:
            banned = torch.tensor(self._rules["banned"], device=self.device)
            logits_RTV = (logits_RTV / temperature).index_fill(-1, banned, -torch.inf)
        words_RT = logits_RTV.log_softmax(dim=-1).gather(-1, ids_RT[:, 1:].unsqueeze(-1)).squeeze(-1)
        return words_RT[is_word_RT.to(self.device)]

    def sample(
        self, befores: Images, afters: Images, n: int, *, temperature: float = 1.0, seed: int = 0
    ) -> list[list[Candidate]]:
        """See :meth:`idc.captioning.contract.Captioner.sample`."""
        if not number_of_pairs(befores, afters):
            return []
        draws_BNT = torch.rand(len(befores), n, self.max_length, generator=torch.Generator().manual_seed(seed))
        with self._running():
            sampled = self.draw(self.memory(befores, afters), draws_BNT.to(self.device), temperature)
        parts = (part.tolist() for part in (sampled.ids, sampled.lengths, sampled.log_probability))
        return [[*map(self._candidate, *pair)] for pair in zip(*parts, strict=True)]

    @property
    def max_length(self) -> int:
        """Tokens of the longest caption, the end token included."""
        return int(self._rules["max_length"])

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width to which every image is resized."""
        return self._input_size.before

    def greedy(self, memory_BSD: Tensor) -> Decoded:
        """Captions by greedy search."""
        return self._search(memory_BSD, beams=1)

    def draw(self, memory_BSD: Tensor, draws_BNT: Tensor, temperature: float = 1.0) -> Decoded:
        """Captions by :func:`idc.nn.decoding.sample`."""
        return sample(self._decoder, memory_BSD, draws_BNT, **self._rules, temperature=temperature)

    def _tokens(self, caption: str) -> list[int]:
        """Ids of a caption without the beginning mark; the end mark only if a search could generate it."""
        steps = self._rules["max_length"]
        words = self.vocabulary.encode(caption)[1:-1][:steps]
        return words if len(words) == steps else [*words, self._rules["eos"]]

    def text(self, ids: Sequence[int]) -> str:
        """The words of ids without the beginning mark."""
        return self.vocabulary.decode([self._rules["bos"], *ids])

    def _candidate(self, ids: list[int], length: int, total: float) -> Candidate:
        return Candidate(self.text(ids), total / max(1, length))
