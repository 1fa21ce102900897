"""A trial of ChangeVG in a sweep: the guide, ChangeIMTI's questions, the tuning of a language model with both,
then the steps that all systems share, and the questions of the scored split.

Rows that differ in the tuning alone share the guide and the questions. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from idc.changeimti.config import BuildChangeImtiJob
from idc.data.store import fingerprint, read_manifest
from idc.sweep.chain import Step, TrialSection, TrialSteps
from idc.sweep.steps import TrainingTrial, train_step, with_evaluation
from idc.systems.changevg.config import ChangeVgJob, GuidedPromptConfig, GuideJob
from idc.vlm.config import BaseConfig, base_content

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

_ALL_SPLITS = ("train", "val", "test")


class _Train(TrialSection, GuideJob):
    """The training."""

    pairs: str = ""


class _Questions(TrialSection, BuildChangeImtiJob):
    """The questions; those of the test split are asked."""

    SET_OUTSIDE = ("pairs", "out", "splits", "tasks")

    pairs: str = ""
    out: str = ""


class _Tune(TrialSection, ChangeVgJob):
    """The tuning, with its base."""

    SET_OUTSIDE = (*TrialSection.SET_OUTSIDE, "guide", "regions")

    pairs: str = ""
    base: BaseConfig = BaseConfig(source="shipped")

    def errors(self) -> Iterator[str]:
        return (line for line in super().errors() if not line.startswith("quote: "))  # without a guide: it is set later


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the guide's training, of the questions, of the language model's tuning, and
    of the evaluation."""

    TRAININGS, SEARCHED = ("guide", "changevg"), "guide"

    until: Literal["guide", "tuning"] = "guide"
    """The last training whose model is scored. A search is of the guide."""
    guided: bool = True
    """False, with until=tuning: no guide is trained, and the language model is tuned on the questions alone."""
    guide: _Train = _Train()
    """The guide's training."""
    questions: _Questions = _Questions()
    """How ChangeIMTI is built of the pairs."""
    changevg: _Tune = _Tune()
    """The tuning; questions quote the guide's notes by its `quote`."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if self.until == "guide" and not self.guided:
            yield "guided: until=guide scores the guide; take until=tuning"
        if not self.guided and self.changevg.quote != GuidedPromptConfig():
            yield "changevg.quote: guided=false has no notes to quote; leave it out"
        if self.until == "tuning" and self.more_pairs:
            yield "more_pairs: the questions are of `pairs` alone; leave it out, or take until=guide"

    def steps(self, store: str) -> TrialSteps:
        alone = self.training_steps(store, self.guide.model.decoder.max_length, models=("start",))
        if self.until == "guide":
            return alone
        guide: str | None = None
        content = read_manifest(self.pairs, kind="pairs").fingerprint
        questions = _questions_step(self, content)
        work = [questions]
        if self.guided:
            (training,) = alone.work
            guide = f"{store}/{training.name}/artifact"
            work.append(training)
        tuning = train_step(
            "changevg",
            self.changevg,
            {
                "pairs": f"{store}/{questions.name}", "more_pairs": [], "guide": guide, "regions": None,
                "base": self.changevg.base.model_dump(mode="json"),
            },
            store,
            [*(step.name for step in work), *base_content(self.changevg.base)],
        )  # fmt: skip
        work.append(tuning)
        longest, gpus = self.changevg.generation.max_new_tokens, self.changevg.train.gpus_per_worker
        return with_evaluation(self, work, store, max_tokens=longest, gpus=gpus, questions=questions)


def _questions_step(trial: Trial, content: str) -> Step:
    job = trial.questions.model_copy(update={"pairs": trial.pairs, "splits": _ALL_SPLITS})
    settings = job.model_dump(mode="json", exclude={"pairs", "out", "workers", "max_reject_share"})
    return Step(
        name=f"questions-{fingerprint(content, settings)[:12]}",
        entry=f"{__name__}:build_questions",
        payload=job.model_dump(mode="json"),
    )


# ---------------------------------------------------------------------------------------------- entries, run by workers


def build_questions(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Build ChangeIMTI, or resume; the entry of a step, run by a worker."""
    from idc.changeimti.changeimti_job import open_changeimti

    job = BuildChangeImtiJob.model_validate({**payload, "out": folder})
    manifest = run(*open_changeimti(job), max_reject_share=job.max_reject_share, name="questions")
    return {"rows": manifest.num_rows, "rejected": manifest.num_rejected}
