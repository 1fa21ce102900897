"""ChangeVG: supervised tuning on ChangeIMTI's questions with a guide's notes; its entry and its artifact, which holds
the guide."""

from __future__ import annotations

from collections.abc import Mapping

from idc.systems.changevg.config import GUIDE, ChangeVgJob
from idc.systems.changevg.dialogues import make_loaders, resolved_regions
from idc.systems.changevg.guide_artifact import read_guide
from idc.training.context import Context
from idc.training.data import Loaders
from idc.vlm.family import Family
from idc.vlm.system import TunedSystem


class ChangeVg(TunedSystem[ChangeVgJob]):
    """Tuning on dialogues with notes; without a guide on the dialogues alone."""

    def loaders(self, job: ChangeVgJob, family: Family, context: Context) -> Loaders:
        return make_loaders(job, family, context)

    def extras(self, job: ChangeVgJob) -> Mapping[str, str]:
        return {} if job.guide is None else {GUIDE: str(read_guide(job.guide).path)}

    def saved(self, job: ChangeVgJob) -> ChangeVgJob:
        return job if job.guide is None else job.model_copy(update={"regions": resolved_regions(job)})

    def card(self, job: ChangeVgJob) -> str:
        if job.guide is None:
            return "tuned on questions about changed roads and buildings (ChangeIMTI), without a guide."
        return (
            "tuned on questions about changed roads and buildings (ChangeIMTI) with the notes of a guide, which is in "
            "this folder and runs first (ChangeVG)."
        )


SYSTEM = ChangeVg("changevg", ChangeVgJob)
train = SYSTEM.train
