"""What DeepSpeed needs beside its engine: settings, clipping of gradients that it holds, and checkpoints for another
number of workers.

ZeRO writes one shard per worker and reads it back on as many workers only. DeepSpeed's universal format holds whole
parameters and Adam averages instead, from which each worker takes its part.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from idc.config import layered
from idc.training.config import TrainConfig
from idc.training.context import Context

TAG = "deepspeed"
"""Name of the folder in a checkpoint that DeepSpeed writes."""


def deepspeed_config(train: TrainConfig, world_size: int, fused: bool = False) -> dict[str, Any]:
    """DeepSpeed's own settings from ours; ``deepspeed_extra`` is merged last, section by section. ``fused``: torch's
    Adam in one pass over parameter, gradient and averages."""
    settings: dict[str, Any] = {
        "train_batch_size": train.batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size // world_size,
        "gradient_accumulation_steps": train.grad_accumulation,
        "gradient_clipping": train.clip_norm,
        "optimizer": {
            "type": "AdamW" if train.optimizer == "adamw" else "Adam",
            "params": {
                "betas": list(train.betas),
                "eps": train.eps,
                "torch_adam": True,  # DeepSpeed's own Adam is compiled on first use
                "adam_w_mode": train.optimizer == "adamw",
                **({"fused": True} if fused else {}),
            },
        },
        "zero_optimization": {"stage": train.zero_stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 60,
    }
    return layered(settings, train.deepspeed_extra)


def quiet_deepspeed() -> None:
    """Show DeepSpeed's errors only, without its INFO lines and torch's deprecation notes on calls that it makes."""
    warnings.filterwarnings("ignore", message=".*torch.distributed.* is deprecated", category=FutureWarning)
    os.environ.setdefault("DS_LOG_LEVEL", "error")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def clip_deepspeed_gradients(parameters: Sequence[nn.Parameter], limit: float, zero_stage: int) -> Tensor:
    """Clip gradients that DeepSpeed holds to one norm, unless ``limit`` is 0; returns the norm before."""
    from deepspeed import utils

    # ZeRO-3 has functions for a rank's part; those for whole gradients fail there where the last part is padded.
    local = zero_stage == 3
    read, write = (
        (utils.safe_get_local_grad, utils.safe_set_local_grad)
        if local
        else (utils.safe_get_full_grad, utils.safe_set_full_grad)
    )
    gradients = [(parameter, grad) for parameter in parameters if (grad := read(parameter)) is not None]
    norm = torch.nn.utils.get_total_norm([grad for _, grad in gradients])
    if local:
        square = norm.square()
        dist.all_reduce(square)
        norm = square.sqrt()
    if limit:
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for parameter, grad in gradients:
            write(parameter, grad * scale)
    return norm


@contextlib.contextmanager
def universal_checkpoint(checkpoint: Path, context: Context) -> Iterator[Path]:
    """The universal form of a sharded checkpoint, for as long as the block lasts. All ranks enter it.

    One rank of each machine converts into a temporary folder there, which needs as much space as the checkpoint.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")  # two machines may have one name
    machine = socket.gethostname(), boot.read_text() if boot.exists() else ""
    first = context.all_gather_object(machine).index(machine)
    temporary = tempfile.mkdtemp(prefix="idc_universal_") if context.rank == first else None
    try:
        folder = Path(context.all_gather_object(temporary)[first])
        if temporary is not None:
            _convert(checkpoint / TAG, folder / TAG)
        context.barrier()  # read only what is converted
        yield folder
        context.barrier()  # all have read it before it is removed
    finally:
        if temporary is not None:
            shutil.rmtree(temporary)


@contextlib.contextmanager
def reading_universal(engine: Any) -> Iterator[None]:
    """In this block DeepSpeed's ``engine`` loads universal checkpoints."""
    optimizer = engine.optimizer.optimizer
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    # Private: the engine's configuration has it for all loads, and only this one is of that form.
    engine._config.load_universal_checkpoint = True
    yield
    engine._config.load_universal_checkpoint = False
    # ZeRO-3 gives all groups the settings of the first one, and all parameters one and the same step counter
    for group, original in zip(optimizer.param_groups, settings, strict=True):
        group.update(original)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].clone()


def _convert(source: Path, target: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    target.mkdir(parents=True)
    options = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,  # in this process: the work is reading and writing files
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            ds_to_universal.main(options)
    except Exception as error:
        raise RuntimeError(f"DeepSpeed could not convert the checkpoint {source}:\n{said.getvalue()}") from error
