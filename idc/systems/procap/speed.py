"""The optimisations of captioning, and which of them a user's ``speed`` chooses on this machine.

Each can be switched off for comparison (``benchmarks/captioning.py``). None but ``bf16`` changes more than the rounding
of float32.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from idc.captioning.contract import Speed
from idc.systems.procap.model import ProcedureEncoder
from idc.training.linears import onednn_is_exact, onednn_pays, use_onednn
from idc.util.cores import bfloat16_is_native
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer

log = logging.getLogger(__name__)

_MAP_BYTES = 32 * 2**20
"""Largest map of the images of one tokenizer pass; what is larger is in no cache when the next layer reads it."""


@dataclass(frozen=True)
class Optimisations:
    """Optimisations of captioning; the defaults are those of ``exact``.

    Attributes:
        cached: keep the decoder's keys and values, and project the procedure once per batch. Without, every step
            computes the whole prefix and its memory again (the official code: prefix again, memory once).
        fused_attention: attention that never writes its score matrix to memory; without, two products and a softmax.
        channels_last: the tokenizer's maps in channels-last layout, which its convolutions prefer on a CPU (on an H200
            it takes 1.1 times as long: the normalisation over groups copies each map back).
        few_images: the tokenizer reads as many images at once as a cache holds (on a CPU).
        onednn: the encoder's linear layers by oneDNN (:mod:`idc.training.linears`; on a CPU, in float32).
        bf16: products and convolutions in bfloat16.
    """

    cached: bool = True
    fused_attention: bool = True
    channels_last: bool = False
    few_images: bool = False
    onednn: bool = False
    bf16: bool = False


def optimisations(speed: Speed, device: torch.device) -> Optimisations:
    """The optimisations that ``speed`` chooses on this machine, always the same."""
    if speed == "exact":
        return Optimisations()
    bf16 = speed == "bf16"
    if device.type != "cpu":
        return Optimisations(bf16=bf16)
    if bf16 and not bfloat16_is_native():
        log.warning("speed=bf16: this processor has no bfloat16 instructions and emulates them, slower than speed=fast")
    onednn = not bf16 and (onednn_pays() if speed == "auto" else onednn_is_exact())
    return Optimisations(channels_last=True, few_images=True, onednn=onednn, bf16=bf16)


def accelerate(
    tokenizer: ImageTokenizer, encoder: ProcedureEncoder, chosen: Optimisations, device: torch.device
) -> None:
    """Prepare both in place for :func:`running`; the names of their weights do not change."""
    if chosen.channels_last:
        for layer in tokenizer.modules():
            if isinstance(layer, nn.Conv2d):
                weight = layer.weight.detach().contiguous(memory_format=torch.channels_last)
                layer.weight = nn.Parameter(weight, requires_grad=False)
    if device.type != "cpu":
        return
    if chosen.few_images:
        tokenizer.images_at_once = images_at_once(tokenizer.config)
    if chosen.onednn:
        use_onednn(encoder.blocks)


@contextmanager
def running(chosen: Optimisations, device: torch.device) -> Iterator[None]:
    """Context in which tokenizer and captioner compute with these optimisations, without gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if not chosen.bf16 and device.type == "cuda":  # else its convolutions would round to TF32
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False))
        if not chosen.fused_attention:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if chosen.bf16:
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield


def images_at_once(config: TokenizerConfig) -> int:
    """How many images the tokenizer should read in one pass on a CPU."""
    side = config.image_size // config.patch_size
    largest = max((side >> level) ** 2 * config.channels * mult for level, mult in enumerate(config.channel_mult))
    return max(1, _MAP_BYTES // (4 * largest))
