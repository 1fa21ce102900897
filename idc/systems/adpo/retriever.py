"""The retriever: the image side of a pair encoder, which learns, and the vectors of the bank's captions, which do
not."""

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
    """log q_phi of candidates.

    Letters: B pairs, N candidates of each, C captions of the bank, E width of the vectors.

    Raises:
        ValueError: ``config.encoder`` is no pair encoder, or has no tokenizer.
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

    def read(self, captions: Sequence[str]) -> None:
        """Take these as the bank."""
        encoder = PairEncoder.load(self.config.encoder, self.mean.device)
        self.captions_CE = torch.from_numpy(encoder.encode_texts(captions)).to(self.mean.device)

    def forward(self, frames_B23HW: Tensor, candidates_BN: Tensor) -> tuple[Tensor, Tensor]:
        """log q of each candidate and its cosine with the pair, (B, N) each.

        Args:
            candidates_BN: numbers of captions in the bank.
        """
        before, after = ((frames.float() / 255 - self.mean) / self.std for frames in frames_B23HW.unbind(dim=1))
        pairs_BE = F.normalize(self.visual(before, after).float(), dim=-1)
        # In float32 under autocast too: in bfloat16 a cosine has three digits.
        with torch.autocast(pairs_BE.device.type, enabled=False):
            cosines_BN = torch.einsum("be,bne->bn", pairs_BE, self.captions_CE[candidates_BN])
            return (self.factor * cosines_BN).log_softmax(dim=1), cosines_BN


def frames_of(images: Sequence[np.ndarray], size: int) -> Tensor:
    """A pair's images uint8 (H, W, 3) of any sizes as the retriever sees them, uint8 (2, 3, S, S)."""
    return torch.from_numpy(np.stack([resize_image(image, size) for image in images])).permute(0, 3, 1, 2)


def frame_size(config: RetrieverConfig) -> int:
    """S of a retriever's encoder; no weights are read.

    Raises:
        ValueError: it is no pair encoder.
    """
    return PairEncoderConfig.model_validate(read_artifact(config.encoder, system=SYSTEM).config["encoder"]).image_size


def save_retriever(config: RetrieverConfig, visual: Mapping[str, Tensor], folder: Path) -> None:
    """Write the encoder with a trained image side (the state of :attr:`Retriever.visual`) as a pair encoder."""
    encoder = PairEncoder.load(config.encoder)
    encoder.clip.visual.load_state_dict(dict(visual))
    encoder.save(folder, card=f"The retriever of ADPO, trained from {config.encoder}.")
