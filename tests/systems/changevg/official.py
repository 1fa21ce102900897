"""Change-Agent's MCI in functions on its state dict, written from its description and apart from our model: the layout
of a checkpoint of any size, and the forward pass of one pair. What our guide is compared with.

Names begin with the part of the checkpoint: ``encoder_dict.``, ``encoder_trans_dict.``, ``decoder_dict.``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Layout = dict[str, tuple[tuple[int, ...], str]]
"""Name to shape and dtype."""
State = dict[str, Tensor]
FLOAT, LONG = "torch.float32", "torch.int64"


@dataclass(frozen=True)
class Sizes:
    """A size of the official modules; the defaults are the official ones."""

    widths: tuple[int, int, int, int] = (64, 128, 320, 512)
    depths: tuple[int, int, int, int] = (2, 2, 2, 2)
    heads: tuple[int, int, int, int] = (1, 2, 5, 8)
    reductions: tuple[int, int, int, int] = (8, 4, 2, 1)
    image: int = 256
    positions: int = 16
    trans_heads: int = 8
    summary_layers: int = 3
    map_layers: int = 3
    decoder: int = 512
    decoder_layers: int = 1
    words: int = 468
    length: int = 41


SMALL = Sizes(
    widths=(8, 12, 16, 24), depths=(1, 2, 1, 1), heads=(1, 2, 4, 2), reductions=(4, 2, 2, 1), image=64, positions=3,
    trans_heads=4, summary_layers=2, map_layers=2, decoder=16, decoder_layers=2, words=30, length=9,
)  # fmt: skip


# fmt: off
def layout(s: Sizes) -> Layout:
    """All tensors of a checkpoint."""
    out: Layout = {}

    def add(root: str, shapes: dict[str, tuple[int, ...]], bias: bool = True) -> None:
        for name, shape in shapes.items():
            out[f"{root}.{name}.weight"] = (shape, FLOAT)
            if bias:
                out[f"{root}.{name}.bias"] = (shape[:1], FLOAT)

    def norms(root: str, widths: dict[str, int]) -> None:
        add(root, {name: (width,) for name, width in widths.items()})
        for name, width in widths.items():
            out.update({f"{root}.{name}.running_{part}": ((width,), FLOAT) for part in ("mean", "var")})
            out[f"{root}.{name}.num_batches_tracked"] = ((), LONG)

    def block(name: str, c: int) -> None:
        add(name, {f"att.{part}": (c, c) for part in ("to_q", "to_k", "to_v", "to_out.0")})
        add(name, dict.fromkeys(("att.Q_LN", "att.K_LN", "att.V_LN", "norm1", "norm2"), (c,)))
        add(name, {"att.fuse_conv.0": (c, c, 1, 1), "att.fuse_conv2.0": (c, 2 * c, 1, 1), "PCM.0": (c, 1, 3, 3),
                   "PCM.3": (c, c, 1, 1), "feedforward.net.0": (4 * c, c), "feedforward.net.3": (c, 4 * c)})
        norms(name, {"att.fuse_conv.1": c, "att.fuse_conv2.1": c, "PCM.1": c})
        norms(name, {"Q_d_conv.BN": 3 * c, "K_d_conv.BN": 3 * c})
        for part in ("Q_d_conv", "K_d_conv"):
            shapes = {"3x3": (3, 3), "1x5": (1, 5), "5x1": (5, 1)}
            add(name, {f"{part}.d_conv_{shape}": (c, 1, *size) for shape, size in shapes.items()})
            add(name, {f"{part}.conv_1": (c, 3 * c, 1, 1)})

    root = "encoder_dict.cnn.segformer"
    for level, (w, depth, reduction) in enumerate(zip(s.widths, s.depths, s.reductions, strict=True), start=1):
        before, kernel = (3, 7) if level == 1 else (s.widths[level - 2], 3)
        add(root, {f"patch_embed{level}.proj": (w, before, kernel, kernel), f"patch_embed{level}.norm": (w,),
                   f"norm{level}": (w,)})
        for number in range(depth):
            reduced = {"attn.sr": (w, w, reduction, reduction), "attn.norm": (w,)} if reduction > 1 else {}
            add(f"{root}.block{level}.{number}", {
                "norm1": (w,), "norm2": (w,), "attn.q": (w, w), "attn.kv": (2 * w, w), "attn.proj": (w, w),
                "mlp.fc1": (4 * w, w), "mlp.dwconv.dwconv": (4 * w, 1, 3, 3), "mlp.fc2": (w, 4 * w), **reduced,
            })
    root, c, d = "encoder_trans_dict", s.widths[3], s.decoder
    add(
        root,
        {f"{side}_embedding{suffix}": (s.positions, c // 2) for suffix in ("", "_CD") for side in "hw"},
        bias=False,
    )
    for half in range(2):
        for number in range(s.summary_layers):
            block(f"{root}.Dynamic_DIF_aware_TR.{number}.{half}", c)
        for number in range(s.map_layers):
            block(f"{root}.Transformer_aug_CD.{number}.{half}", c)
    add(root, {f"Dynamic_DIF_aware_TR.{number}.2": (c, 2 * c) for number in range(s.summary_layers)})
    for level, w in enumerate(s.widths):
        add(root, {f"conv_dif.{level}.0": (w, w, 1, 1), f"conv_fuse.{level}.0": (2 * w, 3 * w, 3, 3),
                   f"conv_fuse.{level}.3": (2 * w, 2 * w, 1, 1), f"to_fused.{level}.0": (2 * w, 2 * w, 1, 1)})
        norms(root, {f"conv_dif.{level}.1": w, f"conv_fuse.{level}.1": 2 * w, f"to_fused.{level}.1": 2 * w})
        below = 2 * s.widths[max(level - 1, 0)]
        out[f"{root}.to_fused.{level}.3.weight"] = ((2 * w, below, 4, 4), FLOAT)
        out[f"{root}.to_fused.{level}.3.bias"] = ((below,), FLOAT)
    out[f"{root}.to_seg.0.weight"] = ((2 * s.widths[0], s.widths[0], 4, 4), FLOAT)
    out[f"{root}.to_seg.0.bias"] = ((s.widths[0],), FLOAT)
    add(root, {"to_seg.1": (3, s.widths[0], 1, 1)})
    root = "decoder_dict"
    add(root, {"Conv1": (d, 2 * c, 1, 1), "LN.left.0": (d // 2, d, 1, 1), "LN.left.3": (d // 2, d // 2, 3, 3),
               "LN.left.6": (d, d // 2, 1, 1), "wdc": (s.words, d)})
    norms(root, {"LN.left.1": d // 2, "LN.left.4": d // 2, "LN.left.7": d})
    add(root, {"vocab_embedding": (s.words, d), "position_encoding.embedding_1D": (52, d)}, bias=False)
    for number in range(s.decoder_layers):
        name = f"{root}.transformer.layers.{number}"
        for part in ("self_attn", "multihead_attn"):
            out[f"{name}.{part}.in_proj_weight"] = ((3 * d, d), FLOAT)
            out[f"{name}.{part}.in_proj_bias"] = ((3 * d,), FLOAT)
            add(name, {f"{part}.out_proj": (d, d)})
        add(name, {"linear1": (4 * d, d), "linear2": (d, 4 * d)} | {f"norm{n}": (d,) for n in (1, 2, 3)})
        add(name, {f"fc_alpha{n}": (d, 2 * d) for n in (1, 2, 3)})
    out[f"{root}.position_encoding.pe"] = ((s.length, 1, d), FLOAT)
    return out
# fmt: on


def random_state(s: Sizes, seed: int = 0) -> State:
    """Random weights of which every part matters."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}
    for name, (shape, dtype) in layout(s).items():
        if dtype == LONG:
            state[name] = torch.tensor(7)
        elif name.endswith("running_var"):
            state[name] = 0.5 + torch.rand(shape, generator=generator)
        elif name.endswith(".weight") and len(shape) == 1:
            state[name] = 1 + 0.2 * torch.randn(shape, generator=generator)
        else:
            fan = max(1, math.prod(shape[1:]))
            state[name] = torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else fan**-0.5)
    state["decoder_dict.position_encoding.pe"] = sinusoids(s.length, s.decoder).unsqueeze(1)
    return state


def checkpoint(state: State) -> dict[str, OrderedDict[str, Tensor]]:
    """As ``torch.save`` has it."""
    parts: dict[str, OrderedDict[str, Tensor]] = {}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, OrderedDict())[rest] = tensor
    return parts


def sinusoids(length: int, width: int) -> Tensor:
    """Position p: channel 2i is sin(p f_i), 2i + 1 cos(p f_i), f_i = 10000^(-2i / width)."""
    table = torch.zeros(length, width)
    for p in range(length):
        for i in range(width // 2):
            angle = p * 10_000.0 ** (-2 * i / width)
            table[p, 2 * i], table[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


# -- forward pass -------------------------------------------------------------------------------------------------


class Official:
    """The forward pass of one pair.

    Attributes:
        branches: of every call of a block, whether it took the branch for identical inputs.
    """

    def __init__(self, state: State, s: Sizes):
        self.state, self.s = state, s
        self.branches: list[bool] = []

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def conv(self, name: str, x: Tensor, stride: int = 1, depthwise: bool = False) -> Tensor:
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        padding = (weight.shape[2] // 2, weight.shape[3] // 2)
        groups = x.shape[0] if depthwise else 1
        return F.conv2d(x.unsqueeze(0), weight, bias, stride, padding, groups=groups)[0]

    def up(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return F.conv_transpose2d(x.unsqueeze(0), weight, bias, stride=2, padding=1)[0]

    def layer_norm(self, name: str, x: Tensor, epsilon: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.state[f"{name}.weight"], self.state[f"{name}.bias"], epsilon)

    def batch_norm(self, name: str, x: Tensor) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x.unsqueeze(0), *(self.state[f"{name}.{part}"] for part in parts))[0]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, heads: int, causal: bool = False) -> Tensor:
        q, k, v = (x.unflatten(1, (heads, -1)).transpose(0, 1) for x in (queries, keys, values))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1)

    def image(self, pixels: Tensor) -> list[Tensor]:
        """The maps of the four levels of an image, uint8 (H, W, 3)."""
        mean, deviation = (0.39073, 0.38623, 0.32989), (0.15329, 0.14628, 0.13648)
        x = torch.stack([(pixels[..., c] - 255 * mean[c]) / (255 * deviation[c]) for c in range(3)])
        levels = []
        root = "encoder_dict.cnn.segformer"
        for level in range(4):
            x = self.conv(f"{root}.patch_embed{level + 1}.proj", x, stride=4 if level == 0 else 2)
            _, height, width = x.shape
            tokens = self.layer_norm(f"{root}.patch_embed{level + 1}.norm", x.flatten(1).T)
            for number in range(self.s.depths[level]):
                tokens = self.mit_block(f"{root}.block{level + 1}.{number}", tokens, (height, width), level)
            tokens = self.layer_norm(f"{root}.norm{level + 1}", tokens, 1e-6)
            x = tokens.T.reshape(-1, height, width)
            levels.append(x)
        return levels

    def mit_block(self, name: str, tokens: Tensor, size: tuple[int, int], level: int) -> Tensor:
        normed = self.layer_norm(f"{name}.norm1", tokens, 1e-6)
        queries, source = self.linear(f"{name}.attn.q", normed), normed
        if self.s.reductions[level] > 1:
            weight, bias = self.state[f"{name}.attn.sr.weight"], self.state[f"{name}.attn.sr.bias"]
            reduced = F.conv2d(normed.T.reshape(1, -1, *size), weight, bias, stride=self.s.reductions[level])[0]
            source = self.layer_norm(f"{name}.attn.norm", reduced.flatten(1).T)
        both = self.linear(f"{name}.attn.kv", source)
        half = both.shape[1] // 2
        attended = self.attend(queries, both[:, :half], both[:, half:], self.s.heads[level])
        tokens = tokens + self.linear(f"{name}.attn.proj", attended)
        wide = self.linear(f"{name}.mlp.fc1", self.layer_norm(f"{name}.norm2", tokens, 1e-6))
        wide = self.conv(f"{name}.mlp.dwconv.dwconv", wide.T.reshape(-1, *size), depthwise=True).flatten(1).T
        return tokens + self.linear(f"{name}.mlp.fc2", F.gelu(wide))

    def shaped(self, name: str, x: Tensor) -> Tensor:
        """DC of section 9."""
        shapes = [self.conv(f"{name}.d_conv_{shape}", x, depthwise=True) for shape in ("3x3", "1x5", "5x1")]
        return self.conv(f"{name}.conv_1", F.gelu(self.batch_norm(f"{name}.BN", torch.cat(shapes))))

    def block(self, name: str, x1: Tensor, x2: Tensor) -> Tensor:
        """T(x1, x2, x2) on maps (C, Y, X)."""
        x1 = x1 + self.shaped(f"{name}.Q_d_conv", x1)
        x2 = x2 + self.shaped(f"{name}.K_d_conv", x2)
        identical = bool((x1 == x2).all())
        self.branches.append(identical)
        if not identical:
            mixed = self.conv(f"{name}.att.fuse_conv.0", x1 * (x2 - x1))
            x2 = F.relu(self.batch_norm(f"{name}.att.fuse_conv.1", mixed))
        queries, keys = x1.flatten(1).T, x2.flatten(1).T
        parts = (self.linear(f"{name}.att.to_{part}", x) for part, x in (("q", queries), ("k", keys), ("v", keys)))
        attended = self.linear(f"{name}.att.to_out.0", self.attend(*parts, self.s.trans_heads))
        x = self.layer_norm(f"{name}.norm1", attended + queries)
        wide = F.relu(self.linear(f"{name}.feedforward.net.0", x))
        x = self.layer_norm(f"{name}.norm2", self.linear(f"{name}.feedforward.net.3", wide) + x)
        return x.T.reshape(x1.shape)

    def located(self, x: Tensor, suffix: str) -> Tensor:
        """With positions: the first half of the channels by column, from the table named h; the second by row, from
        w."""
        columns, rows = (self.state[f"encoder_trans_dict.{side}_embedding{suffix}.weight"] for side in "hw")
        out = x.clone()
        for row in range(x.shape[1]):
            for column in range(x.shape[2]):
                out[:, row, column] += torch.cat([columns[column], rows[row]])
        return out

    def summary_maps(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Both images' last maps after the layers of the caption branch."""
        first, second = self.located(first, ""), self.located(second, "")
        for number in range(self.s.summary_layers):
            name = f"encoder_trans_dict.Dynamic_DIF_aware_TR.{number}"
            first, second = self.block(f"{name}.0", first, second), self.block(f"{name}.1", second, first)
        return first, second

    def classes(self, befores: list[Tensor], afters: list[Tensor]) -> Tensor:
        """Logits of the map, (3, H, W)."""
        root = "encoder_trans_dict"
        first, second = self.located(befores[3], "_CD"), self.located(afters[3], "_CD")
        for number in range(self.s.map_layers):
            first = self.block(f"{root}.Transformer_aug_CD.{number}.0", first, second) + first
            second = self.block(f"{root}.Transformer_aug_CD.{number}.1", second, first) + second
        fused = []
        for level in range(4):
            one, two = (first, second) if level == 3 else (befores[level], afters[level])
            product = (one * two).sum(0)
            cosine = product / (one.pow(2).sum(0).sqrt() * two.pow(2).sum(0).sqrt())
            difference = self.batch_norm(
                f"{root}.conv_dif.{level}.1", self.conv(f"{root}.conv_dif.{level}.0", two - one)
            )
            x = self.conv(f"{root}.conv_fuse.{level}.0", torch.cat([one, difference + cosine, two]))
            x = F.relu(self.batch_norm(f"{root}.conv_fuse.{level}.1", x))
            fused.append(self.conv(f"{root}.conv_fuse.{level}.3", x))
        x = torch.zeros_like(fused[3])
        for level in (3, 2, 1, 0):
            x = self.conv(f"{root}.to_fused.{level}.0", fused[level] + x)
            x = F.relu(self.batch_norm(f"{root}.to_fused.{level}.1", x))
            x = self.up(f"{root}.to_fused.{level}.3", x)
        return self.conv(f"{root}.to_seg.1", self.up(f"{root}.to_seg.0", x))

    def memory(self, first: Tensor, second: Tensor) -> Tensor:
        """Of the words, (S, D)."""
        root = "decoder_dict"
        joined = self.conv(f"{root}.Conv1", torch.cat([first, second]))
        x = joined
        for number in (0, 3, 6):
            x = self.batch_norm(f"{root}.LN.left.{number + 1}", self.conv(f"{root}.LN.left.{number}", x))
            if number < 6:
                x = F.relu(x)
        return F.relu(x + joined).flatten(1).T

    def words(self, ids: list[int], memory: Tensor) -> Tensor:
        """Logits of the word after each id, which are the official ones, (T, V)."""
        root, heads = "decoder_dict", self.s.trans_heads
        x = self.state[f"{root}.vocab_embedding.weight"][ids] + sinusoids(len(ids), self.s.decoder)
        for number in range(self.s.decoder_layers):
            name, entered = f"{root}.transformer.layers.{number}", x
            for part, source, norm in (("self_attn", None, "norm1"), ("multihead_attn", memory, "norm2")):
                weights = self.state[f"{name}.{part}.in_proj_weight"].chunk(3)
                biases = self.state[f"{name}.{part}.in_proj_bias"].chunk(3)
                inputs = (x, *((x, x) if source is None else (source, source)))
                parts = [given @ w.T + b for given, w, b in zip(inputs, weights, biases, strict=True)]
                attended = self.attend(parts[0], parts[1], parts[2], heads, causal=source is None)
                x = self.layer_norm(f"{name}.{norm}", x + self.linear(f"{name}.{part}.out_proj", attended))
            wide = F.relu(self.linear(f"{name}.linear1", x))
            x = self.layer_norm(f"{name}.norm3", x + self.linear(f"{name}.linear2", wide)) + entered
        return self.linear(f"{root}.wdc", x)

    def greedy(self, memory: Tensor) -> list[int]:
        """Official ids after <START> (2), up to and with <END> (3)."""
        ids = [2]
        for _ in range(self.s.length):
            ids.append(int(self.words(ids, memory)[-1].argmax()))
            if ids[-1] == 3:
                break
        return ids[1:]
