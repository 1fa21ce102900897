"""TwinCap as a captioner: captions with confidences, change maps, attributes of what changed, the probability of given
captions, and samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.captioning.calibration import Calibration
from idc.captioning.contract import Candidate, Capability, CaptionScore, Description, Speed, beams_of
from idc.captioning.familiarity import Familiarity
from idc.data.images import resize_image
from idc.data.rendered.captions import ATTRIBUTES
from idc.data.text import OWN_IDS
from idc.decoding import Decoded
from idc.nn.packed import bfloat16_is_native
from idc.schema import CHANGE_TYPES, NO_CHANGE
from idc.systems.twincap.config import TwinCapJob
from idc.systems.twincap.model import Encoded, TwinNet
from idc.systems.twincap.truth import VALUES
from idc.training.artifact import read_artifact

log = logging.getLogger(__name__)

CHANGE_ODDS, CHANGE_HEAT = "log_odds_of_change", "change_heat"
"""Names of the captioner's evidence: of the type head, and the largest logit of the change map."""


class TwinCaptioner:
    """A loaded artifact, an :class:`idc.captioning.contract.Captioner`: pixels in, captions out.

    Args:
        path: folder of the artifact.
        device: torch device.
        speed: "bf16" computes convolutions and products in bfloat16; all others in float32, the same for each.
    """

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed = "auto"):
        artifact = read_artifact(path, system="twincap")
        assert artifact.vocabulary is not None
        job = TwinCapJob.model_validate(artifact.config["job"])
        self.path, self.vocabulary, self.trained_on = artifact.path, artifact.vocabulary, artifact.trained_on
        self.beams, self.length_penalty = job.beams, job.length_penalty
        self.size = (job.model.height, job.model.width)
        self.device = torch.device(device)
        self.net = TwinNet(job.model, job.supervision, len(artifact.vocabulary))
        artifact.load_into(self.net)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self.net.to(self.device).eval()
        evidence = [CHANGE_ODDS] * bool(job.supervision.heads) + [CHANGE_HEAT] * bool(job.supervision.dense)
        self.calibration = Calibration.load(path, evidence=evidence)
        self.familiarity = Familiarity.read(path)
        optional: tuple[Capability, ...] = ("map",) if job.supervision.dense else ()
        self.capabilities: frozenset[Capability] = frozenset(("score", "sample", *optional))
        self.bf16 = speed == "bf16"
        if self.bf16 and self.device.type == "cpu" and not bfloat16_is_native():
            log.warning("speed=bf16: this processor has no bfloat16 instructions and emulates them; take speed=auto")

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        """Captions of pairs of uint8 RGB images (H, W, 3) of any sizes; one batch."""
        if not _pairs(befores, afters):
            return []
        with self._running():
            found = self._search(self.net(self._images(befores, afters)), self.beams)
        return [self.vocabulary.decode(ids) for ids in found.ids.tolist()]

    def describe(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        *,
        beams: int | None = None,
        candidates: int = 1,
        change_map: bool = False,
    ) -> list[Description]:
        """See :class:`idc.captioning.contract.Captioner`. The candidates are the final beams."""
        beams = beams_of(beams, candidates, self.beams)
        if not _pairs(befores, afters):
            return []
        with self._running():
            encoded: Encoded = self.net(self._images(befores, afters))
            # Two hypotheses may have the same text: all beams are taken, so that enough texts remain.
            found = self._search(encoded, beams, hypotheses=beams if candidates > 1 else 1)
            evidence, attributes = self._evidence(encoded), self._attributes(encoded)
            maps: Sequence[np.ndarray | None] = [None] * len(befores)
            if change_map:
                maps = list(self.net.change_map(encoded).float().cpu().numpy())
        parts = (part.tolist() for part in (found.ids, found.lengths, found.log_probability))
        familiar = [None] * len(befores) if self.familiarity is None else map(self.familiarity, befores, afters)
        descriptions = [
            Description(
                self._candidates(ids, lengths, totals, candidates),
                change_map=drawn,
                evidence=seen,
                attributes=look,
                familiarity=familiarity,
                trained_on=self.trained_on,
            )
            for ids, lengths, totals, drawn, seen, look, familiarity in zip(
                *parts, maps, evidence, attributes, familiar, strict=True
            )
        ]
        if self.calibration is None:
            return descriptions
        return [replace(one, changed=self.calibration(one)) for one in descriptions]

    def score(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], captions: Sequence[Sequence[str]]
    ) -> list[list[CaptionScore]]:
        """See :class:`idc.captioning.contract.ScoringCaptioner`. A word outside the vocabulary counts as the unknown
        word; a caption that fills all steps of a search has no room for the end token and is scored without it."""
        count = _pairs(befores, afters)
        if len(captions) != count:
            raise ValueError(f"{len(captions)} lists of captions for {count} pairs; give one list per pair")
        tokens = [[self._tokens(caption) for caption in texts] for texts in captions]
        rows = [ids for texts in tokens for ids in texts]
        if not rows:
            return [[] for _ in captions]
        longest = max(map(len, rows))
        padded = [[OWN_IDS.bos, *ids, *[OWN_IDS.pad] * (longest - len(ids))] for ids in rows]
        with self._running():
            memory = self.net(self._images(befores, afters)).memory
            pair_of_row = torch.tensor([pair for pair, texts in enumerate(tokens) for _ in texts], device=self.device)
            ids_RT = torch.tensor(padded, device=self.device)
            logits = self.net.decoder(ids_RT[:, :-1], memory[pair_of_row]).float().log_softmax(dim=-1)
            words = logits.gather(-1, ids_RT[:, 1:].unsqueeze(-1)).squeeze(-1)
        logs = iter(words.tolist())
        return [[CaptionScore(math.fsum(next(logs)[: len(ids)]), len(ids)) for ids in texts] for texts in tokens]

    def sample(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        n: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[list[Candidate]]:
        """See :class:`idc.captioning.contract.SamplingCaptioner`."""
        if not _pairs(befores, afters):
            return []
        generator = torch.Generator(self.device).manual_seed(seed)
        with self._running():
            memory = self.net(self._images(befores, afters)).memory
            found = self.net.sample(memory, n, temperature=temperature, generator=generator)
        parts = (part.tolist() for part in (found.ids, found.lengths, found.log_probability))
        return [
            [Candidate(self.vocabulary.decode(ids), total / length) for ids, length, total in zip(*pair, strict=True)]
            for pair in zip(*parts, strict=True)
        ]

    @contextmanager
    def _running(self) -> Iterator[None]:
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            yield

    def _images(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Tensor:
        """uint8 (B, 2, H, W, 3)."""
        pairs = zip(befores, afters, strict=True)
        images = np.stack([[resize_image(image, self.size) for image in pair] for pair in pairs])
        return torch.from_numpy(images).to(self.device)

    def _search(self, encoded: Encoded, beams: int, hypotheses: int | None = None) -> Decoded:
        return self.net.search(encoded.memory, beams=beams, length_penalty=self.length_penalty, hypotheses=hypotheses)

    def _evidence(self, encoded: Encoded) -> list[dict[str, float]]:
        found: dict[str, list[float]] = {}
        if self.net.kind is not None:
            none = CHANGE_TYPES.index(NO_CHANGE)
            logits = self.net.kind(encoded.pooled).float()
            others = logits[:, [index for index in range(len(CHANGE_TYPES)) if index != none]]
            found[CHANGE_ODDS] = (others.logsumexp(dim=1) - logits[:, none]).tolist()
        if self.net.objects is not None:
            found[CHANGE_HEAT] = encoded.change.float().flatten(1).amax(dim=1).tolist()
        return [{name: values[index] for name, values in found.items()} for index in range(len(encoded.pooled))]

    def _attributes(self, encoded: Encoded) -> Sequence[dict[str, Any] | None]:
        """The most probable type of the change, and the changed object's attributes before and after it: for an added
        object only after, for a removed one only before, without a change neither."""
        if self.net.kind is None or self.net.changed is None:
            return [None] * len(encoded.pooled)
        kinds = _likeliest(self.net.kind(encoded.pooled), CHANGE_TYPES)
        sides = [
            [_likeliest(logits, VALUES[name]) for name, logits in zip(ATTRIBUTES, head(encoded.pooled), strict=True)]
            for head in self.net.changed
        ]
        return [
            {
                "type": kind,
                **{
                    side: None if kind["value"] in absent else
                    {name: column[index] for name, column in zip(ATTRIBUTES, columns, strict=True)}
                    for side, columns, absent in zip(
                        ("before", "after"), sides, (("add", NO_CHANGE), ("drop", NO_CHANGE)), strict=True
                    )
                },
            }
            for index, kind in enumerate(kinds)
        ]  # fmt: skip

    def _tokens(self, caption: str) -> list[int]:
        """Ids of a caption without the beginning mark; the end mark only if a search could generate it."""
        length = self.net.config.decoder.max_length
        words = self.vocabulary.encode(caption)[1:-1][: length - 1]
        return words if len(words) == length - 1 else [*words, OWN_IDS.eos]

    def _candidates(
        self, ids_NT: list[list[int]], lengths_N: list[int], totals_N: list[float], count: int
    ) -> tuple[Candidate, ...]:
        """The best ``count`` different texts of the hypotheses of a pair."""
        found: dict[str, Candidate] = {}
        for ids, length, total in zip(ids_NT, lengths_N, totals_N, strict=True):
            text = self.vocabulary.decode(ids)
            if text not in found and (not found or math.isfinite(total)):
                found[text] = Candidate(text, total / max(1, length))
        return tuple(found.values())[:count]


def _likeliest(logits: Tensor, values: Sequence[str]) -> list[dict[str, Any]]:
    """Value and probability per pair."""
    best = logits.float().softmax(dim=-1).max(dim=-1)
    return [
        {"value": values[index], "probability": probability}
        for index, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _pairs(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> int:
    if len(befores) != len(afters):
        raise ValueError(f"{len(befores)} before and {len(afters)} after images: give as many of each")
    return len(befores)


def load_captioner(path: Path | str, device: str = "cpu", speed: Speed = "auto") -> TwinCaptioner:
    """The captioner of an artifact."""
    return TwinCaptioner(path, device, speed)
