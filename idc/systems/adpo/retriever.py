"""The retriever: the trainable image side of a pair encoder, and fixed vectors of the bank's captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.images import resize_image
from idc.systems.adpo.config import RetrieverConfig
from idc.training.artifact import read_artifact
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pair_encoder.model import SYSTEM, PairEncoder


class Retriever(nn.Module):
    """log q_phi of candidates (equation 3). ValueError: ``config.encoder`` is not a pair encoder, or has no
    tokenizer.

    Letters: B pairs, N candidates, C captions of the bank, E width of the vectors.
    """

    mean: Tensor
    std: Tensor
    captions_CE: Tensor

    def __init__(self, config: RetrieverConfig) -> None:
        super().__init__()
        encoder = PairEncoder.load(config.encoder)
        encoder.encode_texts([""])  # refuses an encoder without tokenizer
        self.config = config
        self.visual = encoder.clip.visual.requires_grad_(config.learns)
        self.factor = (config.similarity_scale or float(encoder.clip.scale)) / config.tau
        for name in ("mean", "std"):
            self.register_buffer(name, getattr(encoder, name), persistent=False)
        self.register_buffer("captions_CE", torch.zeros(0), persistent=False)

    def index_captions(self, captions: Sequence[str]) -> None:
        """Compute the vectors of the bank's captions."""
        encoder = PairEncoder.load(self.config.encoder, self.mean.device)
        self.captions_CE = torch.from_numpy(encoder.encode_texts(captions)).to(self.mean.device)

    def forward(self, frames_B23HW: Tensor, candidates_BN: Tensor) -> tuple[Tensor, Tensor]:
        """log q of the candidates, numbers of captions in the bank, and their cosines with the pairs, (B, N) each."""
        before, after = ((frames.float() / 255 - self.mean) / self.std for frames in frames_B23HW.unbind(dim=1))
        pairs_BE = F.normalize(self.visual(before, after).float(), dim=-1)
        # In float32 also under autocast: a bfloat16 cosine has three digits.
        with torch.autocast(pairs_BE.device.type, enabled=False):
            cosines_BN = torch.einsum("be,bne->bn", pairs_BE, self.captions_CE[candidates_BN])
            return (self.factor * cosines_BN).log_softmax(dim=1), cosines_BN


def frames_of(images: Sequence[np.ndarray], size: int) -> Tensor:
    """A pair's images uint8 (H, W, 3), of any sizes, as input of the retriever: uint8 (2, 3, S, S)."""
    return torch.from_numpy(np.stack([resize_image(image, size) for image in images])).permute(0, 3, 1, 2)


def frame_size(config: RetrieverConfig) -> int:
    """S of a retriever's encoder, without reading its weights; ValueError if it is not a pair encoder."""
    return PairEncoderConfig.model_validate(read_artifact(config.encoder, system=SYSTEM).config["encoder"]).image_size


def save_retriever(config: RetrieverConfig, visual: Mapping[str, Tensor], folder: Path) -> None:
    """Write a pair encoder whose image side has the state of :attr:`Retriever.visual`."""
    encoder = PairEncoder.load(config.encoder)
    encoder.clip.visual.load_state_dict(dict(visual))
    encoder.save(folder, card=f"The retriever of ADPO, trained from {config.encoder}.")
