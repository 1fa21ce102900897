"""Converts the official VQGAN (taming-transformers' ``VQModel``, as ProCap fine-tunes it) to our image tokenizer.

Both are the same network under different names; the attention's 1x1 convolutions become linear layers. Tensors that
only training needs (``loss.*``) are dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idc.training.foreign import Ledger
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer

_LOSS = "perceptual loss and discriminator of the training; encoding and decoding do not need them"
_ATTENTION = (
    "attention between residual blocks, which exists where the VQGAN was fine-tuned at resolution 256; the official "
    "ProCap code builds it for 224, without these blocks, and skips them silently (strict=False)"
)


def convert_vqgan(ledger: Ledger, image_size: int) -> ImageTokenizer:
    """Make our tokenizer with the weights of an official state dict (``state_dict`` in the ``.ckpt``, or
    ``vae.model.*`` in a ProCap checkpoint); the caller closes the ledger. No tensor determines the side of the
    images (official: 224). ValueError: a tensor is missing or of an unexpected shape."""
    config = vqgan_config(ledger, image_size)
    with torch.device("meta"):  # no random weights are drawn only to be replaced
        tokenizer = ImageTokenizer(config)
    state = {f"model.{name}": tensor for name, tensor in _renamed(ledger, config).items()}
    try:
        tokenizer.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{ledger.source} does not fit the VQGAN that its own tensors describe: {error}") from None
    ledger.drop("loss.", _LOSS)
    last = len(config.channel_mult) - 1
    for side in ("encoder.down", "decoder.up"):
        ledger.drop(f"{side}.{last}.attn.", _ATTENTION)
    return tokenizer.eval().requires_grad_(False)


def vqgan_config(ledger: Ledger, image_size: int) -> TokenizerConfig:
    """Derive the shape from the tensors; features and resizing as in the official ProCap code."""
    channels = ledger.shape("encoder.conv_in.weight")[0]
    levels = ledger.count("encoder.down.{}.block.0.conv1.weight")
    widths = [ledger.shape(f"encoder.down.{level}.block.0.conv1.weight")[0] for level in range(levels)]
    if any(width % channels for width in widths):
        raise ValueError(f"{ledger.source}: levels of {widths} channels are not multiples of the first convolution's")
    codes, width = ledger.shape("quantize.embedding.weight")
    return TokenizerConfig(
        image_size=image_size,
        channels=channels,
        channel_mult=tuple(level // channels for level in widths),
        res_blocks=ledger.count("encoder.down.0.block.{}.conv1.weight"),
        mid_attention=ledger.has("encoder.mid.attn_1.q.weight"),
        codebook_size=codes,
        latent_dim=width,
        feature_range="unit",
        resize="bilinear",
    )


def _renamed(ledger: Ledger, config: TokenizerConfig) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}

    def layer(ours: str, theirs: str) -> None:
        for part in ("weight", "bias"):
            out[f"{ours}.{part}"] = ledger.take(f"{theirs}.{part}")

    def block(ours: str, theirs: str) -> None:
        for name in ("norm1", "conv1", "norm2", "conv2"):
            layer(f"{ours}.{name}", f"{theirs}.{name}")
        if ledger.has(f"{theirs}.nin_shortcut.weight"):
            layer(f"{ours}.conv_shortcut", f"{theirs}.nin_shortcut")

    def middle(side: str) -> None:
        for number in (0, 1):
            block(f"{side}.mid_block.resnets.{number}", f"{side}.mid.block_{number + 1}")
        if config.mid_attention:
            ours, theirs = f"{side}.mid_block.attentions.0", f"{side}.mid.attn_1"
            layer(f"{ours}.group_norm", f"{theirs}.norm")
            for name, official in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")):
                layer(f"{ours}.{name}", f"{theirs}.{official}")
                out[f"{ours}.{name}.weight"] = out[f"{ours}.{name}.weight"].flatten(1)

    last = len(config.channel_mult) - 1
    for side in ("encoder", "decoder"):
        layer(f"{side}.conv_in", f"{side}.conv_in")
        middle(side)
        layer(f"{side}.conv_norm_out", f"{side}.norm_out")
        layer(f"{side}.conv_out", f"{side}.conv_out")
    for level in range(last + 1):
        down, up = f"encoder.down_blocks.{level}", f"decoder.up_blocks.{last - level}"  # ours count from the lowest
        for number in range(config.res_blocks):
            block(f"{down}.resnets.{number}", f"encoder.down.{level}.block.{number}")
        for number in range(config.res_blocks + 1):
            block(f"{up}.resnets.{number}", f"decoder.up.{level}.block.{number}")
        if level < last:
            layer(f"{down}.downsamplers.0.conv", f"encoder.down.{level}.downsample.conv")
        if level > 0:
            layer(f"{up}.upsamplers.0.conv", f"decoder.up.{level}.upsample.conv")
    out["quantize.embedding.weight"] = ledger.take("quantize.embedding.weight")
    for name in ("quant_conv", "post_quant_conv"):
        layer(name, name)
    return out
