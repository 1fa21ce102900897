"""ProCap as a captioner: captions of pairs with confidences and change maps, generated frames, the probability of given
captions, and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idc.captioning.calibration import Calibration
from idc.captioning.contract import Candidate, Capability, CaptionScore, Description, Speed, beams_of
from idc.captioning.familiarity import Familiarity
from idc.data.text import OWN_IDS, SpecialIds
from idc.decoding import Decoded, decode, sample
from idc.systems.procap.change_map import attention, combine, disagreement
from idc.systems.procap.config import DecoderConfig, EncoderConfig, Procedure, is_captioner
from idc.systems.procap.model import ProcedureEncoder, Shapes, make_token_head
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.keyframes import KeyFrames
from idc.systems.procap.speed import Optimisations, accelerate, optimisations, running
from idc.systems.procap.text_decoder import TextDecoder
from idc.training.artifact import read_artifact
from idc.vision.tokenizer.model import ImageTokenizer, prepare_images, to_frames

TOKENIZER = "tokenizer"
"""Folder of the image tokenizer inside an artifact."""
INTERPOLATOR = "interpolation_weights"
"""Weights of the interpolator inside the artifact of an explicit captioner, if it has any; also the setting's name."""
DISAGREEMENT = "log_disagreement"
"""Name of the captioner's evidence."""


class CaptioningModel(nn.Module):
    """Encoder and decoder together: frames in, word ids out.

    Frames are those that the encoder reads (``model.py``): of the two images (G = 2), or, where ``kind`` is "frames",
    all G = k + 2.

    Args:
        kind: what is between the two images, see :attr:`FinetuneJob.procedure`.
        token_head: also hold stage 1's head from patches to codebook entries. Captions do not need it; it makes the
            procedure visible. It is not trained (as in the official code).
    """

    def __init__(
        self,
        encoder: EncoderConfig,
        decoder: DecoderConfig,
        shapes: Shapes,
        kind: Procedure = "queries",
        token_head: bool = False,
    ):
        super().__init__()
        self.kind = kind
        self.encoder = ProcedureEncoder(encoder, shapes)
        positions = (2 if kind == "none" else shapes.frames) * shapes.patches
        self.decoder = TextDecoder(decoder, encoder.width, shapes.vocabulary_size, positions)
        self.token_head = make_token_head(encoder.width, shapes.codebook_size) if token_head else None

    def procedure(self, frames: Tensor) -> Tensor:
        """The latent procedure of frames, (B, F*P, D), or (B, 2*P, D) with nothing between the images."""
        latent: Tensor = self.encoder("procedure", frames, self.kind)
        return latent

    def forward(self, frames: Tensor, ids_BT: Tensor) -> Tensor:
        """Logits (B, T, V), teacher forced."""
        return self.decoder(ids_BT, self.procedure(frames))

    def search(self, frames: Tensor, **options: Any) -> Decoded:
        """:meth:`decode` of the frames' procedure."""
        return self.decode(self.procedure(frames), **options)

    def decode(
        self,
        procedure_BSD: Tensor,
        *,
        beams: int,
        length_penalty: float,
        hypotheses: int | None = None,
        special: SpecialIds = OWN_IDS,
        cached: bool = True,
    ) -> Decoded:
        """Captions as word ids."""
        return decode(
            self.decoder,
            procedure_BSD,
            **self._rules(special),
            beams=beams,
            length_penalty=length_penalty,
            hypotheses=hypotheses,
            cached=cached,
        )

    def sample(self, procedure_BSD: Tensor, count: int, *, special: SpecialIds, **options: Any) -> Decoded:
        """``count`` captions per pair as word ids, drawn at random (:func:`idc.decoding.sample`)."""
        return sample(self.decoder, procedure_BSD, count, **self._rules(special), **options)

    def score(self, procedure_BSD: Tensor, ids_BT: Tensor, special: SpecialIds) -> Tensor:
        """Log-probabilities (B, T) of the words ``ids_BT``, which follow the beginning mark, by teacher forcing."""
        begin = torch.full_like(ids_BT[:, :1], special.bos)
        logits = self.decoder(torch.cat([begin, ids_BT[:, :-1]], dim=1), procedure_BSD)
        words: Tensor = logits.float().log_softmax(dim=-1).gather(-1, ids_BT.unsqueeze(-1)).squeeze(-1)
        return words

    def _rules(self, special: SpecialIds) -> dict[str, Any]:
        """What may be generated: never the unknown word, nor padding and a second beginning mark unless
        ``decoder.ban_unknown_only`` is set."""
        config = self.decoder.config
        return {
            "bos": special.bos,
            "eos": special.eos,
            "pad": special.pad,
            "max_length": config.max_length - 1,
            "banned": (special.unk,) if config.ban_unknown_only else (special.unk, special.pad, special.bos),
        }

    def imagined(self, procedure_BSD: Tensor, head: nn.Module) -> Tensor:
        """Most probable codebook entries of the frames between the images, (B, k, P)."""
        assert self.kind == "queries"
        codes: Tensor = head(procedure_BSD.unflatten(1, (self.encoder.shapes.frames, -1))[:, 1:-1]).argmax(dim=-1)
        return codes


FrameReader = Callable[[Tensor], Tensor]
"""Images (M, 3, Y, X) in [0, 1] to the frames that an encoder reads: features (M, P, Z), or the images themselves."""


def frame_reader(encoder: EncoderConfig, tokenizer: ImageTokenizer) -> FrameReader:
    """The tokenizer's features; for an encoder with a stem the images."""
    return (lambda images: images) if encoder.stem else tokenizer.features


def shapes_of(saved: dict[str, Any]) -> Shapes:
    return Shapes(**{**saved, "grid": tuple(saved["grid"])})


def key_frames(which: str, build: dict[str, Any], tokenizer: ImageTokenizer) -> KeyFrames:
    """Generator of the frames between two images, made like those of the procedures.

    Args:
        which: :attr:`FinetuneJob.explicit_frames`.
        build: the settings of the procedures.

    Raises:
        ValueError: the procedures' key frames were selected by more than the two images, or a part cannot be loaded.
    """
    if build.get("videos"):
        raise ValueError(
            "procedure=frames: the frames of these procedures were read from build.videos, which has no new pairs; "
            "build procedures with an interpolation"
        )
    if which != "even" and (build.get("strategy") in ("visual_text", "mixed") or build.get("scores") is not None):
        raise ValueError(
            "procedure=frames: the key frames of these procedures were drawn with captions or stored scores, which a "
            "new pair does not have; build procedures with strategy=visual, or set explicit_frames=even"
        )
    return KeyFrames(ProceduresConfig.model_validate(build), tokenizer, even=which == "even")


class PairCaptioner:
    """A loaded stage 2 artifact, an :class:`idc.captioning.contract.Captioner`: pixels in, captions out.

    Args:
        path: folder of the artifact.
        device: torch device.
        speed: a user's choice, or the optimisations one by one.
    """

    frames_meaningful = False
    """Stage 2 trains the queries, and no loss ties them to stage 1's token head."""

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed | Optimisations = "auto"):
        artifact = read_artifact(path, system="procap")
        if not is_captioner(artifact.config):
            raise ValueError(f"{path} is an artifact of ProCap's stage 1, which cannot caption; run finetune_procap.py")
        assert artifact.vocabulary is not None
        job = artifact.config["job"]
        self.path = artifact.path
        self.vocabulary = artifact.vocabulary
        self.calibration = Calibration.load(path, evidence=[DISAGREEMENT])
        self.familiarity = Familiarity.read(path)
        self.beams, self.length_penalty = job["beams"], job["length_penalty"]
        self.device = torch.device(device)
        self.tokenizer = ImageTokenizer.load(artifact.extra(TOKENIZER)).to(self.device)
        self.captioner = CaptioningModel(
            EncoderConfig.model_validate(artifact.config["encoder"]),
            DecoderConfig.model_validate(job["decoder"]),
            shapes_of(artifact.config["shapes"]),
            job.get("procedure", "queries"),
            artifact.config.get("token_head", False),
        )
        artifact.load_into(self.captioner)
        imagines = self.captioner.kind == "queries" and self.captioner.token_head is not None
        optional: tuple[Capability, ...] = ("imagine",) if imagines else ()
        self.capabilities: frozenset[Capability] = frozenset(("map", "score", "sample", *optional))
        self.trained_on = artifact.trained_on
        self.captioner.to(self.device).eval()
        self.speed = optimisations(speed, self.device)
        accelerate(self.tokenizer, self.captioner.encoder, self.speed, self.device)
        self.explicit: KeyFrames | None = None
        if self.captioner.kind == "frames":
            build = dict(artifact.config["build"])
            if build.get(INTERPOLATOR) is not None:
                build[INTERPOLATOR] = str(artifact.extra(INTERPOLATOR))
            self.explicit = key_frames(job["explicit_frames"], build, self.tokenizer)

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        """Captions of pairs of uint8 RGB images (H, W, 3) of any sizes; one batch."""
        if not _pairs(befores, afters):
            return []
        with running(self.speed, self.device):
            found = self._search(self.captioner.procedure(self._features(befores, afters)), self.beams)
        return [self._text(ids) for ids in found.ids.tolist()]

    def describe(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        *,
        beams: int | None = None,
        candidates: int = 1,
        change_map: bool = False,
    ) -> list[Description]:
        """See :class:`idc.captioning.contract.Captioner`. The candidates are the final beams, the map is that of
        ``change_map.py``, the evidence is the logarithm of the largest disagreement of a patch."""
        beams = beams_of(beams, candidates, self.beams)
        if not _pairs(befores, afters):
            return []
        with running(self.speed, self.device):
            features = self._features(befores, afters)
            procedure = self.captioner.procedure(features)
            # Two hypotheses may have the same text: all beams are taken, so that enough texts remain.
            found = self._search(procedure, beams, hypotheses=beams if candidates > 1 else 1)
            apart = disagreement(features)
            maps = self._change_maps(apart, procedure, found) if change_map else [None] * len(befores)
        most = apart.amax(dim=1).clamp_min(1e-6).log().tolist()
        parts = (part.tolist() for part in (found.ids, found.lengths, found.log_probability))
        familiar = [None] * len(befores) if self.familiarity is None else map(self.familiarity, befores, afters)
        descriptions = [
            Description(
                self._candidates(ids, lengths, totals, candidates),
                change_map=drawn,
                evidence={DISAGREEMENT: evidence},
                familiarity=familiarity,
                trained_on=self.trained_on,
            )
            for ids, lengths, totals, drawn, evidence, familiarity in zip(*parts, maps, most, familiar, strict=True)
        ]
        if self.calibration is None:
            return descriptions
        return [replace(one, changed=self.calibration(one)) for one in descriptions]

    def score(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], captions: Sequence[Sequence[str]]
    ) -> list[list[CaptionScore]]:
        """See :class:`idc.captioning.contract.ScoringCaptioner`. A word outside the vocabulary counts as the unknown
        word, and a caption is cut to the number of steps of a search. One that fills all of them has no room for the
        end token and is scored without it, as in the search."""
        count = _pairs(befores, afters)
        if len(captions) != count:
            raise ValueError(f"{len(captions)} lists of captions for {count} pairs; give one list per pair")
        tokens = [[self._tokens(caption) for caption in texts] for texts in captions]
        rows = [ids for texts in tokens for ids in texts]
        if not rows:
            return [[] for _ in captions]
        special, longest = self.vocabulary.special, max(map(len, rows))
        padded = [[*ids, *[special.pad] * (longest - len(ids))] for ids in rows]
        with running(self.speed, self.device):
            procedure = self.captioner.procedure(self._features(befores, afters))
            pair_of_row = torch.tensor([pair for pair, texts in enumerate(tokens) for _ in texts], device=self.device)
            ids_RT = torch.tensor(padded, device=self.device)
            words_RT = self.captioner.score(procedure[pair_of_row], ids_RT, special)
        logs = iter(words_RT.tolist())
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
        with running(self.speed, self.device):
            procedure = self.captioner.procedure(self._features(befores, afters))
            found = self.captioner.sample(
                procedure, n, special=self.vocabulary.special, temperature=temperature, generator=generator
            )
        parts = (part.tolist() for part in (found.ids, found.lengths, found.log_probability))
        return [
            [Candidate(self._text(ids), total / length) for ids, length, total in zip(*pair, strict=True)]
            for pair in zip(*parts, strict=True)
        ]

    def imagine(self, before: np.ndarray, after: np.ndarray, head: nn.Module | None = None) -> list[np.ndarray]:
        """Decode by the image tokenizer the codebook entries that stage 1's head predicts from the hidden states that
        the text decoder reads (``imagine.py`` discusses what these pictures mean).

        Args:
            head: by default the artifact's own.

        Returns:
            k + 2 frames, uint8 (Y, X, 3); first and last are the two images, decoded from their own codebook entries.

        Raises:
            ValueError: the artifact has no head, or no queries.
        """
        head = head if head is not None else self.captioner.token_head
        if head is None or self.captioner.kind != "queries":
            raise ValueError(
                f"{self.path} cannot imagine: it needs procedure=queries and stage 1's head from patches to codebook "
                "entries, which an artifact that began with stage 1 has"
            )
        with running(self.speed, self.device):
            images = prepare_images([before, after], self.tokenizer.config).to(self.device)
            codes = self.captioner.imagined(self.captioner.procedure(self._read(images).unsqueeze(0)), head)[0]
            return list(pictures(images, codes, self.tokenizer))

    def _search(self, procedure: Tensor, beams: int, hypotheses: int | None = None) -> Decoded:
        return self.captioner.decode(
            procedure,
            beams=beams,
            length_penalty=self.length_penalty,
            hypotheses=hypotheses,
            special=self.vocabulary.special,
            cached=self.speed.cached,
        )

    def _change_maps(self, apart: Tensor, procedure: Tensor, found: Decoded) -> list[np.ndarray]:
        """Change maps (Y, X) of the best hypotheses."""
        best = Decoded(*(part[:, 0] for part in found))
        shapes = self.captioner.encoder.shapes
        attended = attention(self.captioner.decoder, procedure, best, shapes.patches, self.vocabulary.special)
        return list(combine(apart, attended).unflatten(1, shapes.grid).float().cpu().numpy())

    def _features(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Tensor:
        """Input of the encoder, (B, G, P, Z)."""
        return self._ends(befores, afters) if self.explicit is None else self.explicit(befores, afters)

    def _ends(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Tensor:
        """Features of the two images of each pair, (B, 2, P, Z)."""
        images = prepare_images([*befores, *afters], self.tokenizer.config)
        frames = self._read(images.to(self.device))
        ends = torch.stack([frames[: len(befores)], frames[len(befores) :]], dim=1)
        return self.captioner.encoder.features(ends).float()

    def _read(self, images: Tensor) -> Tensor:
        return frame_reader(self.captioner.encoder.config, self.tokenizer)(images).float()

    def _tokens(self, caption: str) -> list[int]:
        """Ids of a caption without the beginning mark; the end mark only if a search could generate it."""
        length = self.captioner.decoder.config.max_length
        words = self.vocabulary.encode(caption)[1:-1][: length - 1]
        return words if len(words) == length - 1 else [*words, self.vocabulary.special.eos]

    def _text(self, ids: list[int]) -> str:
        return self.vocabulary.decode([self.vocabulary.special.bos, *ids])

    def _candidates(
        self, ids_NT: list[list[int]], lengths_N: list[int], totals_N: list[float], count: int
    ) -> tuple[Candidate, ...]:
        """The best ``count`` different texts of the hypotheses of a pair."""
        found: dict[str, Candidate] = {}
        for ids, length, total in zip(ids_NT, lengths_N, totals_N, strict=True):
            text = self._text(ids)
            if text not in found and (not found or math.isfinite(total)):
                found[text] = Candidate(text, total / max(1, length))
        return tuple(found.values())[:count]


def _pairs(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> int:
    if len(befores) != len(afters):
        raise ValueError(f"{len(befores)} before and {len(afters)} after images: give as many of each")
    return len(befores)


@torch.no_grad()
def pictures(ends_23YX: Tensor, codes_kP: Tensor, tokenizer: ImageTokenizer) -> np.ndarray:
    """Frames of codebook entries, uint8 (k + 2, Y, X, 3): those of the two ends, and between them the given ones."""
    first, last = tokenizer.encode(ends_23YX).unsqueeze(1).unbind(0)
    return to_frames(tokenizer.decode(torch.cat([first, codes_kP, last])))


def load_captioner(path: Path | str, device: str = "cpu", speed: Speed = "auto") -> PairCaptioner:
    """The captioner of an artifact."""
    return PairCaptioner(path, device, speed)
