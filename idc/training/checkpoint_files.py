"""Reading the files of a run's checkpoints without executing what is in them.

``torch.save`` writes pickles, and so does DeepSpeed, which reads its own with ``weights_only=False``. Whoever can put a
file into a checkpoint must not thereby run a program, so that all of them are read by torch's restricted unpickler.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@contextlib.contextmanager
def weights_only(folder: Path) -> Iterator[None]:
    """Context in which every ``torch.load`` of this process and its children reads tensors and plain values only,
    whatever the caller asks for. In addition the classes of DeepSpeed's own that its optimizer states hold are made,
    and get their fields: none of them runs anything by that.

    Args:
        folder: the checkpoint, for errors.

    Raises:
        ValueError: a file in it refers to anything else, or is damaged.
    """
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        with torch.serialization.safe_globals(_deepspeed_classes()):
            yield
    except pickle.UnpicklingError as error:
        named = re.search(
            r"(?:unsupported global|unsupported global: global|unsupported class) (\S+)", str(error), re.I
        )
        what = f"it refers to {named[1]}, which no checkpoint needs" if named else " ".join(str(error).split())[:300]
        raise ValueError(
            f"the checkpoint {folder} is refused: {what}. It is damaged, or was not written by this program: remove "
            "this folder to resume from an older one"
        ) from None
    finally:
        os.environ.pop(_FORCED) if before is None else os.environ.update({_FORCED: before})


def _deepspeed_classes() -> list[Any]:
    """The classes besides tensors in the optimizer states of ZeRO 1 to 3."""
    if "deepspeed" not in sys.modules:
        return []
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
