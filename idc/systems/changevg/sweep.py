"""ChangeVG as a chain of jobs for sweeps: the guide, ChangeIMTI's questions, the tuning of a language model with both,
then the steps that all systems share, and the questions of the scored split.

Rows that differ in the tuning alone share the guide and the questions. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from idc.changeimti.config import BuildChangeImtiJob
from idc.data.store import fingerprint, read_manifest
from idc.sweep.chain import Step, TrialSteps
from idc.sweep.one_training import TrainingTrial
from idc.sweep.steps import answers_step, derived_errors, train_step, with_evaluation
from idc.systems.changevg.config import ChangeVgJob, GuidedPromptConfig, GuideJob
from idc.vlm.config import BaseConfig, base_content

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

_ALL_SPLITS = ("train", "val", "test")


class _Train(GuideJob):
    """The training."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class _Questions(BuildChangeImtiJob):
    """The questions; those of the test split are asked."""

    pairs: str = ""
    out: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class _Tune(ChangeVgJob):
    """The tuning, with its base."""

    pairs: str = ""
    base: BaseConfig = BaseConfig(source="shipped")

    def errors(self) -> Iterator[str]:
        for fault in super().errors():
            if not fault.startswith("quote"):  # without a guide, which the chain sets
                yield fault

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the guide's training, of the questions, of the language model's tuning, and
    of the evaluation."""

    section = "guide"

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

    @classmethod
    def derived(cls) -> dict[str, tuple[str, ...]]:
        return {
            **super().derived(),
            "questions": ("pairs", "out", "splits", "tasks"),
            "changevg": ("name", "runs", "pairs", "more_pairs", "guide", "regions"),
        }

    def errors(self) -> Iterator[str]:
        yield from derived_errors(self, self.derived())
        if self.until == "guide" and not self.guided:
            yield "guided: until=guide scores the guide; take until=tuning"
        if not self.guided and self.changevg.quote != GuidedPromptConfig():
            yield "changevg.quote: guided=false has no notes to quote; leave it out"
        if self.until == "tuning" and self.more_pairs:
            yield "more_pairs: the questions are of `pairs` alone; leave it out, or take until=guide"


SEEDS, WATCHED, DERIVED = ("guide.train.seed", "changevg.train.seed"), "guide.train", Trial.derived()


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs or the base model cannot be read.
    """
    alone = trial.steps(
        store, "idc.systems.changevg.task:train", trial.guide.model.decoder.max_length, models=("start",)
    )
    if trial.until == "guide":
        return alone
    guide: str | None = None
    content = read_manifest(trial.pairs, kind="pairs").fingerprint
    questions = _questions_step(trial, content)
    work = [questions]
    if trial.guided:
        (training,) = alone.work
        guide = f"{store}/{training.name}/artifact"
        work.append(training)
    tuning = train_step(
        "changevg",
        "idc.systems.changevg.tuning:train",
        trial.changevg,
        {
            "pairs": f"{store}/{questions.name}", "more_pairs": [], "guide": guide, "regions": None,
            "base": trial.changevg.base.model_dump(mode="json"),
        },
        store,
        [*(step.name for step in work), *base_content(trial.changevg.base)],
    )  # fmt: skip
    work.append(tuning)
    gpus = trial.changevg.train.gpus_per_worker
    shared = with_evaluation(
        work,
        pairs=trial.pairs,
        evaluate=trial.evaluate,
        max_tokens=trial.changevg.generation.max_new_tokens,
        gpus=gpus,
        store=store,
    )
    answers = answers_step(
        work,
        instructions=f"{store}/{questions.name}",
        depends=questions.name,
        split=trial.evaluate.split,
        speed=trial.evaluate.speed,
        gpus=gpus,
        store=store,
    )
    return replace(shared, answers=answers)


def _questions_step(trial: Trial, content: str) -> Step:
    """ChangeIMTI of all splits."""
    job = trial.questions.model_copy(update={"pairs": trial.pairs, "splits": _ALL_SPLITS})
    settings = job.model_dump(mode="json", exclude={"pairs", "out", "workers", "show", "max_reject_share"})
    return Step(
        name=f"questions-{fingerprint(content, settings)[:12]}",
        entry=f"{__name__}:build_questions",
        payload={**job.model_dump(mode="json"), "show": 0},
    )


# ---------------------------------------------------------------------------------------------- entries, run by workers


def build_questions(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Build ChangeIMTI, or resume; the entry of a step, run by a worker."""
    from idc.changeimti.changeimti_job import open_changeimti

    job = BuildChangeImtiJob.model_validate({**payload, "out": folder})
    manifest = run(*open_changeimti(job), max_reject_share=job.max_reject_share, name="questions")
    return {"rows": manifest.num_rows, "rejected": manifest.num_rejected}
