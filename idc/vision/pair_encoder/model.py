"""The pair encoder (CLIP4IDC): maps an image pair and a text to vectors that are similar if the text describes the
change.

Guo, Wang and Laaksonen 2022, "CLIP4IDC: CLIP for Image Difference Captioning", its retrieval stage. Unusual here: the
first blocks of CLIP's image Transformer see each image by itself; the last ones see the tokens of both images as one
sequence, after an embedding of "before" or "after" and a second position embedding are added. The vector of the pair is
the mean of the two class tokens. The order counts: (before, after) is a different pair from (after, before).

Names and shapes in the state dict are the official ones, ``clip.*``. All weights are float32 (official files keep most
matrices in float16). Attention is our own, because ``nn.MultiheadAttention`` reads ``out_proj`` outside its forward,
which ZeRO-3 does not see.

Shapes:
    B pairs   C texts   P = tokens of one image, class token first   L positions   W width   T tokens of a text
    E embedding, width of the vectors
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.images import resize_image
from idc.data.text import Vocabulary
from idc.nn.mimetic import compare_
from idc.training.artifact import read_artifact, write_artifact
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pretrained import load_pretrained

SYSTEM = "pair_encoder"
"""System name in its artifacts."""
TOKENIZER = "tokenizer"
"""Folder of CLIP's tokenizer inside an artifact."""
NEW = ("joint_positional_embedding", "bef_embedding", "aft_embedding", "ln_mid.weight", "ln_mid.bias")
"""Parameters that CLIP4IDC adds to CLIP, under ``clip.visual.``."""
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's normalisation of RGB in [0, 1]."""
LARGEST_SCALE = math.log(100)
"""CLIP's upper bound of ``logit_scale``."""


# -- blocks ------------------------------------------------------------------------------------------------------


class EncoderAttention(nn.Module):
    """Self-attention, parameters named as those of ``nn.MultiheadAttention``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x_BLW: Tensor, causal: bool) -> Tensor:
        parts = F.linear(x_BLW, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return cast(Tensor, self.out_proj(mixed.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    """Four times wider inside, with x * sigmoid(1.702 x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.c_proj(F.silu(1.702 * self.c_fc(x)) / 1.702))


class PairEncoderBlock(nn.Module):
    """A CLIP block: norms before attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = EncoderAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x_BLW: Tensor, causal: bool = False) -> Tensor:
        x_BLW = x_BLW + self.attn(self.ln_1(x_BLW), causal)
        return x_BLW + cast(Tensor, self.mlp(self.ln_2(x_BLW)))


class EncoderTransformer(nn.Module):
    """A stack of blocks."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(PairEncoderBlock(width, heads) for _ in range(layers))

    @torch.no_grad()
    def draw(self, width: int) -> None:
        """Draw CLIP's initial weights (for the text Transformer; its image Transformer keeps PyTorch's)."""
        layers = len(self.resblocks)
        for block in self.resblocks:
            assert isinstance(block, PairEncoderBlock)
            nn.init.normal_(block.attn.in_proj_weight, std=width**-0.5)
            nn.init.normal_(block.attn.out_proj.weight, std=(2 * layers * width) ** -0.5)
            nn.init.normal_(block.mlp.c_fc.weight, std=(2 * width) ** -0.5)
            nn.init.normal_(block.mlp.c_proj.weight, std=(2 * layers * width) ** -0.5)


class PairVision(nn.Module):
    """CLIP's image Transformer, split into separate and joint blocks."""

    def __init__(self, config: PairEncoderConfig) -> None:
        super().__init__()
        self.separate_layers = config.separate_layers
        self.image_tokens = config.tokens
        width, scale = config.width, config.width**-0.5
        self.class_embedding = nn.Parameter(scale * torch.randn(width))
        self.positional_embedding = nn.Parameter(scale * torch.randn(config.tokens, width))
        self.joint_positional_embedding = nn.Parameter(scale * torch.randn(2 * config.tokens, width))
        self.bef_embedding = nn.Parameter(scale * torch.randn(width))
        self.aft_embedding = nn.Parameter(scale * torch.randn(width))
        self.proj = nn.Parameter(scale * torch.randn(width, config.embedding))
        self.conv1 = nn.Conv2d(3, width, config.patch_size, stride=config.patch_size, bias=False)
        self.ln_pre = nn.LayerNorm(width)
        self.ln_mid = nn.LayerNorm(width)
        self.transformer = EncoderTransformer(width, config.heads, config.separate_layers + config.joint_layers)
        self.ln_post = nn.LayerNorm(width)

    def separate(self, images_BCHW: Tensor) -> Tensor:
        """Run normalised images through the separate blocks: (B, P, W)."""
        patches = self.conv1(images_BCHW).flatten(2).transpose(1, 2)
        first = self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        x_BPW = self.ln_pre(torch.cat([first, patches], dim=1) + self.positional_embedding)
        for block in self.transformer.resblocks[: self.separate_layers]:
            x_BPW = block(x_BPW)
        return cast(Tensor, x_BPW)

    def joint(self, before_BPW: Tensor, after_BPW: Tensor) -> Tensor:
        """Run the outputs of :meth:`separate` for both images through the joint blocks: the pairs' vectors (B, E), not
        of unit length."""
        x_BLW = torch.cat([before_BPW + self.bef_embedding, after_BPW + self.aft_embedding], dim=1)
        x_BLW = self.ln_mid(x_BLW + self.joint_positional_embedding)
        for block in self.transformer.resblocks[self.separate_layers :]:
            x_BLW = block(x_BLW)
        heads_B2W = self.ln_post(x_BLW[:, [0, self.image_tokens]])
        return cast(Tensor, (heads_B2W @ self.proj.to(heads_B2W.dtype)).mean(1))

    def forward(self, before_BCHW: Tensor, after_BCHW: Tensor) -> Tensor:
        both = self.separate(torch.cat([before_BCHW, after_BCHW]))
        return self.joint(*both.chunk(2))


class _Clip(nn.Module):
    """Image and text Transformer; the text Transformer's parameters are attributes of this module, as in CLIP."""

    def __init__(self, config: PairEncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width = config.text_width
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(config.text_positions, width))
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, config.embedding))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.visual = PairVision(config)
        self.transformer = EncoderTransformer(width, config.text_heads, config.text_layers)
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.ln_final = nn.LayerNorm(width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.transformer.draw(width)

    def texts(self, ids_CT: Tensor, ends_C: Tensor) -> Tensor:
        """Vectors of texts (C, E), not of unit length: the output of the end token, which attends to all before it."""
        x_CTW = self.token_embedding(ids_CT) + self.positional_embedding[: ids_CT.shape[1]]
        for block in self.transformer.resblocks:
            x_CTW = block(x_CTW, causal=True)
        ends_CW = self.ln_final(x_CTW[torch.arange(len(ends_C), device=ends_C.device), ends_C])
        return cast(Tensor, ends_CW @ self.text_projection.to(ends_CW.dtype))

    def forward(
        self, before_BCHW: Tensor, after_BCHW: Tensor, ids_CT: Tensor, ends_C: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        pairs_BE, texts_CE = self.visual(before_BCHW, after_BCHW), self.texts(ids_CT, ends_C)
        return pairs_BE, texts_CE, self.scale

    @property
    def scale(self) -> Tensor:
        """Factor of the cosines, at most 100."""
        return self.logit_scale.clamp(max=LARGEST_SCALE).exp()


# -- texts -------------------------------------------------------------------------------------------------------


class TextTokens(Protocol):
    """A callable that maps texts to ids."""

    def __len__(self) -> int:
        """Number of ids."""
        ...

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns (ids int64 (C, T) padded with 0, position of each text's end token int64 (C,))."""
        ...


class WordTokens:
    """Ids of the words of a data set's own captions."""

    def __init__(self, vocabulary: Vocabulary, max_words: int) -> None:
        self.vocabulary = vocabulary
        self.max_words = max_words

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return _padded([self.vocabulary.encode(text, self.max_words) for text in texts])


def clip_tokenizer(source: str | Path) -> Any:
    """Load CLIP's tokenizer (of transformers) from a local folder or a hub id; ValueError if there is none."""
    from transformers import CLIPTokenizer

    return load_pretrained(CLIPTokenizer, source, "clip_tokenizer")


class BpeTokens:
    """Ids of CLIP's byte pairs, by the tokenizer of a local folder or a hub id."""

    def __init__(self, source: str | Path, max_words: int) -> None:
        self.tokenizer = clip_tokenizer(source)
        self.max_words = max_words

    def __len__(self) -> int:
        return len(self.tokenizer)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        inner = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return _padded([[first, *ids[: self.max_words - 2], last] for ids in inner])


def _padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(len(rows), max((len(row) for row in rows), default=1), dtype=torch.int64)
    for n, row in enumerate(rows):
        ids[n, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) - 1 for row in rows], dtype=torch.int64)


# -- the encoder -------------------------------------------------------------------------------------------------


class PairEncoder(nn.Module):
    """Encodes image pairs and texts as vectors of one space; without ``tokens`` only pairs, and ids, can be encoded."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: PairEncoderConfig, vocabulary_size: int, tokens: TextTokens | None = None) -> None:
        super().__init__()
        assert tokens is None or len(tokens) == vocabulary_size
        self.config = config
        self.tokens = tokens
        self.clip = _Clip(config, vocabulary_size)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    def forward(
        self, before_BCHW: Tensor, after_BCHW: Tensor, ids_CT: Tensor, ends_C: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Encode uint8 images (B, 3, H, W) and ids: (pairs (B, E), texts (C, E), scale ()), vectors of unit length."""
        pairs_BE, texts_CE, scale = self.clip(self.normalise(before_BCHW), self.normalise(after_BCHW), ids_CT, ends_C)
        return F.normalize(pairs_BE.float(), dim=-1), F.normalize(texts_CE.float(), dim=-1), scale

    def normalise(self, images_BCHW: Tensor) -> Tensor:
        """Normalise uint8 images (B, 3, H, W) as CLIP does."""
        return (images_BCHW.float() / 255 - self.mean) / self.std

    @property
    def device(self) -> torch.device:
        return self.clip.logit_scale.device

    def images(self, pictures: Iterable[np.ndarray]) -> Tensor:
        """Resize uint8 RGB pictures (H, W, 3) of any sizes to uint8 (B, 3, H, W), on the encoder's device."""
        frames = np.stack([resize_image(picture, self.config.image_size) for picture in pictures])
        return torch.from_numpy(frames).permute(0, 3, 1, 2).to(self.device)

    @torch.inference_mode()
    def encode_pairs(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], batch_size: int = 64
    ) -> np.ndarray:
        """Unit vectors (B, E) float32 of pairs of uint8 RGB pictures (H, W, 3) of any sizes."""
        if len(befores) != len(afters):
            raise ValueError(f"got {len(befores)} before and {len(afters)} after images; give one of each per pair")
        parts = [
            self.clip.visual(
                self.normalise(self.images(befores[start : start + batch_size])),
                self.normalise(self.images(afters[start : start + batch_size])),
            )
            for start in range(0, len(befores), batch_size)
        ]
        return self._unit(parts)

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> np.ndarray:
        """Unit vectors (C, E) float32 of texts. ValueError: the encoder was converted without CLIP's tokenizer."""
        if self.tokens is None:
            raise ValueError(
                "this pair encoder has no tokenizer, as official checkpoints hold none; convert it again with CLIP's "
                "(a local folder, or the hub id openai/clip-vit-base-patch32)"
            )
        parts = []
        for start in range(0, len(texts), batch_size):
            ids, ends = self.tokens(texts[start : start + batch_size])
            parts.append(self.clip.texts(ids.to(self.device), ends.to(self.device)))
        return self._unit(parts)

    @torch.inference_mode()
    def encode_steps(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors of (before, frame) and of (frame, after) for the frames between, (l, E) float32 each, of
        uint8 frames (l + 2, H, W, 3), before first and after last. Each goes through the separate blocks once."""
        hidden = self.clip.visual.separate(self.normalise(self.images(frames)))
        between = hidden[1:-1]
        first, last = hidden[:1].expand_as(between), hidden[-1:].expand_as(between)
        to_frame, from_frame = self.clip.visual.joint(torch.cat([first, between]), torch.cat([between, last])).chunk(2)
        return self._unit([to_frame]), self._unit([from_frame])

    def _unit(self, parts: list[Tensor]) -> np.ndarray:
        if not parts:
            return np.zeros((0, self.config.embedding), np.float32)
        return F.normalize(torch.cat(parts).float(), dim=-1).cpu().numpy()

    # -- at rest -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str, **settings: Any) -> None:
        """Write the artifact; ``settings`` are further arguments of :func:`idc.training.artifact.write_artifact`."""
        with tempfile.TemporaryDirectory() as scratch:
            settings = {**self.artifact_settings(Path(scratch)), **settings}
            write_artifact(folder, system=SYSTEM, state_dict=self.state_dict(), **settings)

    def artifact_settings(self, scratch: Path) -> dict[str, Any]:
        """Arguments of :func:`idc.training.artifact.write_artifact`; CLIP's tokenizer is written to ``scratch``."""
        extras = {}
        if isinstance(self.tokens, BpeTokens):
            extras[TOKENIZER] = scratch / TOKENIZER
            self.tokens.tokenizer.save_pretrained(extras[TOKENIZER])
        return {
            "config": {
                "encoder": self.config.model_dump(mode="json"),
                "vocabulary_size": self.clip.token_embedding.num_embeddings,
                "max_words": getattr(self.tokens, "max_words", None),
            },
            "vocabulary": self.tokens.vocabulary if isinstance(self.tokens, WordTokens) else None,
            "preprocess": pair_preprocess(self.config),
            "extras": extras,
            "purpose": "Finds the captions of a pair of images and the pairs of a caption.",
            "use": "idc.vision.pair_encoder.model.PairEncoder.load(<this folder>)",
        }

    @classmethod
    def load(cls, folder: Path | str, device: torch.device | str = "cpu") -> PairEncoder:
        """Read what :meth:`save` wrote, for inference. ValueError: it is not a pair encoder, or a file is missing or
        does not fit."""
        artifact = read_artifact(folder, system=SYSTEM)
        config = PairEncoderConfig.model_validate(artifact.config["encoder"])
        if artifact.preprocess != pair_preprocess(config):
            raise ValueError(
                f"{folder} prepares images as {artifact.preprocess}, this program as {pair_preprocess(config)}"
            )
        tokens: TextTokens | None = None
        if artifact.vocabulary is not None:
            tokens = WordTokens(artifact.vocabulary, artifact.config["max_words"])
        elif (artifact.path / TOKENIZER).exists():
            tokens = BpeTokens(artifact.path / TOKENIZER, artifact.config["max_words"])
        encoder = cls(config, artifact.config["vocabulary_size"], tokens)
        artifact.load_into(encoder)
        return encoder.eval().requires_grad_(False).to(device)


def pair_preprocess(config: PairEncoderConfig) -> dict[str, object]:
    """How an image is prepared for the encoder, as stored in the artifact."""
    return {
        "resize": [config.image_size, config.image_size],
        "keep_aspect": False,
        "filter": "bicubic, antialiased",
        "mean": list(MEAN),
        "std": list(STD),
        "channels": "RGB",
    }


@torch.no_grad()
def start_comparing(encoder: PairEncoder) -> None:
    """Initialise the weights so that the joint blocks compute differences between the same positions of both images.

    The position embedding of a patch is the same in both images, and the attention of every image block is drawn
    mimetically (Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers"): near 1.5 I between
    queries and keys of a head, near -0.8 I through values and output, so that from each token the content of similar
    tokens is subtracted.
    """
    vision = encoder.clip.visual
    width = encoder.config.width
    positions = torch.randn(encoder.config.tokens, width)
    vision.joint_positional_embedding.copy_(positions.repeat(2, 1))
    for name in ("bef_embedding", "aft_embedding"):
        getattr(vision, name).copy_(0.3 * torch.randn(width))
    for block in vision.transformer.resblocks:
        assert isinstance(block, PairEncoderBlock)
        nn.init.normal_(block.mlp.c_proj.weight, std=0.02 / math.sqrt(2 * len(vision.transformer.resblocks)))
        nn.init.zeros_(block.mlp.c_proj.bias)
        compare_(block.attn.in_proj_weight, block.attn.out_proj.weight, block.attn.heads)
