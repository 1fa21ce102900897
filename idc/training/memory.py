"""Out of memory: recognising the error, which would come again after a restart, and what the user can change."""

from __future__ import annotations

import torch

from idc.training.config import TrainConfig

_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
    "bad_alloc",
    "not enough memory",
)
"""Parts of the messages of CUDA, cuBLAS, torch's CPU allocator and C++, in lower case."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch raised ``error`` because the memory of the device or of the machine was full."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def out_of_memory_advice(train: TrainConfig, device: str, error: BaseException) -> str:
    """Error message: what failed, and which settings reduce the memory.

    Args:
        device: where memory ran out: a rank's device such as ``cuda:0``, or a node.
    """
    samples = train.micro_batch_size // train.num_workers
    advice = []
    if samples > 1:
        advice.append(
            f"raise train.grad_accumulation, now {train.grad_accumulation} (micro-batches of {samples} samples per "
            "worker); the losses stay the same"
        )
    if not train.activation_checkpointing:
        advice.append("train.activation_checkpointing=true (if the system has a part for it); the losses stay the same")
    advice.append(f"lower train.batch_size, now {train.batch_size}, which changes what is learned")
    if train.precision == "fp32" and device.startswith("cuda"):
        advice.append("train.precision=bf16")
    if train.num_workers > 1 and train.zero_stage < 2:
        advice.append("train.engine=deepspeed train.zero_stage=2, which shards the optimizer")
    text = " ".join(str(error).split())[:300]
    return f"out of memory on {device}: {text}\nThe run was not restarted. Remedies: " + "; or ".join(advice) + "."
