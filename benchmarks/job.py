"""The benchmark job: its parts, their inputs, the record of their measurements, and the comparison with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from benchmarks import page
from benchmarks.batch import BatchConfig, measure_batch
from benchmarks.captioning import CaptioningConfig, measure_captioning
from benchmarks.compare import RowComparison, compare_with_record
from benchmarks.decoding import DecodingConfig, measure_decoder
from benchmarks.hardware import HardwareConfig, measure_hardware
from benchmarks.machine import cores_in_use, this_machine
from benchmarks.measurement import Measurement, Part, code_commit
from benchmarks.pretraining import PretrainingConfig, measure_pretraining
from benchmarks.procedures import BuildActorsConfig, BuildMemoryConfig, build_memory, build_speed
from benchmarks.processes import say
from benchmarks.record import RECORDS, Figure, Run, objections
from benchmarks.rendering import RenderingConfig, measure_rendering
from benchmarks.scoring import ScoringConfig, measure_scoring
from benchmarks.serve_command import ServeCommandConfig, serve_command
from benchmarks.serving import ServingConfig, serving
from benchmarks.systems import SystemsConfig, measure_systems
from benchmarks.train_overhead import TrainOverheadConfig, train_overhead
from benchmarks.vision_language import VlmBenchmarkConfig, measure_vision_language
from cluster.config import ClusterConfig
from idc.captioning.loading import missing_artifact
from idc.config import ConfigModel, load, missing
from idc.systems.procap.config import PretrainJob
from idc.systems.procap.procedures.config import BuildProceduresJob, ProceduresConfig

WITHOUT_RAY = frozenset(
    {
        "decoding",
        "captioning",
        "pretraining",
        "hardware",
        "scoring",
        "rendering",
        "systems",
        "vlm",
    }
)
"""Parts that --local can measure."""


class BenchmarkJob(ConfigModel):
    """Parts to measure, and their inputs."""

    parts: tuple[Part, ...] = Field(("train_overhead", "build_actors", "build_memory", "decoding"), min_length=1)
    """Parts to measure. Only by name: captioning, pretraining and hardware (ProCap at full size), scoring,
    rendering, serving, serve_command, batch, systems, vlm."""
    variant: str = Field("", pattern=r"^[a-z0-9-]*$")
    """Name of these sizes. Results are stored as the figure PART-VARIANT; only runs of one figure are compared."""
    out: str = "runs/benchmark"
    """Folder of the results: one JSON file per figure, with all runs."""
    record: bool = False
    """Also add the results to benchmarks/records and write BENCHMARKS.md. Refused if files differ from the commit or
    other work uses the machine."""
    anyway: str = ""
    """Reason to record although one of these was found; it is stored and shown with the run."""
    compare: bool = False
    """Compare the results with benchmarks/records, print what became worse by more than the spread, and exit with 1 if
    anything did. Absolute figures count only on a machine of the same kind."""
    skip_missing: bool = False
    """Skip parts whose inputs are missing, and name them, instead of refusing to start."""
    device: str | None = None
    """Torch device of all parts that have such a setting, e.g. cuda. Default: each part's own."""
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
    serve_command: ServeCommandConfig = ServeCommandConfig()
    """The command `python -m serve.app`."""
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
    rendering: RenderingConfig = RenderingConfig()
    """Rendering pairs."""
    systems: SystemsConfig = SystemsConfig()
    """Captioners of several papers next to each other; ProCap's size is that of `captioning`."""
    batch: BatchConfig = BatchConfig()
    """Captioning a table with jobs/caption.py."""
    vlm: VlmBenchmarkConfig = VlmBenchmarkConfig()
    """Small vision-language models of each family."""

    def faults(self) -> Iterator[str]:
        if self.anyway and not self.record:
            yield f"anyway: {self.anyway!r} is the reason to record a run; it needs record=true"
        if self.cluster.address is not None:
            yield f"cluster.address: {self.cluster.address!r}: each run starts its own Ray; leave this out"

    def preflight(self) -> Iterator[str]:
        if self.skip_missing:
            return
        if "train_overhead" in self.parts:
            yield from missing(self.procedures, "procedures")
        if {"build_actors", "build_memory"} & set(self.parts):
            yield from missing(self.pairs, "pairs")
            yield from missing(self.tokenizer, "tokenizer")
        if "serving" in self.parts:
            yield from missing(self.serving.artifact, "serving.artifact")
            yield from missing(self.serving.pairs, "serving.pairs")
        if "serve_command" in self.parts:
            yield from missing_artifact(self.serve_command.artifact, "serve_command.artifact")
            yield from missing(self.serve_command.pairs, "serve_command.pairs")
        if "batch" in self.parts:
            yield from missing(self.batch.artifact, "batch.artifact")
            yield from missing(self.batch.pairs, "batch.pairs")


class BenchmarkResult(NamedTuple):
    """Measurements of a run of the job."""

    runs: dict[str, Run]
    """By figure."""
    compared: list[RowComparison]
    unknown: int
    """Rows that have no recorded counterpart; counted if ``compare`` is set."""
    skipped: dict[Part, list[str]]
    """Parts that were not measured, and what is missing."""
    notes: list[str]
    """Warnings for a reader, e.g. that the machine was busy."""


def run_benchmark(job: BenchmarkJob, caption_job: str) -> BenchmarkResult:
    """Measure the parts one after another and store each as soon as it is done.

    Args:
        job: the settings.
        caption_job: path of jobs/caption.py; the part ``batch`` runs it as a command.

    Raises:
        ValueError: a part cannot be measured with these settings, or may not be recorded.
    """
    if job.record and (words := absolute_paths(sys.argv[1:])):
        raise ValueError(f"record: give paths relative to the checkout, others do not have {', '.join(words)}")
    os.environ.pop("RAY_ADDRESS", None)  # the benchmark starts its own Ray
    result, unknown = BenchmarkResult({}, [], 0, {}, []), 0
    job = on_device(job)
    for part in job.parts:
        alone = job.model_copy(update={"parts": (part,), "skip_missing": False})
        if lacking := list(alone.preflight()):
            result.skipped[part] = lacking
            continue
        busy = cores_in_use()
        against = objections(code_commit(), busy, this_machine().cores)
        if job.record and against and not job.anyway:
            raise ValueError(f"{part} is not recorded: {'; '.join(against)} (or give a reason: anyway=...)")
        result.notes.extend(f"{part}: {objection}" for objection in against)
        notes = [f"recorded although {'; '.join(against)}: {job.anyway}"] if job.record and against else []
        figure = f"{part}-{job.variant}" if job.variant else part
        say(f"{figure}: measuring")
        measured_run = Run.of(list(measure(part, job, caption_job)), busy, notes)
        result.runs[figure] = measured_run
        Figure.load(job.out, figure).with_run(measured_run).save(job.out)
        recorded = Figure.load(RECORDS, figure)
        if job.compare:
            comparisons = list(compare_with_record(measured_run, recorded))
            result.compared.extend(comparisons)
            unknown += len(measured_run.rows) - len({comparison.title for comparison in comparisons})
        if job.record:
            record(measured_run, recorded)
    return result._replace(unknown=unknown)


def record(measured_run: Run, recorded: Figure) -> None:
    """Add a run to the tracked record and write BENCHMARKS.md anew."""
    recorded.with_run(measured_run).save(RECORDS)
    page.write()


def absolute_paths(arguments: Sequence[str]) -> list[str]:
    """The arguments that hold an absolute path: they would be part of the recorded command."""
    return [word for word in arguments if any(Path(value).is_absolute() for value in word.split("="))]


def on_device(job: BenchmarkJob) -> BenchmarkJob:
    """The job with ``device`` in all its parts.

    Raises:
        ValueError: torch does not find this device.
    """
    if job.device is None:
        return job
    if job.device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise ValueError(f"device: {job.device!r}: torch {torch.__version__} finds no GPU")
    sections = {
        name: section.model_copy(update={"device": job.device})
        for name, section in job
        if isinstance(section, ConfigModel) and "device" in type(section).model_fields
    }
    return job.model_copy(update=sections)


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
    elif part == "rendering":
        yield from measure_rendering(job.rendering)
    elif part == "systems":
        yield from measure_systems(job.systems, job.captioning)
    elif part == "serving":
        from idc.systems import load_captioner

        yield from serving(job.serving, job.cluster, load_captioner)
    elif part == "serve_command":
        from idc.captioning.loading import DEFAULTS, CaptionerLoader

        yield from serve_command(job.serve_command, CaptionerLoader(job.serve_command.artifact, DEFAULTS))
    elif part == "vlm":
        yield from measure_vision_language(job.vlm)
    elif part == "batch":
        yield from measure_batch(job.batch, job.cluster, [sys.executable, caption_job])
    elif part == "train_overhead":
        overrides = {"procedures": job.procedures, "train.zero_stage": 0}
        stage = load(PretrainJob, job.train_overhead.config, overrides)
        payload = stage.model_dump(mode="json", exclude={"train"})
        entry = "idc.systems.procap.task:pretrain"
        yield from train_overhead(job.train_overhead, entry, payload, stage.train, job.cluster)
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
