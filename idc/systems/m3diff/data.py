"""The samples of a run: dialogues about pairs, both images at one size, of one folder or of a mixture of data sets."""

from __future__ import annotations

from idc import logs
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.mixture import mixture_table
from idc.systems.m3diff.mixture_samples import counts, training_parts, validation_samples
from idc.training.context import Context
from idc.training.data import Loaders
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.tuning_data import dialogue_loaders as dialogues
from idc.vlm.tuning_data import loaders_of


def make_loaders(job: M3DiffJob, family: Family, context: Context) -> Loaders:
    """Loaders of the training and the validation split. Of a mixture, rank 0 logs the table of its sets.

    Raises:
        ValueError: a set of the mixture cannot be trained on; or naming the first row that cannot be used, such as one
            that is not about two images.
    """
    if job.mixture is None:
        return dialogues(job, family, context, one_size=True)
    chat, seed = Chat(family, job.cutoff), job.train.seed
    parts = training_parts(job.mixture, chat, seed)
    validation = validation_samples(job.mixture, chat, seed)
    if context.rank == 0:
        set_counts = counts(job.mixture, parts)
        sets = {
            count.name: {"pairs": count.pairs, "captions": count.captions, "samples": count.samples}
            for count in set_counts
        }
        logs.event("mixture", mixture_table(set_counts), sets=sets)
    return loaders_of(job, parts, validation, family, context)
