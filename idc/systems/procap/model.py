"""ProCap's procedure encoder, for both stages, and the heads of stage 1 (the text decoder is in ``text_decoder.py``).

Unusual in this model: one mask embedding has two uses. In stage 1 it replaces hidden patches of real key frames; in
stage 2, k * n_I copies of it (the "procedure queries", eq. 9) are placed between the patches of the before and the
after image, and the encoder fills them in as it learnt to fill in hidden frames. Intermediate frames are never computed
for captioning, except in the variant that the paper compares with (`procedure: frames`).

Frames are features of the frozen image tokenizer or, with a stem (:class:`Stem`), images in [0, 1].

Shapes:
    B samples   F = k + 2 frames   P = n_I patches per frame   L positions   Q queries   D encoder width
    Z features of a patch: d_z of the tokenizer, or the last width of the stem   Y, X pixels of a frame
    K codebook entries   N = n_T caption slots   V words
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.text import BOS, EOS
from idc.nn.mimetic import compare_
from idc.systems.procap.config import STEM_GROUPS, EncoderConfig, Procedure
from idc.vision.pair_encoder.model import clip_tokenizer
from idc.vision.pretrained import load_pretrained


@dataclass(frozen=True)
class Shapes:
    """Sizes of the networks that follow from the stored procedures; never set by hand."""

    num_keyframes: int  # k
    grid: tuple[int, int]  # n_I = grid[0] * grid[1]
    feature_dim: int  # d_z
    codebook_size: int  # K
    vocabulary_size: int

    @property
    def patches(self) -> int:
        """n_I, patches per frame."""
        return self.grid[0] * self.grid[1]

    @property
    def frames(self) -> int:
        """k + 2: key frames, before and after."""
        return self.num_keyframes + 2


class Stem(nn.Module):
    """Patch features from pixels, trained end to end: 3x3 convolutions of stride 2, each with a group norm. A deviation
    from the paper, see :attr:`EncoderConfig.stem`.

    Of each frame it reads the pixels and twice their difference from the mean of the first and the last frame: for the
    image before that is before - after, for the image after the reverse.

    The last level pads at the right and below only: with zeros all around in every level a feature would see the
    surroundings of its patch's upper left corner, not of its centre.
    """

    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        layers: list[nn.Module] = []
        for level, (before, after) in enumerate(itertools.pairwise((6, *widths)), start=1):
            pad = (0, 1, 0, 1) if level == len(widths) else (1, 1, 1, 1)
            layers += [nn.ZeroPad2d(pad), nn.Conv2d(before, after, 3, stride=2)]
            layers += [nn.GroupNorm(STEM_GROUPS, after), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.side = 2 ** len(widths)  # of a patch, in pixels

    def forward(self, images_BF3YX: Tensor, masked_BFP: Tensor | None = None) -> Tensor:
        """Features (B, F, P, Z) of images in [0, 1]; the masked patches are grey."""
        x = 2 * images_BF3YX - 1
        if masked_BFP is not None:
            masked = masked_BFP.view(*x.shape[:2], 1, x.shape[3] // self.side, x.shape[4] // self.side)
            x = x.masked_fill(masked.repeat_interleave(self.side, 3).repeat_interleave(self.side, 4), 0.0)
        x = torch.cat([x, 2 * x - x[:, :1] - x[:, -1:]], dim=2)
        maps: Tensor = self.layers(x.flatten(0, 1))
        return maps.flatten(2).transpose(1, 2).unflatten(0, x.shape[:2])


class Packed(nn.Linear):
    """Projects to queries, keys and values in one product; or to queries of some positions, keys and values of all."""

    def forward(self, x_BLD: Tensor, at_BQD: Tensor | None = None) -> tuple[Tensor, ...]:  # type: ignore[override]
        if at_BQD is None:
            return super().forward(x_BLD).chunk(3, dim=-1)
        width = x_BLD.shape[-1]
        queries = F.linear(at_BQD, self.weight[:width], self.bias[:width])
        return queries, *F.linear(x_BLD, self.weight[width:], self.bias[width:]).chunk(2, dim=-1)


class Attention(nn.Module):
    """Bidirectional self-attention with packed projections."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = Packed(width, 3 * width)
        self.out = nn.Linear(width, width)

    @torch.no_grad()
    def compare(self) -> None:
        """Initialise as an attention that compares (:func:`idc.nn.mimetic.compare_`)."""
        compare_(self.qkv.weight, self.out.weight, self.heads)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_BLD: Tensor, mask: Tensor | None, at_BQD: Tensor | None = None) -> Tensor:
        """Returns (B, L, D); with ``at_BQD``, only for these queries, (B, Q, D); ``mask`` has one row per query."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x_BLD, at_BQD))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(q.dtype))
        return self.out(mixed.transpose(1, 2).flatten(2))


_GATE = 1.702
"""Of the activation x * sigmoid(1.702 x)."""


class Scaled(nn.Linear):
    """A linear layer with ``gain`` times its weight and ``bias_gain`` times its bias. Scaling these instead of the
    activations saves a pass over the activations forward, and one backward."""

    def __init__(self, inputs: int, outputs: int, gain: float, bias_gain: float):
        super().__init__(inputs, outputs)
        self.gain, self.bias_gain = gain, bias_gain

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gain * self.weight, self.bias if self.bias_gain == 1 else self.bias_gain * self.bias)


class EncoderBlock(nn.Module):
    """A CLIP block: norms before attention and MLP, x * sigmoid(1.702 x) between the MLP's layers, computed as
    silu(1.702 x) / 1.702 with both factors in the layers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = Scaled(width, 4 * width, _GATE, _GATE)
        self.narrow = Scaled(4 * width, width, 1 / _GATE, 1)

    def forward(self, x_BLD: Tensor, mask_LL: Tensor | None, read_BL: Tensor | None = None) -> Tensor:
        """Returns (B, L, D); with ``read_BL`` (bool), the output of these positions alone, (M, D), sample by sample."""
        if read_BL is None:
            return self._widened(x_BLD + self.attention(self.norm_attention(x_BLD), mask_LL))
        # Attention needs equally many queries of each sample: its read positions first, then others as padding.
        batch, length, width = x_BLD.shape
        counts = read_BL.sum(1)
        queries = int(counts.max())
        order_BQ = read_BL.int().argsort(dim=1, descending=True, stable=True)[:, :queries]
        rows = (order_BQ + length * torch.arange(batch, device=counts.device).unsqueeze(1)).flatten()
        read = (torch.arange(queries, device=counts.device) < counts.unsqueeze(1)).flatten()
        normed = self.norm_attention(x_BLD)
        at_BQD = normed.flatten(0, 1).index_select(0, rows).view(batch, queries, width)
        mask = None if mask_LL is None else mask_LL[order_BQ].unsqueeze(1)
        mixed = self.attention(normed, mask, at_BQD).flatten(0, 1)[read]
        return self._widened(x_BLD.flatten(0, 1).index_select(0, rows[read]) + mixed)

    def _widened(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.silu(self.widen(self.norm_mlp(x))))


class ProcedureEncoder(nn.Module):
    """The Transformer over {align, caption, consistency, frames} (stage 1) or {before, queries, after} (stage 2)."""

    def __init__(self, config: EncoderConfig, shapes: Shapes):
        super().__init__()
        self.config, self.shapes = config, shapes
        width = config.width
        self.stem = Stem(config.stem) if config.stem else None
        feature_dim = config.stem[-1] if config.stem else shapes.feature_dim
        self.feature_norm = nn.LayerNorm(feature_dim)
        self.feature_in = nn.Linear(feature_dim, width)
        self.mask_embedding = nn.Parameter(torch.zeros(width))  # e_m
        # Positions of a patch: frame + row + column. Rows and columns are as large as the features from the start
        # (so in the official code), frames smaller, so that the same place in another frame is a near neighbour.
        self.frame_positions = nn.Parameter(torch.randn(shapes.frames, 1, 1, width) * 0.3)
        self.row_positions = nn.Parameter(torch.randn(1, shapes.grid[0], 1, width))
        self.column_positions = nn.Parameter(torch.randn(1, 1, shapes.grid[1], width))
        # Rows V .. V+N-1 are the padding of text slot 0 .. N-1.
        text_vocabulary = config.text_vocabulary
        self.text_words = shapes.vocabulary_size if text_vocabulary is None else text_vocabulary
        self.text_embedding = nn.Embedding(self.text_words + config.text_length, width)
        self.text_positions = nn.Parameter(torch.randn(config.text_length, width) * 0.02)
        self.align_token = nn.Parameter(torch.randn(width) * 0.02)
        self.separator_token = nn.Parameter(torch.randn(width) * 0.02) if config.separator else None
        self.consistency_token = nn.Parameter(torch.randn(width) * 0.02)
        self.blocks = nn.ModuleList(EncoderBlock(width, config.heads) for _ in range(config.layers))
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        config = self.config
        nn.init.normal_(self.text_embedding.weight, std=0.02)
        nn.init.normal_(self.feature_in.weight, std=self.feature_in.in_features**-0.5)
        for block in self.modules():
            if isinstance(block, EncoderBlock):
                nn.init.normal_(block.narrow.weight, std=0.02 / math.sqrt(2 * config.layers))
                nn.init.zeros_(block.narrow.bias)
                if config.init == "comparing":
                    block.attention.compare()

    def forward(self, stage: Literal["modeling", "procedure"], *inputs: Any) -> Any:
        """Run :meth:`modeling` or :meth:`procedure`. Under ZeRO-3 a module's own parameters are whole only during its
        forward, so both stages are called through it."""
        return self.modeling(*inputs) if stage == "modeling" else self.procedure(*inputs)

    def features(self, frames: Tensor, masked_BFP: Tensor | None = None) -> Tensor:
        """Features (B, F, P, Z) of frames: with a stem those of images (B, F, 3, Y, X); features stay as they are."""
        return self.stem(frames, masked_BFP) if self.stem is not None and frames.ndim == 5 else frames

    def embed_frames(self, frames: Tensor, masked_BFP: Tensor | None = None) -> Tensor:
        """Project frames to patch embeddings e^I without positions, (B, F, P, D); masked patches become e_m."""
        patches = self.feature_in(self.feature_norm(self.features(frames, masked_BFP)))
        if masked_BFP is None:
            return patches
        return torch.where(masked_BFP.unsqueeze(-1), self.mask_embedding.to(patches.dtype), patches)

    def place(self, patches_BFPD: Tensor) -> Tensor:
        """Add positions (to masked patches too) and concatenate the frames: (B, F*P, D). Two frames get the positions
        of the first and the last."""
        frames: Tensor = self.frame_positions
        if patches_BFPD.shape[1] == 2:
            frames = torch.stack([frames[0], frames[-1]])
        positions = (frames + self.row_positions + self.column_positions).flatten(1, 2)
        return (patches_BFPD + positions).flatten(1, 2)

    def embed_text(self, ids_BN: Tensor, pad: int) -> Tensor:
        """Embed caption ids as e^T, (B, N, D); a ``pad`` gets the padding embedding of its slot. N = 0: no caption."""
        length = ids_BN.shape[1]
        slots = torch.arange(length, device=ids_BN.device) + self.text_words
        return self.text_embedding(torch.where(ids_BN == pad, slots, ids_BN)) + self.text_positions[:length]

    def modeling(
        self, frames: Tensor, masked_BFP: Tensor, ids_BN: Tensor, pad: int, read_CFP: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Stage 1 (eq. 4): encode frames, with some patches masked, and the caption.

        Args:
            frames: features (B, F, P, Z), or with a stem images (B, F, 3, Y, X).
            read_CFP: the patches whose hidden states are needed, for the first C samples (bool); the last block
                computes no others.

        Returns:
            h^align (B, D), h^csy (B, D), h^I (B, F*P, D); with ``read_CFP`` h^I of these patches alone, (M, D), in
            their order.
        """
        patches = self.embed_frames(frames, masked_BFP)
        batch = ids_BN.shape[0]
        control = self._control(self.embed_text(ids_BN, pad), batch)
        align = self.align_token.expand(batch, 1, -1)
        x_BLD = torch.cat([align, control, self.place(patches)], dim=1)
        text, first = ids_BN.shape[1], 1 + control.shape[1]
        if read_CFP is None:
            hidden = self._run(x_BLD, 1 + text)
            return hidden[:, 0], hidden[:, first - 1], hidden[:, first:]
        read_CL = F.pad(read_CFP.flatten(1), (first, 0))
        read_CL[:, [0, first - 1]] = True
        return self._read(x_BLD, read_CL, 1 + text, first)

    def procedure(self, frames: Tensor, kind: Procedure = "queries") -> Tensor:
        """Stage 2: encode G frames to the latent procedure.

        Args:
            frames: features (B, G, P, Z), or with a stem images (B, G, 3, Y, X), of the two images; with ``kind``
                "frames" of all k + 2 frames.
            kind: what is placed between the images, see :attr:`FinetuneJob.procedure`.

        Returns:
            (B, F*P, D), with ``kind`` "none" (B, 2*P, D).
        """
        patches_BGPD = self.embed_frames(frames)
        batch, num_images, patches, width = patches_BGPD.shape
        assert num_images == (self.shapes.frames if kind == "frames" else 2), (kind, num_images)
        if kind == "queries":
            queries = self.mask_embedding.to(patches_BGPD.dtype)
            queries = queries.expand(batch, self.shapes.num_keyframes, patches, width)
            patches_BGPD = torch.cat([patches_BGPD[:, :1], queries, patches_BGPD[:, 1:]], dim=1)
        frames = self.place(patches_BGPD)
        if self.config.queries_only:
            return self._run(frames, None)
        slots = torch.arange(self.config.text_length, device=frames.device)
        text = (self.text_embedding(slots) + self.text_positions).expand(batch, -1, -1)
        control = self._control(text, batch)
        hidden = self._run(torch.cat([control, frames], dim=1), 1 + self.config.text_length)
        return hidden[:, control.shape[1] :]

    def _control(self, text_BND: Tensor, batch: int) -> Tensor:
        parts = [text_BND]
        if self.separator_token is not None:
            parts.append(self.separator_token.expand(batch, 1, -1))
        parts.append(self.consistency_token.expand(batch, 1, -1))
        return torch.cat(parts, dim=1)

    def _run(self, x_BLD: Tensor, first: int | None) -> Tensor:
        """Run the blocks; ``first`` is the first blind row of the official attention mask, if control tokens precede
        the frames."""
        mask = None
        if first is not None and not self.config.consistency_sees_text:
            mask = self._blind_rows(x_BLD.shape[1], first, x_BLD.device)
        for block in self.blocks:
            x_BLD = block(x_BLD, mask)
        return x_BLD

    def _read(self, x_BLD: Tensor, read_CL: Tensor, control: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Run the blocks, the last one only where its output is read: for the first C samples at ``read_CL``, which
        includes both control tokens of the losses, and for the other samples (the negatives) at these two tokens alone.
        ``control`` is the first blind row of the official mask, ``first`` the row of the first patch."""
        mask = None if self.config.consistency_sees_text else self._blind_rows(x_BLD.shape[1], control, x_BLD.device)
        *blocks, last = self.blocks
        for block in blocks:
            x_BLD = block(x_BLD, mask)
        count, batch = read_CL.shape[0], x_BLD.shape[0]
        hidden = last(x_BLD[:count], mask, read_CL)
        starts = F.pad(read_CL.sum(1).cumsum(0), (1, 0))[:-1]
        patches = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
        patches[starts] = patches[starts + 1] = False
        align, consistency = hidden[starts], hidden[starts + 1]
        if batch > count:
            tokens = torch.zeros_like(read_CL[:1]).expand(batch - count, -1).clone()
            tokens[:, [0, first - 1]] = True
            others = last(x_BLD[count:], mask, tokens).unflatten(0, (batch - count, 2))
            align, consistency = torch.cat([align, others[:, 0]]), torch.cat([consistency, others[:, 1]])
        return align, consistency, hidden[patches]

    def _blind_rows(self, length: int, first: int, device: torch.device) -> Tensor:
        """Official attention mask, 0 or -inf (L, L): the positions of stage 1's separator and consistency token see
        nothing before themselves. In stage 2 these positions hold other tokens."""
        mask = torch.zeros(length, length, device=device)
        for row in range(first, first + (2 if self.config.separator else 1)):
            mask[row, :row] = float("-inf")
        return mask


class PretrainHeads(nn.Module):
    """Stage 1 heads, each a norm and a linear layer: from patches to codebook entries, from tokens to one logit."""

    def __init__(self, width: int, codebook_size: int):
        super().__init__()
        self.msm = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, codebook_size))
        self.align = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.consistency = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))


def clip_blocks(path: str, layers: int, width: int, heads: int) -> dict[str, Tensor]:
    """The first ``layers`` blocks of a transformers CLIP vision model (official: openai/clip-vit-base-patch32),
    under the names of :class:`ProcedureEncoder`. Patch embedding, positions and the norms around the blocks are not
    taken, as in the official code. ValueError: it cannot be loaded, or its blocks are of another size."""
    from transformers import CLIPVisionModel

    vision = load_pretrained(CLIPVisionModel, path, "clip")
    config = vision.config
    sizes = config.hidden_size, config.num_attention_heads, config.intermediate_size
    if sizes != (width, heads, 4 * width) or config.num_hidden_layers < layers or config.hidden_act != "quick_gelu":
        raise ValueError(
            f"clip: {path!r} has {config.num_hidden_layers} blocks of width, heads and MLP width {sizes} with "
            f"{config.hidden_act}; the encoder has {layers} blocks of {(width, heads, 4 * width)} with quick_gelu"
        )
    state, out = vision.state_dict(), {}
    (root,) = {name.split("encoder.layers.0.")[0] for name in state if "encoder.layers.0." in name}
    names = {
        "norm_attention": "layer_norm1",
        "attention.out": "self_attn.out_proj",
        "norm_mlp": "layer_norm2",
        "widen": "mlp.fc1",
        "narrow": "mlp.fc2",
    }
    for number in range(layers):
        ours, theirs = f"blocks.{number}", f"{root}encoder.layers.{number}"
        for part in ("weight", "bias"):
            packed = [state[f"{theirs}.self_attn.{gate}_proj.{part}"] for gate in "qkv"]
            out[f"{ours}.attention.qkv.{part}"] = torch.cat(packed)
            out |= {f"{ours}.{name}.{part}": state[f"{theirs}.{official}.{part}"] for name, official in names.items()}
    return out


class ClipWords:
    """Encodes captions as ids of CLIP's BPE, lower-cased and without CLIP's begin and end tokens, as the official
    stage 1 does. The official code pads with id 0, which is the exclamation mark. ValueError: the tokenizer cannot
    be loaded, or has another number of ids than the encoder."""

    def __init__(self, path: str, size: int) -> None:
        self._tokenizer = clip_tokenizer(path)
        if len(self._tokenizer) != size:
            raise ValueError(
                f"encoder.text_vocabulary: {size}, but the tokenizer of {path!r} has {len(self._tokenizer)}; set that"
            )

    def encode(self, caption: str) -> list[int]:
        """Ids between our own begin and end ids, as :meth:`idc.data.text.Vocabulary.encode` returns them."""
        return [BOS, *self._tokenizer.encode(caption, add_special_tokens=False), EOS]
