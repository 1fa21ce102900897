"""The official ProCap modules in a few functions on their state dicts, written from their description and apart from
our model: layouts of random checkpoints of any size, and the forward pass. What our converted models are compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

Layout = dict[str, tuple[tuple[int, ...], str]]
"""Name to shape and dtype, e.g. ``((768,), "torch.float32")``."""
State = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """A size of the official modules; the defaults are CLEVR-Change's."""

    channels: int = 128
    mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    res: int = 2
    z: int = 256
    codes: int = 1024
    grid: int = 14
    width: int = 768
    heads: int = 12
    blocks: int = 12
    frames: int = 4
    text: int = 24
    bpe: int = 49_408
    words: int = 80
    decoder: int = 512
    decoder_heads: int = 8
    decoder_layers: int = 2
    feedforward: int = 2048
    axial: str = field(default="target_pos_emb.weights.{}")

    @property
    def image(self) -> int:
        """Side of the images."""
        return self.grid * 2 ** (len(self.mult) - 1)


def linear(out: Layout, name: str, shape: tuple[int, ...], bias: bool = True) -> None:
    """A layer's weight, and its bias."""
    out[f"{name}.weight"] = (shape, "torch.float32")
    if bias:
        out[f"{name}.bias"] = (shape[:1], "torch.float32")


def _residual(out: Layout, name: str, before: int, after: int) -> None:
    linear(out, f"{name}.norm1", (before,))
    linear(out, f"{name}.conv1", (after, before, 3, 3))
    linear(out, f"{name}.norm2", (after,))
    linear(out, f"{name}.conv2", (after, after, 3, 3))
    if before != after:
        linear(out, f"{name}.nin_shortcut", (after, before, 1, 1))


def _attention(out: Layout, name: str, width: int) -> None:
    linear(out, f"{name}.norm", (width,))
    for gate in ("q", "k", "v", "proj_out"):
        linear(out, f"{name}.{gate}", (width, width, 1, 1))


def vqgan_layout(s: Sizes, *, loss: bool = True, at_256: bool = False) -> Layout:
    """``state_dict`` of a ``.ckpt``; ``at_256`` adds what fine-tuning at resolution 256 leaves in the file."""
    out: Layout = {}
    widths = [s.channels * mult for mult in s.mult]
    top = widths[-1]
    linear(out, "encoder.conv_in", (s.channels, 3, 3, 3))
    linear(out, "encoder.conv_out", (s.z, top, 3, 3))
    linear(out, "encoder.norm_out", (top,))
    linear(out, "decoder.conv_in", (top, s.z, 3, 3))
    linear(out, "decoder.conv_out", (3, s.channels, 3, 3))
    linear(out, "decoder.norm_out", (s.channels,))
    for side in ("encoder", "decoder"):
        for number in (1, 2):
            _residual(out, f"{side}.mid.block_{number}", top, top)
        _attention(out, f"{side}.mid.attn_1", top)
    for level, width in enumerate(widths):
        for number in range(s.res):
            _residual(
                out, f"encoder.down.{level}.block.{number}", ([s.channels, *widths][level], width)[number > 0], width
            )
        for number in range(s.res + 1):
            above = [*widths, top][level + 1]
            _residual(out, f"decoder.up.{level}.block.{number}", (above, width)[number > 0], width)
        if level < len(widths) - 1:
            linear(out, f"encoder.down.{level}.downsample.conv", (width, width, 3, 3))
        if level > 0:
            linear(out, f"decoder.up.{level}.upsample.conv", (width, width, 3, 3))
    out["quantize.embedding.weight"] = ((s.codes, s.z), "torch.float32")
    for name in ("quant_conv", "post_quant_conv"):
        linear(out, name, (s.z, s.z, 1, 1))
    return out | (_loss_layout() if loss else {}) | (_at_256(s) if at_256 else {})


def _loss_layout() -> Layout:
    out: Layout = {}
    for name in ("shift", "scale"):
        out[f"loss.perceptual_loss.scaling_layer.{name}"] = ((1, 3, 1, 1), "torch.float32")
    slices = {1: (0, 2), 2: (5, 7), 3: (10, 12, 14), 4: (17, 19, 21), 5: (24, 26, 28)}
    before = 3
    for number, layers in slices.items():
        for layer in layers:
            width = min(512, 32 * 2**number)
            linear(out, f"loss.perceptual_loss.net.slice{number}.{layer}", (width, before, 3, 3))
            before = width
        out[f"loss.perceptual_loss.lin{number - 1}.model.1.weight"] = ((1, before, 1, 1), "torch.float32")
    main = "loss.discriminator.main"
    linear(out, f"{main}.0", (64, 3, 4, 4))
    for number, width in ((2, 128), (5, 256), (8, 512)):
        linear(out, f"{main}.{number}", (width, width // 2, 4, 4), bias=False)
        linear(out, f"{main}.{number + 1}", (width,))
        for name in ("running_mean", "running_var"):
            out[f"{main}.{number + 1}.{name}"] = ((width,), "torch.float32")
        out[f"{main}.{number + 1}.num_batches_tracked"] = ((), "torch.int64")
    linear(out, f"{main}.11", (1, 512, 4, 4))
    return out


def _at_256(s: Sizes) -> Layout:
    out: Layout = {}
    last, width = len(s.mult) - 1, s.channels * s.mult[-1]
    for side, count in (("encoder.down", s.res), ("decoder.up", s.res + 1)):
        for number in range(count):
            _attention(out, f"{side}.{last}.attn.{number}", width)
    return out


def stage_1_layout(s: Sizes) -> Layout:
    """``weights`` of ``dalle.pt``."""
    out: Layout = {"image_mask": ((s.width,), "torch.float32")}
    tables = {
        "text_emb": s.bpe + s.text + 1,
        "text_pos_emb": s.text,
        "image_emb": s.codes + 2,
        "special_emb": 5,
        "special_pos_emb": 5,
    }
    for name, rows in tables.items():
        linear(out, name, (rows, s.width), bias=False)
    linear(out, "conv_to_embedding.0", (s.z,))
    linear(out, "conv_to_embedding.1", (s.width, s.z))
    for number, rows in enumerate((s.frames, s.grid, s.grid)):
        shape = [1, 1, 1, 1, s.width]
        shape[1 + number] = rows
        out[s.axial.format(number)] = (tuple(shape), "torch.float32")
    out |= {f"vae.model.{name}": value for name, value in vqgan_layout(s).items()}
    length = 1 + s.text + 2 + s.frames * s.grid**2
    for number in range(s.blocks):
        block = f"transformer.transformer.resblocks.{number}"
        out[f"{block}.attn_mask"] = ((length, length), "torch.float32")
        out[f"{block}.attn.in_proj_weight"] = ((3 * s.width, s.width), "torch.float32")
        out[f"{block}.attn.in_proj_bias"] = ((3 * s.width,), "torch.float32")
        linear(out, f"{block}.attn.out_proj", (s.width, s.width))
        linear(out, f"{block}.ln_1", (s.width,))
        linear(out, f"{block}.mlp.c_fc", (4 * s.width, s.width))
        linear(out, f"{block}.mlp.c_proj", (s.width, 4 * s.width))
        linear(out, f"{block}.ln_2", (s.width,))
    for name, classes in (("to_logits", s.codes), ("to_logits_rel", 1), ("to_logits_vid", 1)):
        linear(out, f"{name}.0", (s.width,))
        linear(out, f"{name}.1", (classes, s.width))
    return out


def stage_2_layout(s: Sizes) -> Layout:
    """``model`` of ``model.chkpt``."""
    out: Layout = {f"intermediate_generator.{name}": value for name, value in stage_1_layout(s).items()}
    linear(out, "mlp.0", (s.width, s.width))
    linear(out, "mlp.2", (s.decoder, s.width))
    linear(out, "mlp.3", (s.decoder,))
    for number in range(s.decoder_layers):
        layer = f"text_decoder.decoder.layers.{number}"
        for part in ("selfattn", "attention"):
            for gate in ("wq", "wk", "wv", "wo"):
                linear(out, f"{layer}.{part}.layer.{gate}", (s.decoder, s.decoder), bias=False)
        linear(out, f"{layer}.feedforward.layer.linear1", (s.feedforward, s.decoder))
        linear(out, f"{layer}.feedforward.layer.linear2", (s.decoder, s.feedforward))
        for part in ("selfattn", "attention", "feedforward"):
            for name in ("gamma", "beta"):
                out[f"{layer}.{part}.layernorm.{name}"] = ((s.decoder,), "torch.float32")
    linear(out, "text_decoder.decoder.out", (s.words, s.decoder))
    out["text_decoder.loss_func.one_hot"] = ((1, s.words), "torch.float32")
    return out


def random_state(layout: Layout, sizes: Sizes, seed: int = 0) -> State:
    """Random tensors of a layout: weights that keep activations near 1, everything else far from its usual start; the
    two kinds of buffers as the official modules fill them."""
    random = torch.Generator().manual_seed(seed)
    out: State = {}
    for name, (shape, dtype) in layout.items():
        if dtype == "torch.int64":
            out[name] = torch.zeros(shape, dtype=torch.int64)
        elif ".loss." in f".{name}" and "loss_func" not in name:
            out[name] = torch.zeros(()).expand(shape)  # 70 MB that nobody reads, as one number in memory and file
        elif name.endswith("attn_mask"):
            first = 1 + sizes.text
            mask = torch.zeros(shape)
            mask[first, :first] = mask[first + 1, : first + 1] = float("-inf")
            out[name] = mask
        elif name.endswith("one_hot"):
            out[name] = torch.full(shape, 0.1 / (shape[1] - 1))
        else:
            inputs = math.prod(shape[1:]) if len(shape) in (2, 4) and "emb" not in name.split(".")[-2] else 4
            out[name] = torch.randn(shape, generator=random) * inputs**-0.5
            if len(shape) == 1 and name.endswith(("weight", "gamma")):
                out[name] += 1
    return out


def _group_norm(sd: State, name: str, x: Tensor) -> Tensor:
    return F.group_norm(x, 32, sd[f"{name}.weight"], sd[f"{name}.bias"], eps=1e-6)


def _conv(sd: State, name: str, x: Tensor, **options: int) -> Tensor:
    return F.conv2d(x, sd[f"{name}.weight"], sd[f"{name}.bias"], **options)


def _swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _residual_block(sd: State, name: str, x: Tensor) -> Tensor:
    h = _conv(sd, f"{name}.conv1", _swish(_group_norm(sd, f"{name}.norm1", x)), padding=1)
    h = _conv(sd, f"{name}.conv2", _swish(_group_norm(sd, f"{name}.norm2", h)), padding=1)
    return h + (_conv(sd, f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in sd else x)


def _attention_block(sd: State, name: str, x: Tensor) -> Tensor:
    h = _group_norm(sd, f"{name}.norm", x)
    q, k, v = (_conv(sd, f"{name}.{gate}", h).flatten(2) for gate in "qkv")
    weights = (q.transpose(1, 2) @ k * x.shape[1] ** -0.5).softmax(dim=2)
    return x + _conv(sd, f"{name}.proj_out", (v @ weights.transpose(1, 2)).view_as(x))


def vqgan_features(sd: State, images: Tensor, s: Sizes) -> Tensor:
    """The encoder alone, before ``quant_conv``: (M, 3, Y, X) to (M, z, h, w)."""
    x = _conv(sd, "encoder.conv_in", images, padding=1)
    for level in range(len(s.mult)):
        for number in range(s.res):
            x = _residual_block(sd, f"encoder.down.{level}.block.{number}", x)
        if level < len(s.mult) - 1:
            x = _conv(sd, f"encoder.down.{level}.downsample.conv", F.pad(x, (0, 1, 0, 1)), stride=2)
    x = _residual_block(sd, "encoder.mid.block_1", x)
    x = _attention_block(sd, "encoder.mid.attn_1", x)
    x = _residual_block(sd, "encoder.mid.block_2", x)
    return _conv(sd, "encoder.conv_out", _swish(_group_norm(sd, "encoder.norm_out", x)), padding=1)


def vqgan_indices(sd: State, images: Tensor, s: Sizes) -> Tensor:
    """Codebook indices of images in [0, 1]: (M, h * w)."""
    z = _conv(sd, "quant_conv", vqgan_features(sd, 2 * images - 1, s)).flatten(2).transpose(1, 2)
    return torch.cdist(z, sd["quantize.embedding.weight"]).argmin(-1)


def vqgan_decode(sd: State, indices: Tensor, s: Sizes) -> Tensor:
    """Images in [0, 1] of codebook indices (M, h * w)."""
    z = sd["quantize.embedding.weight"][indices].transpose(1, 2).unflatten(2, (s.grid, s.grid))
    x = _conv(sd, "decoder.conv_in", _conv(sd, "post_quant_conv", z), padding=1)
    x = _residual_block(sd, "decoder.mid.block_1", x)
    x = _attention_block(sd, "decoder.mid.attn_1", x)
    x = _residual_block(sd, "decoder.mid.block_2", x)
    for level in reversed(range(len(s.mult))):
        for number in range(s.res + 1):
            x = _residual_block(sd, f"decoder.up.{level}.block.{number}", x)
        if level > 0:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = _conv(sd, f"decoder.up.{level}.upsample.conv", x, padding=1)
    x = _conv(sd, "decoder.conv_out", _swish(_group_norm(sd, "decoder.norm_out", x)), padding=1)
    return (x.clamp(-1, 1) + 1) / 2


def inner(sd: State, prefix: str) -> State:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in sd.items() if name.startswith(prefix)}


def _layer_norm(sd: State, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], sd[f"{name}.weight"], sd[f"{name}.bias"], eps=1e-5)


def _linear(sd: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, sd[f"{name}.weight"], sd.get(f"{name}.bias"))


def _blocks(sd: State, x: Tensor, s: Sizes) -> Tensor:
    """CLIP's residual blocks; the stored mask is cut to the length of the sequence, whatever stands there."""
    length = x.shape[1]
    for number in range(s.blocks):
        block = f"transformer.transformer.resblocks.{number}"
        h = _layer_norm(sd, f"{block}.ln_1", x)
        packed = F.linear(h, sd[f"{block}.attn.in_proj_weight"], sd[f"{block}.attn.in_proj_bias"])
        q, k, v = (part.unflatten(-1, (s.heads, -1)).transpose(1, 2) for part in packed.split(s.width, dim=-1))
        scores = (q * (s.width // s.heads) ** -0.5) @ k.transpose(2, 3) + sd[f"{block}.attn_mask"][:length, :length]
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + _linear(sd, f"{block}.attn.out_proj", mixed)
        h = _linear(sd, f"{block}.mlp.c_fc", _layer_norm(sd, f"{block}.ln_2", x))
        x = x + _linear(sd, f"{block}.mlp.c_proj", h * torch.sigmoid(1.702 * h))
    return x


def _text(sd: State, ids: Tensor, s: Sizes, num_text_tokens: int) -> Tensor:
    padding = torch.arange(s.text) + (num_text_tokens - s.text)
    return sd["text_emb.weight"][torch.where(ids == 0, padding, ids)] + sd["text_pos_emb.weight"]


def _special(sd: State, row: int, batch: int) -> Tensor:
    return (sd["special_emb.weight"][row] + sd["special_pos_emb.weight"][row]).expand(batch, 1, -1)


def _image_tokens(sd: State, frames: Tensor, s: Sizes) -> Tensor:
    """(B, F, 3, Y, X) in [0, 1] to embeddings (B, F, P, D) without positions."""
    maps = vqgan_features(inner(sd, "vae.model."), frames.flatten(0, 1), s).flatten(2).transpose(1, 2)
    return _linear(sd, "conv_to_embedding.1", _layer_norm(sd, "conv_to_embedding.0", maps)).unflatten(
        0, frames.shape[:2]
    )


def _positions(sd: State, s: Sizes) -> Tensor:
    time, rows, columns = (sd[s.axial.format(number)] for number in range(3))
    return (time + rows + columns).reshape(s.frames * s.grid**2, s.width)


def stage_1(sd: State, frames: Tensor, masked: Tensor, ids: Tensor, s: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of codes (B, F*P, K), of alignment and of consistency (B,); frames in [0, 1], 0 pads the text."""
    tokens = _image_tokens(sd, frames, s)
    tokens = torch.where(masked.unsqueeze(-1), sd["image_mask"], tokens).flatten(1, 2) + _positions(sd, s)
    batch = len(ids)
    x = torch.cat(
        [
            _special(sd, 0, batch),
            _text(sd, ids, s, s.bpe + s.text),
            _special(sd, 1, batch),
            _special(sd, 2, batch),
            tokens,
        ],
        dim=1,
    )
    x = _blocks(sd, x, s)
    heads = [
        _linear(sd, f"{name}.1", _layer_norm(sd, f"{name}.0", part))
        for name, part in (
            ("to_logits", x[:, 3 + s.text :]),
            ("to_logits_rel", x[:, 0]),
            ("to_logits_vid", x[:, 2 + s.text]),
        )
    ]
    return heads[0], heads[1][:, 0], heads[2][:, 0]


def stage_2_procedure(sd: State, before: Tensor, after: Tensor, s: Sizes) -> Tensor:
    """The encoder's output (B, F*P, D) of images in [0, 1]."""
    sd = inner(sd, "intermediate_generator.")
    ends = _image_tokens(sd, torch.stack([before, after], dim=1), s)
    batch = len(before)
    queries = sd["image_mask"].expand(batch, s.frames - 2, s.grid**2, s.width)
    tokens = torch.cat([ends[:, :1], queries, ends[:, 1:]], dim=1).flatten(1, 2) + _positions(sd, s)
    text = _text(sd, torch.zeros(batch, s.text, dtype=torch.long), s, s.text)  # its config says 0 text tokens
    x = torch.cat([text, _special(sd, 1, batch), _special(sd, 2, batch), tokens], dim=1)
    return _blocks(sd, x, s)[:, s.text + 2 :]


def _decoder_norm(sd: State, name: str, x: Tensor) -> Tensor:
    gain, shift = sd[f"{name}.layernorm.gamma"], sd[f"{name}.layernorm.beta"]
    deviation = (x - x.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
    return gain * (x - x.mean(-1, keepdim=True)) / (deviation.sqrt() + 1e-6) + shift


def _decoder_attention(sd: State, name: str, x: Tensor, memory: Tensor, s: Sizes, causal: bool) -> Tensor:
    q, k, v = (
        _linear(sd, f"{name}.layer.{gate}", part).chunk(s.decoder_heads, dim=-1)
        for gate, part in (("wq", x), ("wk", memory), ("wv", memory))
    )
    hidden = torch.full((x.shape[1], memory.shape[1]), float("-inf")).triu(1) if causal else 0
    mixed = [
        ((a @ b.transpose(1, 2) + hidden) / s.decoder**0.5).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)
    ]
    return _linear(sd, f"{name}.layer.wo", torch.cat(mixed, dim=-1))


def stage_2_memory(sd: State, procedure: Tensor) -> Tensor:
    """What the decoder attends to, (B, F*P, E)."""
    return _layer_norm(sd, "mlp.3", _linear(sd, "mlp.2", _linear(sd, "mlp.0", procedure).relu()))


def stage_2_logits(sd: State, procedure: Tensor, ids: Tensor, s: Sizes) -> Tensor:
    """Logits (B, T, V) after each position."""
    memory = stage_2_memory(sd, procedure)
    root = "text_decoder.decoder"
    place = torch.arange(ids.shape[1]).unsqueeze(1)
    channel = torch.arange(s.decoder)
    angle = place * torch.exp(-(channel // 2 * 2) * math.log(10_000) / s.decoder)
    x = sd[f"{root}.out.weight"][ids] * s.decoder**0.5 + torch.where(channel % 2 == 0, angle.sin(), angle.cos())
    for number in range(s.decoder_layers):
        layer = f"{root}.layers.{number}"
        x = _decoder_norm(sd, f"{layer}.selfattn", x + _decoder_attention(sd, f"{layer}.selfattn", x, x, s, True))
        mixed = _decoder_attention(sd, f"{layer}.attention", x, memory, s, False)
        x = _decoder_norm(sd, f"{layer}.attention", x + mixed)
        hidden = _linear(sd, f"{layer}.feedforward.layer.linear1", x).relu()
        x = _decoder_norm(sd, f"{layer}.feedforward", x + _linear(sd, f"{layer}.feedforward.layer.linear2", hidden))
    return _linear(sd, f"{root}.out", x)


def stage_2_greedy(sd: State, procedure: Tensor, s: Sizes, length: int = 24) -> Tensor:
    """24 passes over 24 padded positions; the last prediction is thrown away: (B, 24) with the begin mark."""
    ids = torch.zeros(len(procedure), length, dtype=torch.long)
    symbol = torch.full((len(procedure),), 4)
    for position in range(length):
        ids[:, position] = symbol
        logits = stage_2_logits(sd, procedure, ids, s)[:, position]
        logits[:, 6] = -1e10
        symbol = logits.argmax(-1)
    return ids


def official_text(ids: list[int], words: list[str]) -> str:
    """Zeros dropped anywhere, the first word dropped, cut before the first end mark, ASCII only."""
    text = [words[index] for index in ids if index != 0][1:]
    end = text.index("[EOS]") if "[EOS]" in text else len(text)
    return " ".join(text[:end]).encode("ascii", "ignore").decode()
