"""The samples of a run: dialogues about pairs, both images at one size."""

from __future__ import annotations

from idc.systems.m3diff.config import M3DiffJob
from idc.training.context import Context
from idc.training.data import Loaders
from idc.vlm.family import Family
from idc.vlm.tuning_data import make_loaders as dialogues


def make_loaders(job: M3DiffJob, family: Family, context: Context) -> Loaders:
    """Loaders of the training and the validation split.

    Raises:
        ValueError: naming the first row that cannot be used, such as one that is not about two images.
    """
    return dialogues(job, family, context, one_size=True)
