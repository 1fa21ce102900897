"""ProCap as a chain of jobs, for sweeps: procedures, stage 1, stage 2, then the steps that all systems share.

Stages with the same settings and inputs are shared between trials. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.store import fingerprint, read_manifest
from idc.evaluation.config import EvaluateSection
from idc.sweep.chain import Step, TrialSteps
from idc.sweep.steps import EVALUATE_DERIVED, derived_errors, train_step, with_evaluation
from idc.systems.procap.config import FinetuneJob, PretrainJob
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.training.artifact import captioning_identity

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

SEEDS = ("pretrain.train.seed", "finetune.train.seed")
"""A repetition has other weights and another order of samples in both stages, on the same procedures."""
WATCHED = "finetune.train"
DERIVED = {
    "build": ("pairs",),
    "pretrain": ("name", "runs", "procedures", "build"),
    "finetune": ("name", "runs", "procedures", "build", "pretrained", "encoder"),
    "evaluate": EVALUATE_DERIVED,
}


class _Filled(ConfigModel):
    """Settings of which the trial fills in folders: nothing is to be checked before."""

    def preflight(self) -> Iterator[str]:
        return iter(())


class _Build(ProceduresConfig):
    """Procedures."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.tokenizer, "tokenizer")
        yield from missing(self.vocabulary, "vocabulary")


class _Pretrain(_Filled, PretrainJob):
    """Stage 1."""

    procedures: str = ""


class _Finetune(_Filled, FinetuneJob):
    """Stage 2."""

    procedures: str = ""


class Trial(ConfigModel):
    """One trial of a sweep: the settings of ProCap's jobs, one section per job."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: procedures are built of them, and their test split is scored."""
    procedures: str | None = None
    """Folder of existing procedures, for sweeps that do not vary them; this or `build`."""
    build: _Build | None = None
    """How to build procedures."""
    explicit_modeling: bool = True
    """Run stage 1 first (EPM in the paper's tables). Without it stage 2 trains the same encoder from scratch."""
    pretrained: str | None = None
    """Artifact of an existing stage 1, for sweeps that do not vary it; instead of `pretrain`."""
    pretrain: _Pretrain = _Pretrain()
    """Stage 1; also the shape of the encoder if there is no stage 1."""
    finetune: _Finetune = _Finetune()
    """Stage 2."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are scored once for all trials, by a step of their own."""

    def errors(self) -> Iterator[str]:
        if (self.procedures is None) == (self.build is None):
            yield "procedures, build: give one of the two"
        if self.pretrained is not None and not self.explicit_modeling:
            yield "pretrained: explicit_modeling=false trains without a stage 1; give one of the two"
        yield from derived_errors(self, DERIVED)

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        yield from missing(self.procedures, "procedures")
        yield from missing(self.pretrained, "pretrained")


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs, procedures or the tokenizer cannot be read.
    """
    work: list[Step] = []
    if trial.procedures is not None:
        procedures, source = trial.procedures, read_manifest(trial.procedures, kind="procedures").fingerprint
    else:
        built = _build_step(trial)
        procedures, source = f"{store}/{built.name}", built.name
        work.append(built)

    data = {"procedures": procedures, "build": None}
    encoder: dict[str, Any] | None = trial.pretrain.encoder.model_dump(mode="json")
    pretrained, before = None, fingerprint(encoder)
    if trial.pretrained is not None:
        pretrained, before, encoder = trial.pretrained, captioning_identity(trial.pretrained), None
    elif trial.explicit_modeling:
        task, models = "idc.systems.procap.task:pretrain", ("clip", "clip_tokenizer")
        stage_1 = train_step("pretrain", task, trial.pretrain, data, store, (source,), models)
        pretrained, before, encoder = f"{store}/{stage_1.name}/artifact", stage_1.name, None
        work.append(stage_1)
    inputs = {**data, "pretrained": pretrained, "encoder": encoder}
    task = "idc.systems.procap.task:finetune"
    work.append(train_step("finetune", task, trial.finetune, inputs, store, (source, before)))
    longest, gpus = trial.finetune.decoder.max_length, trial.finetune.train.gpus_per_worker
    return with_evaluation(work, pairs=trial.pairs, evaluate=trial.evaluate, max_tokens=longest, gpus=gpus, store=store)


def _build_step(trial: Trial) -> Step:
    from idc.systems.procap.procedures.build import identity

    assert trial.build is not None
    build = trial.build.model_copy(update={"pairs": trial.pairs})
    return Step(
        name=f"procedures-{identity(build)[:12]}",
        entry=f"{__name__}:build_procedures",
        payload=build.model_dump(mode="json"),
        cpus=build.cpus_per_actor * build.actors,
        gpus=build.gpus_per_actor * build.actors,
    )


def build_procedures(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Build procedures, or resume; the entry of a step, run by a worker."""
    from idc.systems.procap.procedures.build import build

    manifest = build(ProceduresConfig.model_validate(payload), folder, run)
    return {"procedures": manifest.num_rows, "rejected": manifest.num_rejected}
