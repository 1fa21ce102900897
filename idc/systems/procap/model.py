"""ProCap's two networks: the procedure encoder of both stages, and the text decoder of stage 2.

Unusual in this model: one mask embedding does two jobs. In stage 1 it stands for hidden patches of real keyframes; in
stage 2, k * n_I copies of it (the "procedure queries", eq. 9) stand between the patches of the before and the after
image, and the encoder fills them in as it learnt to fill in hidden frames. Intermediate frames are never computed for
captioning, but in the variant that the paper compares with (`procedure: frames`).

Shapes:
    B samples   F = k + 2 frames   P = n_I patches a frame   L positions   D encoder width   E decoder width
    Z = d_z features of the frozen image tokenizer   K codebook entries   N = n_T caption slots   T caption length
    V words   H heads
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.nn.mimetic import compare_
from idc.systems.procap.config import DecoderConfig, EncoderConfig, Procedure


@dataclass(frozen=True)
class Shapes:
    """What the stored procedures decide about the networks; never set by hand."""

    num_keyframes: int  # k
    grid: tuple[int, int]  # n_I = grid[0] * grid[1]
    feature_dim: int  # d_z
    codebook_size: int  # K
    vocabulary_size: int

    @property
    def patches(self) -> int:
        """n_I, patches a frame."""
        return self.grid[0] * self.grid[1]

    @property
    def frames(self) -> int:
        """k + 2, keyframes with both ends."""
        return self.num_keyframes + 2


class Packed(nn.Linear):
    """Queries, keys and values in one product; or queries of some positions only, and keys and values of all."""

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
        """Start as an attention that compares (:func:`idc.nn.mimetic.compare_`)."""
        compare_(self.qkv.weight, self.out.weight, self.heads)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_BLD: Tensor, mask: Tensor | None, at_BQD: Tensor | None = None) -> Tensor:
        """(B, L, D); with ``at_BQD`` for these queries alone, (B, Q, D), and ``mask`` has a row for each of them."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x_BLD, at_BQD))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(q.dtype))
        return self.out(mixed.transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """A CLIP block: norms before attention and MLP, x * sigmoid(1.702 x) between the MLP's layers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x_BLD: Tensor, mask_LL: Tensor | None, read_BL: Tensor | None = None) -> Tensor:
        """(B, L, D); or with ``read_BL`` (bool) the output of these positions alone, (M, D), sample by sample."""
        if read_BL is None:
            return self._widened(x_BLD + self.attention(self.norm_attention(x_BLD), mask_LL))
        # Attention wants as many queries of each sample: its read positions first, then others up to the most of any.
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
        hidden = self.widen(self.norm_mlp(x))
        return x + self.narrow(F.silu(1.702 * hidden) / 1.702)


class ProcedureEncoder(nn.Module):
    """The Transformer over {align, caption, consistency, frames} (stage 1) or {before, queries, after} (stage 2).

    Args:
        config: sizes, and which warts of the official code to have.
        shapes: what the stored procedures decide.
    """

    def __init__(self, config: EncoderConfig, shapes: Shapes):
        super().__init__()
        self.config, self.shapes = config, shapes
        width = config.width
        self.feature_norm = nn.LayerNorm(shapes.feature_dim)
        self.feature_in = nn.Linear(shapes.feature_dim, width)
        self.mask_embedding = nn.Parameter(torch.zeros(width))  # e_m
        # Positions of a patch: frame + row + column. Rows and columns are as large as the features from the start
        # (so in the official code), frames smaller, so that the same place in another frame is a near neighbour.
        self.frame_positions = nn.Parameter(torch.randn(shapes.frames, 1, 1, width) * 0.3)
        self.row_positions = nn.Parameter(torch.randn(1, shapes.grid[0], 1, width))
        self.column_positions = nn.Parameter(torch.randn(1, 1, shapes.grid[1], width))
        # Rows V .. V+N-1 are the padding of text slot 0 .. N-1.
        own = config.text_vocabulary
        self.text_words = shapes.vocabulary_size if own is None else own
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
        nn.init.normal_(self.feature_in.weight, std=self.shapes.feature_dim**-0.5)
        for block in self.modules():
            if isinstance(block, EncoderBlock):
                nn.init.normal_(block.narrow.weight, std=0.02 / math.sqrt(2 * config.layers))
                nn.init.zeros_(block.narrow.bias)
                if config.init == "comparing":
                    block.attention.compare()

    def forward(self, stage: Literal["modeling", "procedure"], *inputs: Any) -> Any:
        """:meth:`modeling` or :meth:`procedure`. ZeRO-3 holds what this module itself owns whole only while the module
        is called, so both stages come through here."""
        return self.modeling(*inputs) if stage == "modeling" else self.procedure(*inputs)

    def embed_frames(self, features_BFPZ: Tensor) -> Tensor:
        """Tokenizer features to patch embeddings e^I without positions, (B, F, P, D)."""
        return self.feature_in(self.feature_norm(features_BFPZ))

    def place(self, patches_BFPD: Tensor) -> Tensor:
        """Add positions (to masked patches too) and lay the frames one after another: (B, F*P, D). Two frames stand at
        the positions of the first and the last."""
        frames: Tensor = self.frame_positions
        if patches_BFPD.shape[1] == 2:
            frames = torch.stack([frames[0], frames[-1]])
        positions = (frames + self.row_positions + self.column_positions).flatten(1, 2)
        return (patches_BFPD + positions).flatten(1, 2)

    def embed_text(self, ids_BN: Tensor, pad: int) -> Tensor:
        """Caption ids to e^T, (B, N, D); a ``pad`` takes the padding embedding of its slot. N may be 0: no caption."""
        length = ids_BN.shape[1]
        slots = torch.arange(length, device=ids_BN.device) + self.text_words
        return self.text_embedding(torch.where(ids_BN == pad, slots, ids_BN)) + self.text_positions[:length]

    def modeling(
        self, features_BFPZ: Tensor, masked_BFP: Tensor, ids_BN: Tensor, pad: int, read_CFP: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Stage 1 (eq. 4): tokenizer features, which patches to mask, and the caption to hidden states.

        Args:
            read_CFP: the patches whose hidden states are wanted, of the first C samples (bool); the last block computes
                no others.

        Returns:
            h^align (B, D), h^csy (B, D), h^I (B, F*P, D); with ``read_CFP`` that of the wanted patches alone, (M, D),
            in their order.
        """
        patches = self.embed_frames(features_BFPZ)
        patches = torch.where(masked_BFP.unsqueeze(-1), self.mask_embedding.to(patches.dtype), patches)
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

    def procedure(self, frames_BGPZ: Tensor, kind: Procedure = "queries") -> Tensor:
        """Stage 2: tokenizer features of G frames to the latent procedure.

        Args:
            frames_BGPZ: the two images; with ``kind`` "frames" all k + 2 frames.
            kind: what stands between the images, see :attr:`FinetuneJob.procedure`.

        Returns:
            (B, F*P, D), with ``kind`` "none" (B, 2*P, D).
        """
        patches_BGPD = self.embed_frames(frames_BGPZ)
        batch, given, patches, width = patches_BGPD.shape
        assert given == (self.shapes.frames if kind == "frames" else 2), (kind, given)
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
        """{caption, [separator,] consistency}."""
        parts = [text_BND]
        if self.separator_token is not None:
            parts.append(self.separator_token.expand(batch, 1, -1))
        parts.append(self.consistency_token.expand(batch, 1, -1))
        return torch.cat(parts, dim=1)

    def _run(self, x_BLD: Tensor, first: int | None) -> Tensor:
        """The blocks; ``first`` is the row from which the official attention mask is blind, if control tokens stand
        before the frames."""
        mask = None
        if first is not None and not self.config.consistency_sees_text:
            mask = self._blind_rows(x_BLD.shape[1], first, x_BLD.device)
        for block in self.blocks:
            x_BLD = block(x_BLD, mask)
        return x_BLD

    def _read(self, x_BLD: Tensor, read_CL: Tensor, control: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """The blocks, the last one only where it is read: at ``read_CL`` of the first C samples, which holds both
        control tokens of the losses, and at these tokens alone of the other samples (they are all that the negatives
        are asked for). From row ``control`` on the official mask is blind; ``first`` is the row of the first patch."""
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
        """Official attention mask, 0 or -inf (L, L): the positions that stage 1 gives to the separator and the
        consistency token see nothing before themselves. In stage 2 other tokens stand there."""
        mask = torch.zeros(length, length, device=device)
        for row in range(first, first + (2 if self.config.separator else 1)):
            mask[row, :row] = float("-inf")
        return mask


def make_token_head(width: int, codebook_size: int) -> nn.Sequential:
    """Hidden states of patches to logits of codebook entries."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, codebook_size))


class PretrainHeads(nn.Module):
    """Stage 1 heads, each a norm and a linear layer: patches to codebook entries, tokens to one logit."""

    def __init__(self, width: int, codebook_size: int):
        super().__init__()
        self.msm = make_token_head(width, codebook_size)
        self.align = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.consistency = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))


class OfficialNorm(nn.Module):
    """The official decoder's norm: unbiased standard deviation, epsilon added to it rather than to the variance."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return self.weight * centred / (x.std(dim=-1, keepdim=True) + 1e-6) + self.bias


class PositionNorm(nn.Module):
    """Batch norm of each position and channel of (B, S, E)."""

    def __init__(self, positions: int, width: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(positions * width)

    def forward(self, x_BSE: Tensor) -> Tensor:
        return self.norm(x_BSE.flatten(1)).view_as(x_BSE)


class DecoderAttention(nn.Module):
    """Attention without biases, whose keys and values can be kept."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.heads = config.heads
        self.scale = (config.width if config.scale_by_width else config.width // config.heads) ** -0.5
        self.q, self.k, self.v, self.out = (nn.Linear(config.width, config.width, bias=False) for _ in range(4))

    def keys_values(self, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, E/H)."""
        return self._split(self.k(x_BSE)), self._split(self.v(x_BSE))

    def forward(self, x_BTE: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        query = self._split(self.q(x_BTE))
        mixed = F.scaled_dot_product_attention(query, keys, values, is_causal=causal, scale=self.scale)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def weights(self, x_BTE: Tensor, keys: Tensor) -> Tensor:
        """How much each position looks at each key, (B, T, S), mean over the heads; :meth:`forward` never has them."""
        scores = self._split(self.q(x_BTE)) @ keys.transpose(2, 3) * self.scale
        return scores.float().softmax(dim=-1).mean(dim=1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Post-norm: self-attention, cross-attention to the procedure, feed-forward."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        norm = OfficialNorm if config.official_norm else nn.LayerNorm
        self.self_attention, self.norm_self = DecoderAttention(config), norm(config.width)
        self.cross_attention, self.norm_cross = DecoderAttention(config), norm(config.width)
        self.widen, self.narrow = (
            nn.Linear(config.width, config.feedforward),
            nn.Linear(config.feedforward, config.width),
        )
        self.norm_feedforward = norm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def after_self(self, x: Tensor, mixed: Tensor, cross_keys: Tensor, cross_values: Tensor) -> Tensor:
        """All of the layer that follows its self-attention."""
        x = self.norm_self(x + self.dropout(mixed))
        x = self.norm_cross(x + self.dropout(self.cross_attention(x, cross_keys, cross_values, causal=False)))
        return self.norm_feedforward(x + self.dropout(self.narrow(F.relu(self.widen(x)))))


@dataclass
class DecoderCache:
    """Keys and values of R = pairs * beams rows.

    Attributes:
        keys, values: a tensor a layer, (R, H, max_length, E/H), filled up to the current position.
        places: sinusoids of the positions, (max_length, E).
        cross: (keys, values) a layer, (pairs, H, S, E/H), of the pairs, not of the rows.
        beams: rows a pair.
    """

    keys: list[Tensor]
    values: list[Tensor]
    cross: list[tuple[Tensor, Tensor]]
    places: Tensor
    beams: int


class TextDecoder(nn.Module):
    """Caption words from the latent procedure. Input and output embedding are one tensor; positions are sinusoids.

    Args:
        config: sizes.
        encoder_width: D of the procedure.
        vocabulary_size: V.
        positions: S of the procedure, F*P; only `memory_norm: batch` needs it.
    """

    def __init__(self, config: DecoderConfig, encoder_width: int, vocabulary_size: int, positions: int = 0):
        super().__init__()
        self.config = config
        width = config.width
        norm = nn.LayerNorm(width) if config.memory_norm == "layer" else PositionNorm(positions, width)
        self.project = nn.Sequential(
            nn.Linear(encoder_width, encoder_width), nn.ReLU(), nn.Linear(encoder_width, width), norm
        )
        self.words = nn.Parameter(torch.randn(vocabulary_size, width) * width**-0.5)
        self.word_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids_BT: Tensor, procedure_BSD: Tensor) -> Tensor:
        """Logits (B, T, V) of the word after each position; position t sees ids 0..t."""
        memory = self.project(procedure_BSD)
        x = self._embed(ids_BT, self._places(ids_BT.shape[1], memory.device), memory.dtype)
        for layer in self._layers():
            mixed = layer.self_attention(x, *layer.self_attention.keys_values(x), causal=True)
            x = layer.after_self(x, mixed, *layer.cross_attention.keys_values(memory))
        return self._logits(x)

    def attended(self, ids_BT: Tensor, procedure_BSD: Tensor) -> Tensor:
        """How much the position that says the word after each of ``ids_BT`` looks at each position of the procedure:
        (B, T, S), mean over layers and heads, sums to 1 over S."""
        memory = self.project(procedure_BSD)
        x = self._embed(ids_BT, self._places(ids_BT.shape[1], memory.device), memory.dtype)
        looks = []
        for layer in self._layers():
            mixed = layer.self_attention(x, *layer.self_attention.keys_values(x), causal=True)
            keys, values = layer.cross_attention.keys_values(memory)
            looks.append(layer.cross_attention.weights(layer.norm_self(x + mixed), keys))
            x = layer.after_self(x, mixed, keys, values)
        return torch.stack(looks).mean(dim=0)

    def start(self, procedure_BSD: Tensor, max_length: int, beams: int) -> DecoderCache:
        """See :class:`idc.decoding.CachedDecoder`."""
        memory = self.project(procedure_BSD)
        cross = [layer.cross_attention.keys_values(memory) for layer in self._layers()]
        rows, heads = procedure_BSD.shape[0] * beams, self.config.heads
        shape = (rows, heads, max_length, self.config.width // heads)
        empty = [[cross[0][0].new_zeros(shape) for _ in self.layers] for _ in range(2)]
        return DecoderCache(empty[0], empty[1], cross, self._places(max_length, memory.device), beams)

    def step(self, ids_R: Tensor, position: int, cache: DecoderCache) -> Tensor:
        """See :class:`idc.decoding.CachedDecoder`."""
        x_R1E = self._embed(ids_R.unsqueeze(1), cache.places[position], cache.keys[0].dtype)
        pairs = cache.cross[0][0].shape[0]
        for index, layer in enumerate(self._layers()):
            key, value = layer.self_attention.keys_values(x_R1E)
            cache.keys[index][:, :, position] = key[:, :, 0]
            cache.values[index][:, :, position] = value[:, :, 0]
            keys, values = (part[index][:, :, : position + 1] for part in (cache.keys, cache.values))
            mixed = layer.self_attention(x_R1E, keys, values, causal=False)
            # The beams of a pair are one sequence of queries to the same memory, which need not be copied.
            x, mixed = (part.view(pairs, cache.beams, -1) for part in (x_R1E, mixed))
            x_R1E = layer.after_self(x, mixed, *cache.cross[index]).view_as(x_R1E)
        return self._logits(x_R1E)[:, 0]

    def reorder(self, cache: DecoderCache, rows_R: Tensor) -> None:
        """See :class:`idc.decoding.CachedDecoder`."""
        cache.keys = [keys[rows_R] for keys in cache.keys]
        cache.values = [values[rows_R] for values in cache.values]

    def _layers(self) -> list[DecoderLayer]:
        return [cast(DecoderLayer, layer) for layer in self.layers]

    def _places(self, length: int, device: torch.device) -> Tensor:
        """Sinusoids of positions 0 .. length - 1, (length, E)."""
        width = self.config.width
        rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
        angles = torch.arange(length, device=device).unsqueeze(1) * rate
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

    def _embed(self, ids: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
        return self.dropout(F.embedding(ids, self.words) * math.sqrt(self.config.width) + places).to(dtype)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.words, self.word_bias)
