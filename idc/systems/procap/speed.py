"""The optimisations of captioning (:class:`SpeedConfig`), each of which can be switched off for comparison
(``benchmarks/procap.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from idc.captioning.contract import Dtype
from idc.systems.procap.config import SpeedConfig
from idc.systems.procap.model import ProcedureEncoder
from idc.vision.tokenizer.model import ImageTokenizer


def accelerate(tokenizer: ImageTokenizer, encoder: ProcedureEncoder, speed: SpeedConfig, device: torch.device) -> None:
    """Prepare both in place for :func:`running`; the names and values of their weights do not change."""
    on_gpu = device.type != "cpu"
    if speed.channels_last and on_gpu:
        tokenizer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    if speed.compile:
        for block in encoder.blocks:
            block.compile()
        if on_gpu:
            tokenizer.model.encoder.compile()


@contextmanager
def running(speed: SpeedConfig, dtype: Dtype, device: torch.device) -> Iterator[None]:
    """Context in which tokenizer and captioner compute with these optimisations and this number format, without
    gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if dtype == "float32" and device.type == "cuda":  # else its convolutions would round to TF32
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False))
        if not speed.fused_attention:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if dtype == "bfloat16":
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield
