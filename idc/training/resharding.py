"""A DeepSpeed checkpoint of one number of workers, made loadable by another number.

ZeRO writes one shard per worker and reads it back on as many workers only. DeepSpeed's universal format holds whole
parameters and Adam averages instead, from which each worker takes its part.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
from pathlib import Path

from idc.training.context import COMPLETE, Context

TAG = "deepspeed"
"""Name of the folder in a checkpoint that DeepSpeed writes."""


def universal_checkpoint(checkpoint: Path, context: Context) -> Path:
    """The universal form of a sharded checkpoint, below the run's folder; rank 0 makes it. All ranks call it.

    It takes as much space as the checkpoint; :func:`drop_universal_checkpoint` removes it.
    """
    scratch = _scratch(context)
    if context.rank == 0:
        shutil.rmtree(scratch, ignore_errors=True)
        _convert(checkpoint / TAG, scratch / TAG)
        (scratch / COMPLETE).touch()
    context.barrier()
    return scratch


def drop_universal_checkpoint(context: Context) -> None:
    """Remove what :func:`universal_checkpoint` made. All ranks call it, when they have loaded it."""
    context.barrier()
    if context.rank == 0:
        shutil.rmtree(_scratch(context), ignore_errors=True)


def _scratch(context: Context) -> Path:
    return context.run_dir / ".universal"


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
