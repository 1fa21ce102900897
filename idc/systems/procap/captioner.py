"""ProCap as a captioner: captions of pairs with confidences and change maps, the probability of given captions, and
samples.

The change map of a pair, for patch p of the image tokenizer's grid:

    d_p = |b_p - a_p| / max_q (|b_q| + |a_q|)      disagreement, in [0, 1]
    s_p = A_p / max_q A_q                          attention, in [0, 1]
    map_p = d_p (1 + s_p) / 2                      in [0, 1]

b and a are the tokenizer's features of the two images, each less its own image's mean over the patches, so that a light
that shifts all patches equally causes no disagreement. A is the decoder's cross-attention to the latent procedure while
it generates the best caption, mean over layers, heads and words (not the end token), summed over the frames. The scale
is not stretched to the content of a pair: the map of an unchanged pair is dark, not amplified noise. Features rather
than the tokens they are quantised to: tokens differ in many patches because of the renderer's noise alone.

B pairs, G frames, P patches, Z features, T words, S = F * P positions of the latent procedure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from idc.captioning.contract import Images, Speed
from idc.data.text import OWN_IDS, SpecialIds
from idc.nn.decoding import Decoded
from idc.nn.word_captioner import DescriptionExtras, WordCaptioner
from idc.systems.procap.config import DecoderConfig, EncoderConfig, FinetuneJob, Procedure, is_captioner
from idc.systems.procap.model import ProcedureEncoder, Shapes
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.stages import KeyFrames
from idc.systems.procap.speed import accelerate, optimisations, running
from idc.systems.procap.text_decoder import TextDecoder
from idc.training.artifact import read_artifact
from idc.vision.tokenizer.model import ImageTokenizer, prepare_images


def disagreement(frames_BGPZ: Tensor) -> Tensor:
    """d of the first and the last frame, (B, P)."""
    ends = frames_BGPZ[:, [0, -1]].float()
    ends = ends - ends.mean(dim=2, keepdim=True)
    most = ends.norm(dim=-1).sum(dim=1).amax(dim=1, keepdim=True)
    # Two images of one colour each have no features left here: 0, not 0 / 0.
    return (ends[:, 1] - ends[:, 0]).norm(dim=-1) / most.clamp_min(1e-12)


def attention(
    decoder: TextDecoder, procedure_BSD: Tensor, captions: Decoded, patches: int, special: SpecialIds
) -> Tensor:
    """s of the generated captions, one per pair, (B, P), in one pass over their words."""
    ids_BT = captions.ids
    begin = torch.full_like(ids_BT[:, :1], special.bos)
    attended_BTS = decoder.attended(torch.cat([begin, ids_BT[:, :-1]], dim=1), procedure_BSD)
    words_BT = (torch.arange(ids_BT.shape[1], device=ids_BT.device) < captions.lengths.unsqueeze(1)) & (
        ids_BT != special.eos
    )
    words_BT[:, 0] |= ~words_BT.any(dim=1)  # a caption without words: the end token's attention
    total_BS = (attended_BTS * words_BT.unsqueeze(-1)).sum(dim=1)
    patches_BP = total_BS.unflatten(1, (-1, patches)).sum(dim=1)
    return patches_BP / patches_BP.amax(dim=1, keepdim=True)


def combine(disagreement_BP: Tensor, attention_BP: Tensor) -> Tensor:
    """The map, (B, P)."""
    return disagreement_BP * (1 + attention_BP) / 2


TOKENIZER = "tokenizer"
"""Folder of the image tokenizer inside an artifact."""
INTERPOLATOR = "interpolation_weights"
"""Weights of the interpolator inside the artifact of an explicit captioner, if it has any; also the setting's name."""
DISAGREEMENT = "log_disagreement"
"""Name of the captioner's evidence."""


class CaptioningModel(nn.Module):
    """Encoder and decoder together: frames that the encoder reads (``model.py``) in, word ids out. Frames of the two
    images (G = 2), or, where ``kind`` (:attr:`FinetuneJob.procedure`) is "frames", all G = k + 2."""

    def __init__(self, encoder: EncoderConfig, decoder: DecoderConfig, shapes: Shapes, kind: Procedure = "queries"):
        super().__init__()
        self.kind = kind
        self.encoder = ProcedureEncoder(encoder, shapes)
        positions = (2 if kind == "none" else shapes.frames) * shapes.patches
        self.decoder = TextDecoder(decoder, encoder.width, shapes.vocabulary_size, positions)

    def procedure(self, frames: Tensor) -> Tensor:
        """The latent procedure of frames, (B, F*P, D), or (B, 2*P, D) with nothing between the images."""
        latent: Tensor = self.encoder("procedure", frames, self.kind)
        return latent

    def forward(self, frames: Tensor, ids: Tensor, real_BCT: Tensor | None = None) -> Tensor:
        """Logits, teacher forced, as :meth:`TextDecoder.forward` returns them."""
        return self.decoder(ids, self.procedure(frames), real_BCT)

    def search(self, frames: Tensor, *, special: SpecialIds = OWN_IDS, **options: Any) -> Decoded:
        """Captions as word ids by :func:`idc.nn.decoding.decode`."""
        return self.decoder.search(self.procedure(frames), **{**self.decoder.rules(special), **options})


FrameReader = Callable[[Tensor], Tensor]
"""Images (M, 3, Y, X) in [0, 1] to the frames that an encoder reads: features (M, P, Z), or the images themselves."""


def frame_reader(encoder: EncoderConfig, tokenizer: ImageTokenizer) -> FrameReader:
    """The tokenizer's features; for an encoder with a stem the images."""
    return (lambda images: images) if encoder.stem else tokenizer.features


def shapes_of(saved: dict[str, Any]) -> Shapes:
    return Shapes(**{**saved, "grid": tuple(saved["grid"])})


class Encoded(NamedTuple):
    """What ProCap computes of pairs before the words: the frames that the encoder reads, the latent procedure."""

    features: Tensor
    memory: Tensor


class PairCaptioner(WordCaptioner[Encoded]):
    """A loaded stage 2 artifact: pixels in, captions out. Its evidence is the
    logarithm of the largest disagreement of a patch; ``speed``: see :func:`idc.systems.procap.speed.optimisations`."""

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed = "auto"):
        artifact = read_artifact(path, system="procap")
        if not is_captioner(artifact.config):
            raise ValueError(f"{path} is an artifact of ProCap's stage 1, which cannot caption; run finetune_procap.py")
        assert artifact.vocabulary is not None
        job = artifact.settings(FinetuneJob)
        self.tokenizer = ImageTokenizer.load(artifact.extra(TOKENIZER)).to(device)
        self.net = CaptioningModel(
            artifact.settings(EncoderConfig, "encoder"),
            job.decoder,
            shapes_of(artifact.config["shapes"]),
            job.procedure,
        )
        artifact.load_into(self.net)
        self.net.to(device).eval()
        self.speed = optimisations(speed, torch.device(device))
        accelerate(self.tokenizer, self.net.encoder, self.speed, torch.device(device))
        super().__init__(
            artifact,
            device,
            self.net.decoder,
            job,
            rules=self.net.decoder.rules(artifact.vocabulary.special),
            evidence=[DISAGREEMENT],
            image_size=self.tokenizer.config.image_size,
            cached=self.speed.cached,
        )
        self.explicit: KeyFrames | None = None
        if self.net.kind == "frames":
            build = dict(artifact.config["build"])
            if build.get(INTERPOLATOR) is not None:
                build[INTERPOLATOR] = str(artifact.extra(INTERPOLATOR))
            self.explicit = KeyFrames(ProceduresConfig.model_validate(build), self.tokenizer)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with running(self.speed, self.device):
            yield

    def _encode(self, befores: Images, afters: Images) -> Encoded:
        features = self._features(befores, afters)
        return Encoded(features, self.net.procedure(features))

    def _findings(self, encoded: Encoded, decoded: Decoded, change_map: bool) -> Sequence[DescriptionExtras]:
        apart = disagreement(encoded.features)
        # Equal images do not disagree at all: the logarithm of 0 would not be finite.
        most = apart.amax(dim=1).clamp_min(1e-6).log().tolist()
        maps: Sequence[np.ndarray | None] = [None] * len(most)
        if change_map:
            shapes, decoder = self.net.encoder.shapes, self.net.decoder
            attended = attention(decoder, encoded.memory, decoded, shapes.patches, self.vocabulary.special)
            maps = list(combine(apart, attended).unflatten(1, shapes.grid).float().cpu().numpy())
        return [DescriptionExtras({DISAGREEMENT: evidence}, drawn) for evidence, drawn in zip(most, maps, strict=True)]

    def _features(self, befores: Images, afters: Images) -> Tensor:
        """Input of the encoder, (B, G, P, Z): of the two images, or of frames between too."""
        if self.explicit is not None:
            return self.explicit(befores, afters)
        images = prepare_images([*befores, *afters], self.tokenizer.config).to(self.device)
        frames = frame_reader(self.net.encoder.config, self.tokenizer)(images).float()
        return self.net.encoder.features(torch.stack(frames.chunk(2), dim=1)).float()


load_captioner = PairCaptioner
