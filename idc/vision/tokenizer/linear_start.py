"""Initialisation of small tokenizers: before its first step the network is a principal component analysis of patches.

A convolutional autoencoder with random weights spends its first thousand steps on learning to pass colours through.
Here the weights of encoder and decoder are set so that together they compute the best linear code of width d_z, from
which training continues. Every residual branch is initialised to zero, and the rest as follows:

- the first convolution of the encoder holds the components, each with both signs, since silu(x) - silu(-x) = x;
- the last normalisation would remove the contrast of an image; in each of its groups a pair of channels with large
  constant values of both signs makes its mean 0 and its deviation nearly constant, so that it has no effect;
- the last convolution computes the differences; the decoder does the same with the transposed components.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.vision.tokenizer.model import ImageTokenizer

_CONSTANT = 100.0
"""Value of the constant channels, relative to the components' root mean square."""


@torch.no_grad()
def start_linear(tokenizer: ImageTokenizer, images: Tensor) -> None:
    """Set the weights of a tokenizer with one level (``patch_size`` is its whole stride), by some hundred images (B,
    3, H, W) in [0, 1].

    Deterministic: the signs and the scale of the components are fixed. Features are the patches' coordinates along
    the components divided by one number, so distances between features are proportional to distances between
    patches.
    """
    config, model = tokenizer.config, tokenizer.model
    assert len(config.channel_mult) == 1, config.channel_mult
    patches = F.pixel_unshuffle(2 * images.double() - 1, config.patch_size).permute(0, 2, 3, 1).flatten(0, 2)
    mean = patches.mean(0)
    centred = patches - mean
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    width = min(config.latent_dim, len(mean))
    components = vectors.flip(1).T[:width]
    components = torch.where(components.sum(1, keepdim=True) < 0, -components, components)
    scale = (centred @ components.T).square().mean().sqrt()

    for branch in _modules(model, "ResnetBlock2D"):
        nn.init.zeros_(branch.conv2.weight)
        nn.init.zeros_(branch.conv2.bias)
    for attention in _modules(model, "Attention"):
        nn.init.zeros_(attention.to_out[0].weight)
        nn.init.zeros_(attention.to_out[0].bias)
    size = config.channels * config.channel_mult[0] // config.norm_groups
    _through(model.encoder, (components / scale).float(), -(components / scale @ mean).float(), None, size)
    for projection in (model.quant_conv, model.post_quant_conv):
        nn.init.dirac_(projection.weight)
        nn.init.zeros_(projection.bias)
    identity = torch.eye(width, config.latent_dim)
    _through(model.decoder, identity, torch.zeros(width), ((components * scale).T.float(), mean.float()), size)


def _modules(model: nn.Module, name: str) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == name]


def _through(half: Any, rows: Tensor, bias: Tensor, out: tuple[Tensor, Tensor] | None, size: int) -> None:
    """Make encoder or decoder the linear map ``rows`` (width, inputs), followed by ``out`` (outputs, width) and its
    bias; without ``out``, the coordinates themselves. Groups of the last normalisation have ``size`` channels."""
    conv_in, norm, conv_out = half.conv_in, half.conv_norm_out, half.conv_out
    for conv in (conv_in, conv_out):
        nn.init.zeros_(conv.weight)
        nn.init.zeros_(conv.bias)
    per_group = (size - 2) // 2
    group = torch.arange(len(rows)) // per_group
    plus = group * size + 2 + 2 * (torch.arange(len(rows)) % per_group)
    for channels, sign in ((plus, 1.0), (plus + 1, -1.0)):
        conv_in.weight[channels, :, 1, 1] = sign * rows
        conv_in.bias[channels] = sign * bias
    first = torch.arange(norm.num_groups) * size
    conv_in.bias[first], conv_in.bias[first + 1] = _CONSTANT, -_CONSTANT
    used = torch.bincount(group, minlength=norm.num_groups)
    deviation = ((2 * _CONSTANT**2 + 2 * used) / size).sqrt()  # components have a mean square of about 1
    nn.init.zeros_(norm.bias)
    norm.weight.copy_(deviation.repeat_interleave(size))
    norm.weight[first] /= _CONSTANT  # their purpose ends with the normalisation: scale them to 1
    norm.weight[first + 1] /= _CONSTANT
    outputs, out_bias = out if out is not None else (torch.eye(conv_out.out_channels, len(rows)), None)
    conv_out.weight[:, plus, 1, 1] = outputs
    conv_out.weight[:, plus + 1, 1, 1] = -outputs
    if out_bias is not None:
        conv_out.bias.copy_(out_bias)
