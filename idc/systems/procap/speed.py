"""Means of faster captioning, each of which can be left out to be compared with (``benchmark.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from idc.config import ConfigModel

if TYPE_CHECKING:
    import torch

    from idc.systems.procap.captioner import Captioner
    from idc.vision.tokenizer.model import ImageTokenizer


class SpeedConfig(ConfigModel):
    """How a captioner is run. All but bf16 leave its captions as they are: only the rounding of float32 differs."""

    cached: bool = True
    """Keep the decoder's keys and values, and project the procedure once a batch. Without, every step computes the
    whole prefix and its memory again (the official code: prefix again, memory once)."""
    fused_attention: bool = True
    """Attention that never writes its score matrix to memory; without, two matrix products and a softmax."""
    channels_last: bool = True
    """On a GPU: the image tokenizer's maps in channels-last layout, which its convolutions like better. On a CPU
    nothing changes (Winograd's convolutions were tried there: 0.95 times as fast, see BENCHMARKS.md)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products and convolutions by autocast, for hardware that has it. A CPU without it emulates it,
    slower than fp32."""
    compile: bool = False
    """`torch.compile` for the blocks of the procedure encoder and, on a GPU, the tokenizer's encoder. The first batch
    of a size waits for it; needs a C++ compiler on a CPU."""


def accelerate(tokenizer: ImageTokenizer, captioner: Captioner, speed: SpeedConfig, device: torch.device) -> None:
    """Prepare both in place, for :func:`running`; names and values of their weights stay."""
    import torch

    on_gpu = device.type != "cpu"
    if speed.channels_last and on_gpu:
        tokenizer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    if speed.compile:
        for block in captioner.encoder.blocks:
            block.compile()
        if on_gpu:
            tokenizer.model.encoder.compile()


@contextmanager
def running(speed: SpeedConfig, device: torch.device) -> Iterator[None]:
    """Inside, tokenizer and captioner compute as ``speed`` says, without gradients."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if speed.precision == "fp32" and device.type == "cuda":  # else its convolutions would round to TF32
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False))
        if not speed.fused_attention:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if speed.precision == "bf16":
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield
