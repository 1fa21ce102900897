"""The benchmark job: its parts, their inputs, and the record of their measurements."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from pydantic import Field

from benchmarks.batch import BatchConfig, measure_batch
from benchmarks.captioning import CaptioningConfig, measure_captioning
from benchmarks.decoding import DecodingConfig, measure_decoder
from benchmarks.hardware import HardwareConfig, measure_hardware
from benchmarks.measurement import Measurement, Part, Record
from benchmarks.pretraining import PretrainingConfig, measure_pretraining
from benchmarks.procedures import BuildActorsConfig, BuildMemoryConfig, build_memory, build_speed
from benchmarks.scoring import ScoringConfig, measure_scoring
from benchmarks.serving import ServingConfig, serving
from benchmarks.train_overhead import TrainOverheadConfig, train_overhead
from cluster.config import ClusterConfig
from idc.config import ConfigModel, load, missing
from idc.systems.procap.config import PretrainJob
from idc.systems.procap.procedures.config import BuildProceduresJob, ProceduresConfig

WITHOUT_RAY = frozenset({"decoding", "captioning", "pretraining", "hardware", "scoring"})
"""Parts that --local can measure."""


class BenchmarkJob(ConfigModel):
    """What to measure, and its inputs."""

    parts: tuple[Part, ...] = Field(("train_overhead", "build_actors", "build_memory", "decoding"), min_length=1)
    """Parts to measure. Only by name: captioning, pretraining and hardware (ProCap at full size), scoring,
    serving, batch."""
    out: str = "runs/benchmark"
    """Folder of the record. Measuring a part replaces its earlier measurements there; other parts are kept."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs, for the builds."""
    tokenizer: str = "runs/demo/tokenizer/artifact"
    """Image tokenizer, for the builds."""
    procedures: str = "data/demo/procedures"
    """Folder of procedures, for train_overhead."""
    train_overhead: TrainOverheadConfig = TrainOverheadConfig()
    """Overhead of a training step."""
    build_actors: BuildActorsConfig = BuildActorsConfig()
    """Building procedures, speed."""
    build_memory: BuildMemoryConfig = BuildMemoryConfig()
    """Building procedures, memory."""
    decoding: DecodingConfig = DecodingConfig()
    """ProCap's text decoder, cached over uncached."""
    serving: ServingConfig = ServingConfig()
    """The served application; needs the load generator `hey`."""
    cluster: ClusterConfig = ClusterConfig(worker_logs=False)
    """The local Ray started for each run."""
    captioning: CaptioningConfig = CaptioningConfig()
    """ProCap from two images to the caption."""
    pretraining: PretrainingConfig = PretrainingConfig()
    """A training step of ProCap's stage 1."""
    hardware: HardwareConfig = HardwareConfig()
    """The processor's peak, and the share of it that the parts reach."""
    scoring: ScoringConfig = ScoringConfig()
    """Scoring captions."""
    batch: BatchConfig = BatchConfig()
    """Captioning a table with jobs/caption.py."""

    def faults(self) -> Iterator[str]:
        if self.cluster.address is not None:
            yield f"cluster.address: {self.cluster.address!r}: each run starts its own Ray; leave this out"

    def preflight(self) -> Iterator[str]:
        if "train_overhead" in self.parts:
            yield from missing(self.procedures, "procedures")
        if {"build_actors", "build_memory"} & set(self.parts):
            yield from missing(self.pairs, "pairs")
            yield from missing(self.tokenizer, "tokenizer")
        if "serving" in self.parts:
            yield from missing(self.serving.artifact, "serving.artifact")
            yield from missing(self.serving.pairs, "serving.pairs")
        if "batch" in self.parts:
            yield from missing(self.batch.artifact, "batch.artifact")
            yield from missing(self.batch.pairs, "batch.pairs")


def run(job: BenchmarkJob, caption_job: str) -> Record:
    """Measure the parts one after another and save each in ``job.out`` as soon as it is done.

    Args:
        job: the settings.
        caption_job: path of jobs/caption.py; the part ``batch`` runs it as a command.

    Raises:
        ValueError: a part cannot be measured with these settings.
    """
    os.environ.pop("RAY_ADDRESS", None)  # the benchmark starts its own Ray
    record = Record.load(job.out)
    for part in job.parts:
        record = record.with_part(list(measure(part, job, caption_job)))
        record.save(job.out)
    return record


def measure(part: Part, job: BenchmarkJob, caption_job: str) -> Iterator[Measurement]:
    """Measure one part."""
    if part == "decoding":
        yield from measure_decoder(job.decoding)
    elif part == "captioning":
        yield from measure_captioning(job.captioning)
    elif part == "pretraining":
        yield from measure_pretraining(job.pretraining)
    elif part == "hardware":
        yield from measure_hardware(job.hardware, job.captioning, job.pretraining)
    elif part == "scoring":
        yield from measure_scoring(job.scoring)
    elif part == "serving":
        from idc.systems import load_captioner

        yield from serving(job.serving, job.cluster, load_captioner)
    elif part == "batch":
        yield from measure_batch(job.batch, job.cluster, [sys.executable, caption_job])
    elif part == "train_overhead":
        overrides = {"procedures": job.procedures, "train.zero_stage": 0}
        stage = load(PretrainJob, job.train_overhead.config, overrides)
        payload = stage.model_dump(mode="json", exclude={"train"})
        entry = "idc.systems.procap.task:pretrain"
        yield train_overhead(job.train_overhead, entry, payload, stage.train, job.cluster)
    elif part == "build_actors":
        speed = job.build_actors
        yield build_speed(_build(speed.config, job), speed.num_pairs, speed.actors, speed.rounds, job.cluster)
    else:
        size = job.build_memory
        yield build_memory(_build(size.config, job), size.num_pairs, size.times, size.rounds, job.cluster)


def _build(config: str, job: BenchmarkJob) -> ProceduresConfig:
    """The build config of a YAML file with the job's pairs and tokenizer."""
    overrides = {"procedures": "(scratch)", "build.pairs": job.pairs, "build.tokenizer": job.tokenizer}
    return load(BuildProceduresJob, config, overrides).build
