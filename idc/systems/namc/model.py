"""NAMC's captioner: the masked image encoder (MIR, section 3.2.2) and the multi-modal decoder (FDG, section 3.2.3).

Unusual here: one Transformer does two things with the same weights. To *reconstruct*, its cross-attention reads the
denoised description and its masked positions are predicted; to *compare*, it runs as two streams, each image's
cross-attention reads the other image, and masked positions are attended to nowhere. The two streams are joined per
position, and the decoder writes from that. Without masks and without the reconstruction it is a captioner, which is all
that fine-tuning keeps.

Shapes:
    B pairs   N images   P = n_I positions of an image   C channels of the CNN's grid   D hidden size (the paper's d)
    T text tokens   E width of the dual encoder's shared space   V image tokens
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.nn.mimetic import compare_
from idc.nn.word_decoder import WordDecoder
from idc.systems.namc.config import EncoderConfig, ImageConfig, ModelConfig

_STEM_GROUPS = 8


class Attention(nn.Module):
    """Multi-head attention of queries to a memory, of which positions may be hidden."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x_NPD: Tensor, memory_NSD: Tensor, hidden_NS: Tensor | None) -> Tensor:
        """``hidden_NS``: positions of the memory that are not attended to."""
        query, key, value = self._split(self.q(x_NPD)), *map(self._split, self.kv(memory_NSD).chunk(2, dim=-1))
        allowed = None if hidden_NS is None else ~hidden_NS[:, None, None]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return cast(Tensor, self.out(mixed.transpose(1, 2).flatten(2)))

    def weights(self, x_NPD: Tensor, memory_NSD: Tensor) -> Tensor:
        """Attention (N, P, S), mean over the heads; :meth:`forward` never forms it."""
        query, key = self._split(self.q(x_NPD)), self._split(self.kv(memory_NSD).chunk(2, dim=-1)[0])
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        return scores.float().softmax(dim=-1).mean(dim=1)

    @torch.no_grad()
    def compare(self) -> None:
        """Attend to similar positions, and subtract what is found there (:func:`idc.nn.mimetic.compare_`)."""
        width = self.out.weight.shape[0]
        # compare_ takes the packed layout and writes into it; this is a copy, so its parts are copied back.
        packed = torch.cat([self.q.weight, self.kv.weight])
        compare_(packed, self.out.weight, self.heads)
        self.q.weight.copy_(packed[:width])
        self.kv.weight.copy_(packed[width:])

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each on the normalised input and added to it."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        width = config.width
        self.norm_self, self.norm_cross, self.norm_memory, self.norm_feedforward = (
            nn.LayerNorm(width) for _ in range(4)
        )
        self.attend_self, self.attend_other = (Attention(width, config.heads) for _ in range(2))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def within(self, x_NPD: Tensor, hidden_NP: Tensor | None) -> Tensor:
        """After the self-attention."""
        normed = self.norm_self(x_NPD)
        return x_NPD + cast(Tensor, self.dropout(self.attend_self(normed, normed, hidden_NP)))

    def across(self, x_NPD: Tensor, memory_NSD: Tensor, hidden_NS: Tensor | None) -> Tensor:
        """After cross-attention to a memory and the feed-forward part."""
        attended = self.attend_other(self.norm_cross(x_NPD), self.norm_memory(memory_NSD), hidden_NS)
        x_NPD = x_NPD + self.dropout(attended)
        return x_NPD + cast(Tensor, self.dropout(self.narrow(F.gelu(self.widen(self.norm_feedforward(x_NPD))))))


class MaskedImageEncoder(nn.Module):
    """MIR's encoder over the grid features (P positions, C channels) of images."""

    def __init__(self, config: EncoderConfig, channels: int, positions: int):
        super().__init__()
        width = config.width
        self.mask = nn.Parameter(torch.randn(channels) * 0.02)  # e_M
        self.project = nn.Linear(channels, width)  # the convolution with kernel size one
        self.positions = nn.Parameter(torch.randn(positions, width) * (1.0 if config.comparing else 0.02))
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.join = nn.Linear(2 * width, width)
        self.memory_norm = nn.BatchNorm1d(positions * width) if config.memory_norm == "batch" else None
        if config.comparing:
            for layer in self._layers():
                layer.attend_other.compare()

    def embed(self, features_NPC: Tensor, masked_NP: Tensor | None = None) -> Tensor:
        """The masked image embedding, (N, P, D)."""
        if masked_NP is not None:
            features_NPC = torch.where(masked_NP.unsqueeze(-1), self.mask.to(features_NPC.dtype), features_NPC)
        return cast(Tensor, self.project(features_NPC)) + self.positions

    def content(self, x_NPD: Tensor) -> Tensor:
        """An embedding without its positions."""
        return x_NPD - self.positions

    def reconstruct(self, x_NPD: Tensor, text_NTD: Tensor, hidden_NT: Tensor) -> Tensor:
        """Y_i of eq. 17, (N, P, D): each image reads its description, of which padding is hidden."""
        for layer in self._layers():
            x_NPD = layer.across(layer.within(x_NPD, None), text_NTD, hidden_NT)
        return cast(Tensor, self.norm(x_NPD))

    def compare(self, x_2BPD: Tensor, hidden_2BP: Tensor | None = None) -> Tensor:
        """The joined streams (B, P, D) of B pairs: the first B embeddings are those of before, the others of after.
        Hidden positions are not attended to, in either attention."""
        for layer in self._layers():
            others = x_2BPD.roll(len(x_2BPD) // 2, dims=0)
            others_hidden = None if hidden_2BP is None else hidden_2BP.roll(len(hidden_2BP) // 2, dims=0)
            x_2BPD = layer.across(layer.within(x_2BPD, hidden_2BP), others, others_hidden)
        joined = cast(Tensor, self.join(torch.cat(self.norm(x_2BPD).chunk(2), dim=-1)))
        return joined if self.memory_norm is None else self.memory_norm(joined.flatten(1)).view_as(joined)

    def co_attention(self, x_2BPD: Tensor) -> Tensor:
        """Attention of the after image's positions to those of before, and of before to after, (2, B, P, P), mean over
        layers and heads."""
        looks = []
        for layer in self._layers():
            others = x_2BPD.roll(len(x_2BPD) // 2, dims=0)
            inner = layer.within(x_2BPD, None)
            looks.append(layer.attend_other.weights(layer.norm_cross(inner), layer.norm_memory(others)))
            x_2BPD = layer.across(inner, others, None)
        before, after = torch.stack(looks).mean(dim=0).chunk(2)
        return torch.stack([after, before])

    def _layers(self) -> list[EncoderLayer]:
        return [cast(EncoderLayer, layer) for layer in self.layers]


class Stem(nn.Module):
    """Convolutions trained with the captioner in place of a frozen CNN; every level halves the resolution."""

    def __init__(self, channels: tuple[int, ...]):
        super().__init__()
        levels: list[nn.Module] = []
        for width_in, width_out in zip((3, *channels[:-1]), channels, strict=True):
            levels += [
                nn.Conv2d(width_in, width_out, 3, stride=2, padding=1),
                nn.GroupNorm(_STEM_GROUPS, width_out),
                nn.GELU(),
            ]
        self.levels = nn.Sequential(*levels)

    def forward(self, images_NHWC: Tensor) -> Tensor:
        """uint8 images to (N, P, C)."""
        pixels = images_NHWC.permute(0, 3, 1, 2).float() / 127.5 - 1
        return cast(Tensor, self.levels(pixels)).flatten(2).transpose(1, 2)


class NamcNet(nn.Module):
    """Encoder and decoder: what pre-training and fine-tuning share, and the whole captioner. ``channels`` of the
    frozen CNN, with a stem its own."""

    def __init__(self, config: ModelConfig, channels: int, vocabulary_size: int):
        super().__init__()
        image: ImageConfig = config.image
        self.config = config
        self.stem = Stem(image.stem_channels) if image.cnn == "stem" else None
        self.encoder = MaskedImageEncoder(config.encoder, channels, image.grid**2)
        self.decoder = WordDecoder(config.decoder, vocabulary_size)

    def memory(self, features_2BPC: Tensor, masked_2BP: Tensor | None = None) -> Tensor:
        """E_MIR (B, P, D) of grid features; the first B are those of before."""
        return self.encoder.compare(self.encoder.embed(features_2BPC, masked_2BP), masked_2BP)


class PretrainHeads(nn.Module):
    """Heads that only MIR's reconstruction needs: the description at the encoder's width, and the prediction of V
    image tokens, or of C channels of reconstructed features."""

    def __init__(self, text_width: int, width: int, outputs: int):
        super().__init__()
        self.text = nn.Linear(text_width, width)
        self.predict = nn.Linear(width, outputs)
