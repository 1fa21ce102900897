"""The samples of a run: the dialogues of its folders."""

from __future__ import annotations

from idc.systems.sft.config import SftJob
from idc.training.context import Context
from idc.training.data import Loaders
from idc.vlm.family import Family
from idc.vlm.tuning_data import make_loaders as dialogues


def make_loaders(job: SftJob, family: Family, context: Context) -> Loaders:
    """Loaders of the training and the validation split.

    Raises:
        ValueError: naming the first row that cannot be used.
    """
    return dialogues(job, family, context)
