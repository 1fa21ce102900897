"""Measure what the parts cost, each as a ratio of two things measured by turns in one run.

    python jobs/benchmark.py                       takes the pairs, the tokenizer and the procedures of `make demo`
    python jobs/benchmark.py --local "parts=[decoding]"    needs no data and no Ray, nor do the next three
    python jobs/benchmark.py --local "parts=[scoring]"
    python jobs/benchmark.py --local "parts=[captioning]"
    python jobs/benchmark.py --local --config jobs/configs/benchmark/gpu.yaml
    python jobs/benchmark.py "parts=[serving]"     needs the load generator: apt-get install hey
    python jobs/benchmark.py "parts=[batch]"       100,000 pairs by jobs/caption.py, killed in the middle: about an hour
    python jobs/benchmark.py "parts=[train_overhead]" procedures=data/mine/procedures train_overhead.rounds=5

Prints a table and writes <out>/benchmark.json (raw numbers, device, commit, command) and <out>/benchmark.md, whose rows
go into BENCHMARKS.md. Run it on a machine that does nothing else; the four parts it runs unless told otherwise took
fourteen minutes on two cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.batch import BatchConfig, measure_batch
from benchmarks.measurement import BenchmarkJob, Measurement, Part, Record
from benchmarks.procap import (
    CaptioningConfig,
    PretrainingConfig,
    measure_captioning,
    measure_decoder,
    measure_pretraining,
)
from benchmarks.scoring import ScoringConfig, measure_scoring
from cluster.config import ClusterConfig
from idc.config import cli, load, missing, refuse
from idc.systems.procap.config import PretrainJob
from idc.systems.procap.procedures.config import BuildProceduresJob, ProceduresConfig


class Job(BenchmarkJob):
    """Benchmarks, and the Ray they run on."""

    cluster: ClusterConfig = ClusterConfig(worker_logs=False)
    """The local Ray that is started for each run."""
    captioning: CaptioningConfig = CaptioningConfig()
    """ProCap, two images to the caption."""
    pretraining: PretrainingConfig = PretrainingConfig()
    """ProCap, a training step of stage 1."""
    scoring: ScoringConfig = ScoringConfig()
    """Scoring captions."""
    batch: BatchConfig = BatchConfig()
    """Captioning an input with jobs/caption.py."""

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if "batch" in self.parts:
            yield from missing(self.batch.artifact, "batch.artifact")
            yield from missing(self.batch.pairs, "batch.pairs")


WITHOUT_RAY = {"decoding", "captioning", "pretraining", "scoring"}


def main() -> None:
    args = cli(Job, __doc__, overwrite=False)
    job = args.config
    if args.local and not set(job.parts) <= WITHOUT_RAY:
        refuse([f"--local: without Ray only these parts can be measured: {', '.join(sorted(WITHOUT_RAY))}"])
    if job.cluster.address is not None:
        refuse(["cluster.address: a benchmark starts its own Ray for every run; leave it out"])
    os.environ.pop("RAY_ADDRESS", None)  # its own Ray, not another one that is set
    try:
        record = Record.load(job.out)
        for part in job.parts:
            record = record.with_part(list(measure(part, job)))
            record.save(job.out)
    except ValueError as error:
        raise SystemExit(f"benchmark: {error}") from None
    print(record.table())
    load_average = max((one.environment.load or 0.0 for one in record.measurements), default=0.0)
    if load_average > 0.5 * (os.cpu_count() or 1):
        print(f"note: the load average was up to {load_average}; these are not numbers to publish", file=sys.stderr)


def measure(part: Part, job: Job) -> Iterator[Measurement]:
    """The measurements of a part."""
    if part == "decoding":
        yield from measure_decoder(job.decoding)
        return
    if part == "captioning":
        yield from measure_captioning(job.captioning)
        return
    if part == "pretraining":
        yield from measure_pretraining(job.pretraining)
        return
    if part == "scoring":
        yield from measure_scoring(job.scoring)
        return
    if part == "serving":
        from benchmarks.serving import serving
        from idc.systems import load_captioner

        yield from serving(job.serving, job.cluster, load_captioner)
        return
    if part == "batch":
        command = [sys.executable, str(Path(__file__).with_name("caption.py"))]
        yield from measure_batch(job.batch, job.cluster, command)
        return
    from benchmarks.ray_jobs import build_memory, build_speed, train_overhead

    if part == "train_overhead":
        overrides = {"procedures": job.procedures, "train.zero_stage": 0}
        stage = load(PretrainJob, job.train_overhead.config, overrides)
        payload = stage.model_dump(mode="json", exclude={"train"})
        entry = "idc.systems.procap.task:pretrain"
        yield train_overhead(job.train_overhead, entry, payload, stage.train, job.cluster)
    elif part == "build_actors":
        speed = job.build_actors
        yield build_speed(procedures(speed.config, job), speed.num_pairs, speed.actors, speed.rounds, job.cluster)
    else:
        size = job.build_memory
        yield build_memory(procedures(size.config, job), size.num_pairs, size.times, size.rounds, job.cluster)


def procedures(config: str, job: Job) -> ProceduresConfig:
    """The build of a YAML file, of the job's pairs and tokenizer."""
    overrides = {"procedures": "(scratch)", "build.pairs": job.pairs, "build.tokenizer": job.tokenizer}
    return load(BuildProceduresJob, config, overrides).build


if __name__ == "__main__":
    main()
