"""A DeepSpeed checkpoint of one number of workers, made loadable by another number.

ZeRO writes one shard per worker and reads it back on as many workers only. DeepSpeed's universal format holds whole
parameters and Adam averages instead, from which each worker takes its part.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from idc.training.context import Context

TAG = "deepspeed"
"""Name of the folder in a checkpoint that DeepSpeed writes."""


@contextlib.contextmanager
def universal_checkpoint(checkpoint: Path, context: Context) -> Iterator[Path]:
    """The universal form of a sharded checkpoint, for as long as the block lasts. All ranks enter it.

    One rank of each machine converts into a temporary folder there, which needs as much space as the checkpoint.
    """
    machine = _machine()
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


def _machine() -> tuple[str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id")  # two machines may have one name
    return socket.gethostname(), boot.read_text() if boot.exists() else ""


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
