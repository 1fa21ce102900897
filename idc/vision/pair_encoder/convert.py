"""Weights of others for the pair encoder: CLIP4IDC's checkpoints (``pytorch_model.bin.*``), and CLIP to start from.

Every tensor of a CLIP4IDC checkpoint is used, or listed as dropped. Both official files hold the whole CLIP part,
``clip.*``; the captioner's file also holds its caption decoder, ``decoder.*``. The pair encoder can be taken from
either, but the captioner's was trained further for captioning, not for similarity (its token embeddings are the
decoder's): take a retrieval checkpoint for retrieval and for frame sampling.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idc.training.foreign import Ledger
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pair_encoder.model import NEW, BpeTokens, PairEncoder
from idc.vision.pretrained import load_pretrained

HEAD_WIDTH = 64
"""Width of an attention head in every CLIP; the number of heads is not in its state dict."""
_MAX_WORDS = 32
"""Maximum tokens of a text (official)."""


def convert_clip4idc(ledger: Ledger, *, tokenizer: str | None = None, separate_layers: int = 9) -> PairEncoder:
    """Make a pair encoder with the weights of a CLIP4IDC checkpoint, of retrieval or of captioning; closes the
    ledger. ValueError: a tensor is missing, unknown or misshapen.

    Args:
        tokenizer: a local folder or hub id with CLIP's tokenizer; without it the encoder takes pairs and ids, not
            texts.
        separate_layers: number of blocks that see one image (official intra_num_hidden_layers; not in the file).
    """
    config = _shape(ledger, separate_layers)
    tokens = None if tokenizer is None else BpeTokens(tokenizer, _MAX_WORDS)
    size = ledger.shape("clip.token_embedding.weight")[0]
    if tokens is not None and len(tokens) != size:
        raise ValueError(
            f"{ledger.source} has embeddings of {size} tokens, and the tokenizer {tokenizer!r} has {len(tokens)}"
        )
    encoder = PairEncoder(config, size, tokens)
    encoder.load_state_dict({name: ledger.take(name, ours.shape) for name, ours in encoder.state_dict().items()})
    ledger.drop("decoder.", "part of CLIP4IDC's caption decoder, which this project does not have")
    ledger.close()
    return encoder


def _shape(ledger: Ledger, separate_layers: int) -> PairEncoderConfig:
    width, _, patch, _ = ledger.shape("clip.visual.conv1.weight")
    positions, text_width = ledger.shape("clip.positional_embedding")
    layers, text_layers = (
        ledger.count(tower + ".resblocks.{}.ln_1.weight") for tower in ("clip.visual.transformer", "clip.transformer")
    )
    if not 0 < separate_layers < layers:
        raise ValueError(
            f"{ledger.source} has {layers} image blocks; {separate_layers} of them cannot be separate and some joint"
        )
    return PairEncoderConfig(
        image_size=round((ledger.shape("clip.visual.positional_embedding")[0] - 1) ** 0.5) * patch,
        patch_size=patch,
        width=width,
        heads=width // HEAD_WIDTH,
        separate_layers=separate_layers,
        joint_layers=layers - separate_layers,
        text_width=text_width,
        text_heads=text_width // HEAD_WIDTH,
        text_layers=text_layers,
        text_positions=positions,
        embedding=ledger.shape("clip.text_projection")[1],
    )


# -- CLIP of transformers ---------------------------------------------------------------------------------------


def load_clip(encoder: PairEncoder, source: str) -> None:
    """Load all weights of a CLIP in transformers' layout; the parameters that CLIP4IDC adds stay as they are.
    ValueError: it cannot be read, its shape is not the encoder's, or its activation is not CLIP's."""
    from transformers import CLIPModel

    model: Any = load_pretrained(CLIPModel, source, "clip")
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
    weights = official_names(model.state_dict())
    expected = {
        name: tensor for name, tensor in encoder.state_dict().items() if name.removeprefix("clip.visual.") not in NEW
    }
    wrong = sorted(weights.keys() ^ expected.keys())
    wrong += [name for name in weights.keys() & expected.keys() if weights[name].shape != expected[name].shape]
    if wrong:
        raise ValueError(
            f"clip={source!r} has another shape than `encoder` (its patch size, widths or layers); they differ in "
            f"{len(wrong)} tensors: {', '.join(wrong[:4])}"
        )
    encoder.load_state_dict(weights, strict=False)


def official_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename a CLIP's state dict from transformers' layout to OpenAI's, with the prefix ``clip.``."""
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
