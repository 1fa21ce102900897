"""Parts of CLIP that ProCap's official code uses: initial weights of the encoder, and ids of stage 1's captions."""

from __future__ import annotations

import torch
from torch import Tensor

from idc.data.text import BOS, EOS
from idc.vision.pair_encoder.model import clip_tokenizer
from idc.vision.pretrained import load_pretrained


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
