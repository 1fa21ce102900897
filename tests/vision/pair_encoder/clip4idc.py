"""The official CLIP4IDC in tests: its layout, files of random weights in it, and its forward pass said once more.

Everything here is written from the layout's tables and the description of the module, not from our model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layout = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """What the layout depends on; the defaults are the official ones."""

    width: int = 768
    patch: int = 32
    tokens: int = 50
    layers: int = 12
    text_width: int = 512
    text_layers: int = 12
    positions: int = 77
    embedding: int = 512
    vocabulary: int = 49408


SMALL = Size(
    width=128, patch=8, tokens=17, layers=3, text_width=64, text_layers=2, positions=12, embedding=32, vocabulary=50
)


def _blocks(prefix: str, width: int, layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for n in range(layers):
        block = f"{prefix}.resblocks.{n}"
        yield f"{block}.attn.in_proj_weight", (3 * width, width)
        yield f"{block}.attn.in_proj_bias", (3 * width,)
        yield f"{block}.attn.out_proj.weight", (width, width)
        yield f"{block}.attn.out_proj.bias", (width,)
        yield from ((f"{block}.ln_1.{kind}", (width,)) for kind in ("weight", "bias"))
        yield f"{block}.mlp.c_fc.weight", (4 * width, width)
        yield f"{block}.mlp.c_fc.bias", (4 * width,)
        yield f"{block}.mlp.c_proj.weight", (width, 4 * width)
        yield f"{block}.mlp.c_proj.bias", (width,)
        yield from ((f"{block}.ln_2.{kind}", (width,)) for kind in ("weight", "bias"))


def retrieval_layout(size: Size = Size()) -> Layout:
    """Names and shapes of the retrieval checkpoint, in its order."""
    out: Layout = {
        "clip.positional_embedding": (size.positions, size.text_width),
        "clip.text_projection": (size.text_width, size.embedding),
        "clip.logit_scale": (),
        "clip.visual.class_embedding": (size.width,),
        "clip.visual.positional_embedding": (size.tokens, size.width),
        "clip.visual.joint_positional_embedding": (2 * size.tokens, size.width),
        "clip.visual.bef_embedding": (size.width,),
        "clip.visual.aft_embedding": (size.width,),
        "clip.visual.proj": (size.width, size.embedding),
        "clip.visual.conv1.weight": (size.width, 3, size.patch, size.patch),
    }
    for norm in ("ln_pre", "ln_mid"):
        out |= {f"clip.visual.{norm}.{kind}": (size.width,) for kind in ("weight", "bias")}
    out |= dict(_blocks("clip.visual.transformer", size.width, size.layers))
    out |= {f"clip.visual.ln_post.{kind}": (size.width,) for kind in ("weight", "bias")}
    out |= dict(_blocks("clip.transformer", size.text_width, size.text_layers))
    out["clip.token_embedding.weight"] = (size.vocabulary, size.text_width)
    return out | {f"clip.ln_final.{kind}": (size.text_width,) for kind in ("weight", "bias")}


def caption_layout(size: Size = Size()) -> Layout:
    """Names and shapes of the captioner's checkpoint: the same and the caption decoder, in its order."""
    width = size.text_width
    out = retrieval_layout(size)
    out["decoder.embeddings.word_embeddings.weight"] = (size.vocabulary, width)
    out["decoder.embeddings.position_embeddings.weight"] = (size.positions, width)
    out |= {f"decoder.embeddings.LayerNorm.{kind}": (width,) for kind in ("weight", "bias")}
    for stack, attentions in (("decoder", ("slf_attn", "enc_attn")), ("encoder", ("slf_attn",))):
        for n in range(3):
            layer = f"decoder.{stack}.layer.{n}"
            for attention in attentions:
                for part in ("att.query", "att.key", "att.value", "output.dense"):
                    out |= {
                        f"{layer}.{attention}.{part}.weight": (width, width),
                        f"{layer}.{attention}.{part}.bias": (width,),
                    }
                out |= {f"{layer}.{attention}.output.LayerNorm.{kind}": (width,) for kind in ("weight", "bias")}
            out |= {
                f"{layer}.intermediate.dense.weight": (4 * width, width),
                f"{layer}.intermediate.dense.bias": (4 * width,),
            }
            out |= {f"{layer}.output.dense.weight": (width, 4 * width), f"{layer}.output.dense.bias": (width,)}
            out |= {f"{layer}.output.LayerNorm.{kind}": (width,) for kind in ("weight", "bias")}
    head = "decoder.classifier.cls.predictions"
    out[f"{head}.bias"] = (size.vocabulary,)
    out |= {f"{head}.transform.dense.weight": (width, width), f"{head}.transform.dense.bias": (width,)}
    out |= {f"{head}.transform.LayerNorm.{kind}": (width,) for kind in ("weight", "bias")}
    out[f"{head}.decoder.weight"] = (size.vocabulary, width)
    return out


def random_state(layout: Layout, seed: int = 0) -> dict[str, Tensor]:
    """Weights that all matter, in the file's mixed precision, with the captioner's ties."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in layout.items():
        tensor = torch.randn(shape, generator=generator) * (0.5 if len(shape) < 2 else shape[-1] ** -0.5)
        norm = "ln_" in name or "LayerNorm" in name
        if norm and name.endswith("weight"):
            tensor += 1
        half = name.startswith("clip.") and not norm and "embedding" not in name and "logit_scale" not in name
        state[name] = tensor.half() if half else tensor
    if "decoder.embeddings.word_embeddings.weight" in state:
        words, positions = state["clip.token_embedding.weight"], state["clip.positional_embedding"]
        state["decoder.embeddings.word_embeddings.weight"] = words
        state["decoder.classifier.cls.predictions.decoder.weight"] = words
        state["decoder.embeddings.position_embeddings.weight"] = positions
    return state


def _norm(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])


def _block(state: dict[str, Tensor], name: str, x: Tensor, causal: bool) -> Tensor:
    width = x.shape[-1]
    attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
    attention.load_state_dict({k.removeprefix(f"{name}.attn."): v for k, v in state.items() if f"{name}.attn." in k})
    inner = _norm(state, f"{name}.ln_1", x)
    mask = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1) if causal else None
    x = x + attention(inner, inner, inner, need_weights=False, attn_mask=mask)[0]
    hidden = F.linear(_norm(state, f"{name}.ln_2", x), state[f"{name}.mlp.c_fc.weight"], state[f"{name}.mlp.c_fc.bias"])
    hidden = hidden * torch.sigmoid(1.702 * hidden)
    return x + F.linear(hidden, state[f"{name}.mlp.c_proj.weight"], state[f"{name}.mlp.c_proj.bias"])


@torch.no_grad()
def official_pairs(state: dict[str, Tensor], before: Tensor, after: Tensor, separate: int, layers: int) -> Tensor:
    """The pair's feature of normalised images (B, 3, H, W), before the division by its norm."""
    state = {name: tensor.float() for name, tensor in state.items()}
    hidden = []
    for images in (before, after):
        patches = F.conv2d(
            images, state["clip.visual.conv1.weight"], stride=state["clip.visual.conv1.weight"].shape[-1]
        )
        tokens = [state["clip.visual.class_embedding"].expand(len(images), 1, -1), patches.flatten(2).permute(0, 2, 1)]
        x = _norm(state, "clip.visual.ln_pre", torch.cat(tokens, 1) + state["clip.visual.positional_embedding"])
        for n in range(separate):
            x = _block(state, f"clip.visual.transformer.resblocks.{n}", x, causal=False)
        hidden.append(x)
    tokens_of_one = hidden[0].shape[1]
    ends = (state["clip.visual.bef_embedding"], state["clip.visual.aft_embedding"])
    x = torch.cat([part + end for part, end in zip(hidden, ends, strict=True)], 1)
    x = _norm(state, "clip.visual.ln_mid", x + state["clip.visual.joint_positional_embedding"])
    for n in range(separate, layers):
        x = _block(state, f"clip.visual.transformer.resblocks.{n}", x, causal=False)
    x = _norm(state, "clip.visual.ln_post", x) @ state["clip.visual.proj"]
    return (x[:, 0] + x[:, tokens_of_one]) / 2


@torch.no_grad()
def official_texts(state: dict[str, Tensor], ids: Tensor, layers: int) -> Tensor:
    """The text's feature of ids (C, T) whose largest id is the end token."""
    state = {name: tensor.float() for name, tensor in state.items()}
    x = state["clip.token_embedding.weight"][ids] + state["clip.positional_embedding"][: ids.shape[1]]
    for n in range(layers):
        x = _block(state, f"clip.transformer.resblocks.{n}", x, causal=True)
    x = _norm(state, "clip.ln_final", x) @ state["clip.text_projection"]
    return x[torch.arange(len(ids)), ids.argmax(1)]
