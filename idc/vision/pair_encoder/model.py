"""The pair encoder: a pair of images and a text to vectors that are alike when the text says what changed (CLIP4IDC).

Guo, Wang and Laaksonen 2022, "CLIP4IDC: CLIP for Image Difference Captioning", in its stage of retrieval. Unusual here:
the first blocks of CLIP's image Transformer see each image for itself, the last ones see the tokens of both images in
one row, after an embedding of before or after and a second embedding of the position were added. The vector of the pair
is the mean of the two class tokens. The order counts: (before, after) is another pair than (after, before).

Names and shapes in the state dict are the official ones, ``clip.*``. All weights are float32 (official files keep most
matrices in float16). Attention is ours: ``nn.MultiheadAttention`` reads ``out_proj`` past its forward, which ZeRO-3
does not see.

Shapes:
    B pairs   C texts   P = tokens of one image, class token first   L positions   W width   T tokens of a text
    E embedding, width of the vectors
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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

SYSTEM = "pair_encoder"
"""What its artifacts are called."""
TOKENIZER = "tokenizer"
"""Folder of CLIP's tokenizer in an artifact."""
NEW = ("joint_positional_embedding", "bef_embedding", "aft_embedding", "ln_mid.weight", "ln_mid.bias")
"""What CLIP4IDC adds to CLIP, under ``clip.visual.``."""
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's normalisation of RGB in [0, 1]."""
LARGEST_SCALE = math.log(100)
"""CLIP's bound of ``logit_scale``."""


# -- blocks ------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
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


class Block(nn.Module):
    """A CLIP block: norms before attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x_BLW: Tensor, causal: bool = False) -> Tensor:
        x_BLW = x_BLW + self.attn(self.ln_1(x_BLW), causal)
        return x_BLW + cast(Tensor, self.mlp(self.ln_2(x_BLW)))


class Transformer(nn.Module):
    """A row of blocks."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    @torch.no_grad()
    def draw(self, width: int) -> None:
        """CLIP's initial weights (of its text Transformer; its image Transformer keeps PyTorch's)."""
        layers = len(self.resblocks)
        for block in self.resblocks:
            assert isinstance(block, Block)
            nn.init.normal_(block.attn.in_proj_weight, std=width**-0.5)
            nn.init.normal_(block.attn.out_proj.weight, std=(2 * layers * width) ** -0.5)
            nn.init.normal_(block.mlp.c_fc.weight, std=(2 * width) ** -0.5)
            nn.init.normal_(block.mlp.c_proj.weight, std=(2 * layers * width) ** -0.5)


class PairVision(nn.Module):
    """CLIP's image Transformer, cut into separate and joint blocks."""

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
        self.transformer = Transformer(width, config.heads, config.separate_layers + config.joint_layers)
        self.ln_post = nn.LayerNorm(width)

    def separate(self, images_BCHW: Tensor) -> Tensor:
        """Normalised images through the separate blocks, (B, P, W)."""
        patches = self.conv1(images_BCHW).flatten(2).transpose(1, 2)
        first = self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        x_BPW = self.ln_pre(torch.cat([first, patches], dim=1) + self.positional_embedding)
        for block in self.transformer.resblocks[: self.separate_layers]:
            x_BPW = block(x_BPW)
        return cast(Tensor, x_BPW)

    def joint(self, before_BPW: Tensor, after_BPW: Tensor) -> Tensor:
        """What :meth:`separate` gave of both images through the joint blocks: the pairs' vectors (B, E), not of unit
        length."""
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
    """Image and text Transformer; the text one's parameters lie directly here, as in CLIP."""

    def __init__(self, config: PairEncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width = config.text_width
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(config.text_positions, width))
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, config.embedding))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.visual = PairVision(config)
        self.transformer = Transformer(width, config.text_heads, config.text_layers)
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.ln_final = nn.LayerNorm(width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.transformer.draw(width)

    def texts(self, ids_CT: Tensor, ends_C: Tensor) -> Tensor:
        """Vectors of texts (C, E), not of unit length: the token at the end, which has seen all before it."""
        x_CTW = self.token_embedding(ids_CT) + self.positional_embedding[: ids_CT.shape[1]]
        for block in self.transformer.resblocks:
            x_CTW = block(x_CTW, causal=True)
        ends_CW = self.ln_final(x_CTW[torch.arange(len(ends_C), device=ends_C.device), ends_C])
        return cast(Tensor, ends_CW @ self.text_projection.to(ends_CW.dtype))

    def forward(
        self, before_BCHW: Tensor, after_BCHW: Tensor, ids_CT: Tensor, ends_C: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        pairs_BE, texts_CE = self.visual(before_BCHW, after_BCHW), self.texts(ids_CT, ends_C)
        return pairs_BE, texts_CE, self.logit_scale.clamp(max=LARGEST_SCALE).exp()


# -- texts -------------------------------------------------------------------------------------------------------


class TextTokens(Protocol):
    """Texts to ids."""

    def __len__(self) -> int:
        """Number of ids."""
        ...

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(ids int64 (C, T) padded with 0, place of each text's end token int64 (C,))."""
        ...


class WordTokens:
    """The words of a data set's own captions."""

    def __init__(self, vocabulary: Vocabulary, max_words: int) -> None:
        self.vocabulary = vocabulary
        self.max_words = max_words

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return _padded([self.vocabulary.encode(text, self.max_words) for text in texts])


def clip_tokenizer(source: str | Path) -> Any:
    """CLIP's tokenizer (of transformers) from a local folder or a hub id.

    Raises:
        ValueError: there is none.
    """
    from transformers import CLIPTokenizer

    try:
        return CLIPTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(f"{source} has no CLIP tokenizer, or cannot be reached: {_first_line(error)}") from error


class BpeTokens:
    """CLIP's byte pairs.

    Args:
        source: a local folder or a hub id with CLIP's tokenizer.
    """

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
    """Pairs of images and texts to vectors.

    Args:
        config: the shape.
        vocabulary_size: number of text ids.
        tokens: what makes ids of texts; without it only pairs, and ids, can be encoded.
    """

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
        """uint8 images (B, 3, H, W) and ids to (pairs (B, E), texts (C, E), scale ()), vectors of unit length."""
        pairs_BE, texts_CE, scale = self.clip(self.normalise(before_BCHW), self.normalise(after_BCHW), ids_CT, ends_C)
        return F.normalize(pairs_BE.float(), dim=-1), F.normalize(texts_CE.float(), dim=-1), scale

    def normalise(self, images_BCHW: Tensor) -> Tensor:
        """uint8 images (B, 3, H, W) as CLIP takes them."""
        return (images_BCHW.float() / 255 - self.mean) / self.std

    @property
    def device(self) -> torch.device:
        return self.clip.logit_scale.device

    def images(self, pictures: Iterable[np.ndarray]) -> Tensor:
        """uint8 RGB pictures (H, W, 3) of any sizes as uint8 (B, 3, H, W) of the encoder's size, on its device."""
        frames = np.stack([resize_image(picture, self.config.image_size) for picture in pictures])
        return torch.from_numpy(frames).permute(0, 3, 1, 2).to(self.device)

    @torch.inference_mode()
    def encode_pairs(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], batch_size: int = 64
    ) -> np.ndarray:
        """Unit vectors (B, E) float32 of pairs of uint8 RGB pictures (H, W, 3) of any sizes."""
        if len(befores) != len(afters):
            raise ValueError(f"there are {len(befores)} pictures before and {len(afters)} after")
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
        """Unit vectors (C, E) float32 of texts.

        Raises:
            ValueError: the encoder was converted without CLIP's tokenizer.
        """
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
        """Unit vectors of (before, frame) and of (frame, after) for the frames between, (l, E) float32 each.

        Each frame goes through the separate blocks once.

        Args:
            frames: uint8 (l + 2, H, W, 3), before first and after last.
        """
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

    def save(
        self, folder: Path | str, *, metrics: dict[str, Any] | None = None, card: str = "", **settings: Any
    ) -> None:
        """Write the artifact.

        Args:
            settings: what else belongs into its config, JSON-able.
        """
        words = self.tokens.vocabulary if isinstance(self.tokens, WordTokens) else None
        with _saved_tokenizer(self.tokens) as tokenizer:
            write_artifact(
                folder,
                system=SYSTEM,
                config={
                    "encoder": self.config.model_dump(mode="json"),
                    "vocabulary_size": self.clip.token_embedding.num_embeddings,
                    "max_words": getattr(self.tokens, "max_words", None),
                    **settings,
                },
                state_dict=self.state_dict(),
                vocabulary=words,
                preprocess=preprocess(self.config),
                metrics=metrics,
                card=card,
                extras={} if tokenizer is None else {TOKENIZER: tokenizer},
                purpose="Finds the captions of a pair of images and the pairs of a caption.",
                use="idc.vision.pair_encoder.model.PairEncoder.load(<this folder>)",
            )

    @classmethod
    def load(cls, folder: Path | str, device: torch.device | str = "cpu") -> PairEncoder:
        """Read what :meth:`save` wrote, for inference.

        Raises:
            ValueError: it is no pair encoder, or a file is missing or does not fit the others.
        """
        found = read_artifact(folder, system=SYSTEM)
        config = PairEncoderConfig.model_validate(found.config["encoder"])
        if found.preprocess != preprocess(config):
            raise ValueError(f"{folder} prepares images as {found.preprocess}, this program as {preprocess(config)}")
        tokens: TextTokens | None = None
        if found.vocabulary is not None:
            tokens = WordTokens(found.vocabulary, found.config["max_words"])
        elif (found.path / TOKENIZER).exists():
            tokens = BpeTokens(found.path / TOKENIZER, found.config["max_words"])
        encoder = cls(config, found.config["vocabulary_size"], tokens)
        found.load_into(encoder)
        return encoder.eval().requires_grad_(False).to(device)


def preprocess(config: PairEncoderConfig) -> dict[str, object]:
    """What is done to an image before the encoder sees it."""
    return {
        "resize": [config.image_size, config.image_size],
        "keep_aspect": False,
        "filter": "bicubic, antialiased",
        "mean": list(MEAN),
        "std": list(STD),
        "channels": "RGB",
    }


@contextmanager
def _saved_tokenizer(tokens: TextTokens | None) -> Iterator[Path | None]:
    """A folder with CLIP's tokenizer, if that is what makes the ids."""
    if not isinstance(tokens, BpeTokens):
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        tokens.tokenizer.save_pretrained(folder)
        yield Path(folder)


# -- how it begins -----------------------------------------------------------------------------------------------


def load_clip(encoder: PairEncoder, source: str) -> None:
    """Take over the weights of a CLIP in transformers' layout, all of them; what CLIP4IDC adds stays as it is.

    Args:
        source: a local folder or a hub id.

    Raises:
        ValueError: it cannot be read, its shape is not the encoder's, or its activation is not CLIP's.
    """
    from transformers import CLIPModel

    try:
        model: Any = CLIPModel.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(f"clip={source!r} is no CLIP, or cannot be reached: {_first_line(error)}") from error
    for part in (model.config.vision_config, model.config.text_config):
        if part.hidden_act != "quick_gelu":
            raise ValueError(f"clip={source!r} has the activation {part.hidden_act}; the pair encoder has quick_gelu")
        if part.layer_norm_eps != 1e-5:
            raise ValueError(f"clip={source!r} has the norms' epsilon {part.layer_norm_eps}; the pair encoder has 1e-5")
    heads = (model.config.vision_config.num_attention_heads, model.config.text_config.num_attention_heads)
    if heads != (encoder.config.heads, encoder.config.text_heads):
        raise ValueError(
            f"clip={source!r} has {heads[0]} and {heads[1]} heads; set encoder.heads and encoder.text_heads to them"
        )
    found = official_names(model.state_dict())
    expected = {
        name: tensor for name, tensor in encoder.state_dict().items() if name.removeprefix("clip.visual.") not in NEW
    }
    wrong = sorted(found.keys() ^ expected.keys())
    wrong += [name for name in found.keys() & expected.keys() if found[name].shape != expected[name].shape]
    if wrong:
        raise ValueError(
            f"clip={source!r} has another shape than `encoder` (its patch size, widths or layers); they differ in "
            f"{len(wrong)} tensors: {', '.join(wrong[:4])}"
        )
    encoder.load_state_dict(found, strict=False)


def official_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A CLIP's state dict in transformers' layout under OpenAI's names, with the prefix ``clip.``."""
    out: dict[str, Tensor] = {}
    packed: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        if name.endswith("position_ids"):
            continue
        if name in _NAMES:
            out[_NAMES[name]] = tensor.T.contiguous() if name.endswith("projection.weight") else tensor
            continue
        tower, _, rest = name.partition(".encoder.layers.")
        layer, _, inner = rest.partition(".")
        block = f"clip.{'visual.' if tower == 'vision_model' else ''}transformer.resblocks.{layer}"
        part, _, kind = inner.rpartition(".")
        if part in _BLOCK_NAMES:
            out[f"{block}.{_BLOCK_NAMES[part]}.{kind}"] = tensor
        else:
            packed.setdefault(f"{block}.attn.in_proj_{kind}", {})[part.removeprefix("self_attn.")] = tensor
    out |= {name: torch.cat([parts[f"{p}_proj"] for p in "qkv"]) for name, parts in packed.items()}
    return out


_NAMES = {
    "logit_scale": "clip.logit_scale",
    "visual_projection.weight": "clip.visual.proj",
    "text_projection.weight": "clip.text_projection",
    "vision_model.embeddings.class_embedding": "clip.visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "clip.visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "clip.visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "clip.visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "clip.visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "clip.visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "clip.visual.ln_post.bias",
    "text_model.embeddings.token_embedding.weight": "clip.token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "clip.positional_embedding",
    "text_model.final_layer_norm.weight": "clip.ln_final.weight",
    "text_model.final_layer_norm.bias": "clip.ln_final.bias",
}
_BLOCK_NAMES = {
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


@torch.no_grad()
def start_comparing(encoder: PairEncoder) -> None:
    """Begin such that the joint blocks yield differences between like places of both images.

    The positions of a patch are the same in both images, and the attention of every image block is drawn mimetically
    (Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers"): near 1.5 I between queries and keys
    of a head, near -0.8 I through values and output, so a token loses what stands at like tokens.
    """
    vision = encoder.clip.visual
    width = encoder.config.width
    positions = torch.randn(encoder.config.tokens, width)
    vision.joint_positional_embedding.copy_(positions.repeat(2, 1))
    for name in ("bef_embedding", "aft_embedding"):
        getattr(vision, name).copy_(0.3 * torch.randn(width))
    for block in vision.transformer.resblocks:
        assert isinstance(block, Block)
        nn.init.normal_(block.mlp.c_proj.weight, std=0.02 / math.sqrt(2 * len(vision.transformer.resblocks)))
        nn.init.zeros_(block.mlp.c_proj.bias)
        compare_(block.attn.in_proj_weight, block.attn.out_proj.weight, block.attn.heads)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
