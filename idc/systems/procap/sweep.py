"""A trial of ProCap in a sweep: procedures, stage 1, stage 2, then the steps that all systems share.

Stages with the same settings and inputs are shared between trials. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from idc.config import missing
from idc.data.store import fingerprint, read_manifest
from idc.sweep.chain import Step, TrialConfig, TrialSection, TrialSteps
from idc.sweep.steps import train_step, with_evaluation
from idc.systems.procap.config import FinetuneJob, PretrainJob
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.training.artifact import captioning_identity

if TYPE_CHECKING:
    from idc.data.pipeline import Runner


class _Build(ProceduresConfig):
    """Procedures."""

    SET_OUTSIDE: ClassVar = ("pairs",)

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.tokenizer, "tokenizer")
        yield from missing(self.vocabulary, "vocabulary")


class _Pretrain(TrialSection, PretrainJob):
    """Stage 1."""

    SET_OUTSIDE = ("name", "runs", "procedures", "build")

    procedures: str = ""


class _Finetune(TrialSection, FinetuneJob):
    """Stage 2."""

    SET_OUTSIDE = ("name", "runs", "procedures", "build", "pretrained", "encoder")

    procedures: str = ""


class Trial(TrialConfig):
    """One trial of a sweep: the settings of ProCap's jobs, one section per job."""

    TRAININGS, SEARCHED = ("pretrain", "finetune"), "finetune"

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

    def errors(self) -> Iterator[str]:
        if (self.procedures is None) == (self.build is None):
            yield "procedures, build: give one of the two"
        if self.pretrained is not None and not self.explicit_modeling:
            yield "pretrained: explicit_modeling=false trains without a stage 1; give one of the two"
        yield from super().errors()

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.procedures, "procedures")
        yield from missing(self.pretrained, "pretrained")

    def steps(self, store: str) -> TrialSteps:
        work: list[Step] = []
        if self.procedures is not None:
            procedures, source = self.procedures, read_manifest(self.procedures, kind="procedures").fingerprint
        else:
            built = _build_step(self)
            procedures, source = f"{store}/{built.name}", built.name
            work.append(built)

        data = {"procedures": procedures, "build": None}
        encoder: dict[str, Any] | None = self.pretrain.encoder.model_dump(mode="json")
        pretrained, before = None, fingerprint(encoder)
        if self.pretrained is not None:
            pretrained, before, encoder = self.pretrained, captioning_identity(self.pretrained), None
        elif self.explicit_modeling:
            models = ("clip", "clip_tokenizer")
            stage_1 = train_step("pretrain", self.pretrain, data, store, (source,), models)
            pretrained, before, encoder = f"{store}/{stage_1.name}/artifact", stage_1.name, None
            work.append(stage_1)
        inputs = {**data, "pretrained": pretrained, "encoder": encoder}
        work.append(train_step("finetune", self.finetune, inputs, store, (source, before)))
        longest, gpus = self.finetune.decoder.max_length, self.finetune.train.gpus_per_worker
        return with_evaluation(self, work, store, max_tokens=longest, gpus=gpus)


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
