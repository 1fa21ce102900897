"""ProCap as a chain of jobs, for sweeps: procedures, stage 1, stage 2, evaluation.

Each step's folder is named by the settings and inputs that its result depends on, files by content and not by path:
stages with the same settings are shared between trials, and a tokenizer trained anew at the same path gives new steps.
The entries at the end run in the workers; nothing above them loads torch.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.evaluation.config import EvaluateJob, EvaluateSection
from idc.evaluation.job import scoring_fingerprint
from idc.sweep.plan import Step, TrialSteps
from idc.systems.procap.config import EncoderConfig, FinetuneJob, PretrainJob
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.training.artifact import captioning_identity, content_or_id
from idc.training.config import OPERATIONAL, TrainConfig

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

SEEDS = ("pretrain.train.seed", "finetune.train.seed")
"""A repetition has other weights and another order of samples in both stages, on the same procedures."""
WATCHED = "finetune.train"
DERIVED = {
    "build": ("pairs",),
    "pretrain": ("name", "runs", "procedures", "build"),
    "finetune": ("name", "runs", "procedures", "build", "pretrained", "encoder"),
    "evaluate": ("out", "pairs", "artifact", "predictions"),
}
"""What the chain sets itself: names, folders, and what goes from one step to the next."""

_READ = ("clip", "clip_tokenizer")
"""Settings of a stage that name a model, by folder or hub id."""
_SPEED_PAIRS, _SPEED_ROUNDS = 32, 5


class _Build(ProceduresConfig):
    """Procedures."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.tokenizer, "tokenizer")
        yield from missing(self.vocabulary, "vocabulary")


class _Pretrain(PretrainJob):
    """Stage 1."""

    procedures: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class _Finetune(FinetuneJob):
    """Stage 2."""

    procedures: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(ConfigModel):
    """One trial of a sweep: the settings of ProCap's jobs under their names."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: what procedures are built of, and whose test split is scored."""
    procedures: str | None = None
    """Folder of procedures that are there, for sweeps that do not vary them; this or `build`."""
    build: _Build | None = None
    """How to build them."""
    explicit_modeling: bool = True
    """Stage 1 comes first (EPM in the paper's tables). Without it stage 2 trains the same encoder from scratch."""
    pretrained: str | None = None
    """Artifact of a stage 1 that is there, for sweeps that do not vary it; instead of `pretrain`."""
    pretrain: _Pretrain = _Pretrain()
    """Stage 1; also the shape of the encoder where there is no stage 1."""
    finetune: _Finetune = _Finetune()
    """Stage 2."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are made once for all trials, by a step of their own."""

    def faults(self) -> Iterator[str]:
        if (self.procedures is None) == (self.build is None):
            yield "procedures, build: give one of the two"
        if self.pretrained is not None and not self.explicit_modeling:
            yield "pretrained: explicit_modeling=false trains without a stage 1; give one of the two"
        for section, names in DERIVED.items():
            given = getattr(self, section)
            for name in names:
                if given is not None and name in given.model_fields_set:
                    yield f"{section}.{name}: the sweep sets it"

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
    pairs = read_manifest(trial.pairs, kind="pairs").fingerprint
    if trial.procedures is not None:
        procedures, source = trial.procedures, read_manifest(trial.procedures, kind="procedures").fingerprint
    else:
        built = _build_step(trial)
        procedures, source = f"{store}/{built.name}", built.name
        work.append(built)

    encoder: EncoderConfig | None = trial.pretrain.encoder
    pretrained, before = None, fingerprint(trial.pretrain.encoder.model_dump(mode="json"))
    if trial.pretrained is not None:
        pretrained, before, encoder = trial.pretrained, captioning_identity(trial.pretrained), None
    elif trial.explicit_modeling:
        stage_1 = _train_step("pretrain", trial.pretrain, {"procedures": procedures}, store, source)
        pretrained, before, encoder = f"{store}/{stage_1.name}/artifact", stage_1.name, None
        work.append(stage_1)
    given: dict[str, Any] = {"procedures": procedures, "pretrained": pretrained}
    given["encoder"] = encoder.model_dump(mode="json") if encoder else None
    stage_2 = _train_step("finetune", trial.finetune, given, store, source, before)
    work.append(stage_2)

    settings = trial.evaluate.model_dump(mode="json", exclude=set(DERIVED["evaluate"]))
    baselines = {"constant_candidates": 0, "nearest_train_pairs": 0}
    scored = trial.evaluate.model_copy(update={"pairs": trial.pairs})
    artifact = f"{store}/{stage_2.name}/artifact"
    device = "cuda" if trial.finetune.train.gpus_per_worker else "cpu"
    gpus = trial.finetune.train.gpus_per_worker
    evaluation = Step(
        name=f"evaluation-{fingerprint(stage_2.name, scoring_fingerprint(scored.model_copy(update=baselines)))[:12]}",
        entry=f"{__name__}:evaluate",
        payload={"job": {**settings, **baselines, "pairs": trial.pairs, "artifact": artifact}, "device": device},
        gpus=gpus,
    )
    baseline = None
    if trial.evaluate.constant_candidates or trial.evaluate.nearest_train_pairs:
        baseline = Step(
            name=f"baselines-{scoring_fingerprint(scored)[:12]}",
            entry=f"{__name__}:score_baselines",
            payload={"job": {**settings, "pairs": trial.pairs}},
        )
    speed = Step(
        name=f"speed-{fingerprint(stage_2.name, device, pairs, trial.evaluate.split)[:12]}",
        entry=f"{__name__}:tokens_per_second",
        payload={
            "artifact": artifact,
            "pairs": trial.pairs,
            "split": trial.evaluate.split,
            "tokens": trial.finetune.decoder.max_length,
            "device": device,
        },
        gpus=gpus,
    )
    return TrialSteps(tuple(work), evaluation, baseline, speed)


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


def _train_step(stage: str, job: PretrainJob | FinetuneJob, given: dict[str, Any], store: str, *depends: str) -> Step:
    """A training of ``job`` with what the chain sets (``given``) filled in."""
    settings = job.model_dump(mode="json", exclude={*DERIVED[stage], "train"})
    read = {name: content_or_id(settings[name]) for name in _READ if settings.get(name) is not None}
    learned = job.train.model_dump(mode="json", exclude=set(OPERATIONAL))
    name = f"{stage}-{fingerprint({**settings, **read}, learned, depends)[:12]}"
    train: TrainConfig = job.train
    return Step(
        name=name,
        entry=f"idc.systems.procap.task:{stage}",
        payload={**settings, **given, "name": name, "runs": store, "build": None},
        train=train,
        cpus=train.num_workers * train.cpus_per_worker,
        gpus=train.num_workers * train.gpus_per_worker,
    )


# ------------------------------------------------------------------------------------------------- run in the workers


def build_procedures(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Build procedures, or go on with them."""
    from idc.systems.procap.procedures.build import build

    manifest = build(ProceduresConfig.model_validate(payload), folder, run)
    return {"procedures": manifest.num_rows, "rejected": manifest.num_rejected}


def evaluate(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Caption and score; what is scored already is not scored again."""
    from idc.captioning.loading import CaptionerLoader
    from idc.evaluation.job import finished
    from idc.evaluation.job import run as score

    job = EvaluateJob.model_validate({**payload["job"], "out": folder})
    load = CaptionerLoader(job.artifact or "", job, gpus=payload["device"] == "cuda")
    found = finished(job) or score(job, load)  # in this process, which has the step's cores and GPU
    return found.scores


def score_baselines(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """The evaluated split's baselines: an evaluation, with its baselines, of the most frequent training caption."""
    from idc.evaluation.job import finished
    from idc.evaluation.job import run as score

    pairs, split = payload["job"]["pairs"], payload["job"]["split"]
    frequency: Counter[str] = Counter()
    for row in iter_rows(pairs, ["captions"], "train"):
        frequency.update(row["captions"])
    if not frequency:
        raise ValueError(f"{pairs}: its training split has no captions, so there are no baselines")
    caption = frequency.most_common(1)[0][0]
    predictions = Path(folder) / "constant.jsonl"
    predictions.parent.mkdir(parents=True, exist_ok=True)
    of = None if split == "all" else split
    rows = [{"pair_id": row["pair_id"], "caption": caption} for row in iter_rows(pairs, ["pair_id"], of)]
    predictions.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    job = EvaluateJob.model_validate({**payload["job"], "out": folder, "predictions": str(predictions)})
    found = finished(job) or score(job)
    return {name: baseline.scores for name, baseline in found.baselines.items()}


def tokens_per_second(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Caption tokens a second, counted as the official code does: pairs x longest caption, padding included, over the
    time from decoded images to words (tokenizer, encoder, decoder; with explicit captioning also the interpolation).

    The median of five rounds of one batch of 32 pairs after one round that does not count. Decoding stops when all
    captions of the batch have ended, while the official code always takes all steps.
    """
    import statistics

    import torch

    from idc.data.images import decode_image
    from idc.systems.procap.captioner import load_captioner

    captioner = load_captioner(payload["artifact"], payload["device"])
    of = None if payload["split"] == "all" else payload["split"]
    befores, afters = [], []
    for row in iter_rows(payload["pairs"], ["before", "after"], of, batch_size=_SPEED_PAIRS):
        befores.append(decode_image(row["before"]))
        afters.append(decode_image(row["after"]))
        if len(befores) == _SPEED_PAIRS:
            break
    seconds = []
    for _ in range(1 + _SPEED_ROUNDS):
        if payload["device"] == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        captioner(befores, afters)
        if payload["device"] == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    return {"tokens_per_second": len(befores) * payload["tokens"] / median, "seconds": seconds, "pairs": len(befores)}
