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
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from idc.captioning.contract import Speed
from idc.cores import bfloat16_is_native
from idc.nn.packed import PackedLinear, packing_works
from idc.systems.procap.model import Attention, EncoderBlock, ProcedureEncoder, Scaled
from idc.training.linears import mkl_falls_back
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer

log = logging.getLogger(__name__)

_PAIRS = 4
"""Pairs of a batch that a layer is packed for."""
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
        packed: the encoder's weights in oneDNN's layout (:mod:`idc.nn.packed`), sums and activations in the product
            before them (on a CPU, in float32).
        bf16: products and convolutions in bfloat16.
    """

    cached: bool = True
    fused_attention: bool = True
    channels_last: bool = False
    few_images: bool = False
    packed: bool = False
    bf16: bool = False


def optimisations(speed: Speed | Optimisations, device: torch.device) -> Optimisations:
    """The optimisations that ``speed`` chooses on this machine, always the same."""
    if isinstance(speed, Optimisations):
        return speed
    if speed == "exact":
        return Optimisations()
    bf16 = speed == "bf16"
    if device.type != "cpu":
        return Optimisations(bf16=bf16)
    if bf16 and not bfloat16_is_native():
        log.warning("speed=bf16: this processor has no bfloat16 instructions and emulates them, slower than speed=fast")
    packed = not bf16 and (speed != "auto" or mkl_falls_back()) and packing_works()
    return Optimisations(channels_last=True, few_images=True, packed=packed, bf16=bf16)


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
    if chosen.packed:
        for index, block in enumerate(encoder.blocks):
            assert isinstance(block, EncoderBlock)
            encoder.blocks[index] = PackedBlock(block, _PAIRS * encoder.shapes.frames * encoder.shapes.patches)


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


class PackedBlock(nn.Module):
    """An :class:`EncoderBlock` with packed weights, for inference. Both sums are part of the product before them, and
    so is the activation. The gains of the :class:`Scaled` layers are in the packed weights."""

    def __init__(self, block: EncoderBlock, rows: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = block.norm_attention, block.norm_mlp
        self.attention = _PackedAttention(block.attention, rows)
        self.widen = PackedLinear(_with_gains(block.widen), rows)
        self.narrow = PackedLinear(_with_gains(block.narrow), rows)
        self._gains = {
            f"{name}.{part}": gain
            for name, layer in {"widen": block.widen, "narrow": block.narrow}.items()
            for part, gain in {"weight": layer.gain, "bias": layer.bias_gain}.items()
        }
        self.register_state_dict_post_hook(_without_gains)

    def forward(self, x_BLD: Tensor, mask_LL: Tensor | None, read_BL: None = None) -> Tensor:
        """As :class:`EncoderBlock`, at all positions."""
        assert read_BL is None
        x_BLD = self.attention(self.norm_attention(x_BLD), mask_LL, x_BLD)
        return self.narrow.added(self.widen(self.norm_mlp(x_BLD), "swish"), x_BLD)


def _with_gains(layer: Scaled) -> nn.Linear:
    """A plain layer that computes the same."""
    plain = nn.utils.skip_init(nn.Linear, layer.in_features, layer.out_features)
    with torch.no_grad():
        plain.weight.copy_(layer.weight * layer.gain)
        plain.bias.copy_(layer.bias * layer.bias_gain)
    return plain


def _without_gains(block: nn.Module, state: dict[str, Tensor], prefix: str, _: object) -> None:
    """The state dict of a :class:`PackedBlock` has the weights of its :class:`EncoderBlock`."""
    assert isinstance(block, PackedBlock)
    for name, gain in block._gains.items():
        state[prefix + name] = state[prefix + name] / gain


class _PackedAttention(nn.Module):
    """The attention of a :class:`PackedBlock`, with the sum after it."""

    def __init__(self, attention: Attention, rows: int) -> None:
        super().__init__()
        self.heads = attention.heads
        self.qkv, self.out = PackedLinear(attention.qkv, rows), PackedLinear(attention.out, rows)

    def forward(self, x_BLD: Tensor, mask_LL: Tensor | None, to_BLD: Tensor) -> Tensor:
        parts = self.qkv(x_BLD).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_LL)
        return self.out.added(mixed.transpose(1, 2).flatten(2), to_BLD)
