"""Ratios that say what a part costs: their settings, their record at rest, and the timing that needs no Ray.

A benchmark here is always a ratio of two measurements made by turns in one run, because the same machine is not the
same machine an hour later. The raw numbers are kept; the ratio is computed from them and never stored by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from idc.config import ConfigModel, missing
from idc.provenance import commit

if TYPE_CHECKING:
    import torch

    from idc.decoding import CachedDecoder

Part = Literal[
    "train_overhead",
    "build_actors",
    "build_memory",
    "decoding",
    "captioning",
    "pretraining",
    "scoring",
    "serving",
    "batch",
]

RECORD = "benchmark.json"
TABLE = "benchmark.md"


# -- settings ----------------------------------------------------------------------------------------------------


class TrainOverheadConfig(ConfigModel):
    """Step time of Ray Train with DeepSpeed, one worker, over the same loop without Ray and with plain torch."""

    config: str = "jobs/configs/procap/pretrain_demo.yaml"
    """The ProCap stage 1 run that is timed."""
    steps: int = Field(50, ge=2)
    """Optimizer steps of one run."""
    warmup: int = Field(10, ge=1)
    """Steps at the start of a run that are not counted."""
    rounds: int = Field(3, ge=1)
    """Runs of each kind."""
    threads: int = Field(2, ge=1)
    """Torch threads of both."""

    def faults(self) -> Iterator[str]:
        if self.warmup >= self.steps:
            yield f"warmup: {self.warmup} leaves none of {self.steps} steps to count"


class BuildActorsConfig(ConfigModel):
    """Procedures a second with several actors over one, from the moment when all of them work."""

    config: str = "jobs/configs/procap/procedures_demo.yaml"
    """The build that is timed."""
    actors: int = Field(2, ge=2)
    """Actors of the faster build; each has the cores and torch threads of `build.cpus_per_actor`."""
    num_pairs: int = Field(480, ge=1)
    """Pairs of one build."""
    rounds: int = Field(2, ge=1)
    """Builds of each kind."""


class BuildMemoryConfig(ConfigModel):
    """Peak memory of a build over that of a build with fewer pairs."""

    config: str = "jobs/configs/procap/procedures_demo.yaml"
    """The build that is measured."""
    num_pairs: int = Field(128, ge=1)
    """Pairs of the small build."""
    times: int = Field(10, ge=2)
    """The large build has so many times the pairs."""
    rounds: int = Field(1, ge=1)
    """Builds of each kind."""


class DecodingConfig(ConfigModel):
    """Decoding at ProCap's size on CLEVR-Change (the paper's appendix H), random weights, no early stop."""

    batch_size: int = Field(32, ge=1)
    """Pairs decoded at a time (the official code's evaluation)."""
    steps: int = Field(24, ge=1)
    """Tokens of each caption, padding counted, as the official code counts tokens a second."""
    vocabulary_size: int = Field(80, ge=5)
    """Words (the official CLEVR-Change vocabulary)."""
    repeats: int = Field(3, ge=1)
    """Greedy searches of each kind; one more before them is not counted."""
    beams: int = Field(3, ge=2)
    """Beams of the beam search."""
    beam_repeats: int = Field(1, ge=1)
    """Beam searches of each kind, after the greedy ones."""
    encoder_batch: int = Field(4, ge=1)
    """Pairs in one pass of the procedure encoder, whose time stands beside the decoder's."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Where to run, e.g. cuda."""


class ServingConfig(ConfigModel):
    """The served application under load, beside the captioner without a server."""

    artifact: str = "runs/demo/finetune-0/artifact"
    """The captioner."""
    pairs: str = "data/demo/pairs"
    """The first pair of its split test is what is asked about."""
    batch: int = Field(16, ge=1)
    """Pairs of a batch, of both."""
    replicas: int = Field(2, ge=1)
    """Replicas at most, and processes of the bare captioner."""
    threads: int = Field(2, ge=1)
    """Torch threads of all replicas together."""
    connections: tuple[int, ...] = (8, 32, 64, 96)
    """Requests under way at a time, level by level; the last ones should bring no more answers."""
    over_connections: int = Field(384, ge=1)
    """The same at three times the knee's load; more than the application lets wait."""
    requests_alone: int = Field(100, ge=10)
    """Requests one after the other, for the latency of one alone."""
    seconds: float = Field(10.0, gt=0)
    """Of one level, and of one round of the bare captioner."""
    event_seconds: float = Field(18.0, gt=0)
    """Of the load in which something happens."""
    rounds: int = Field(2, ge=1)
    """Rounds at the knee, by turns with the bare captioner."""
    downscale_delay_s: float = Field(10.0, gt=0)
    """How long a replica is idle before it goes."""
    ha_proxy: bool = True
    """Serve's HAProxy and its short way of a request (RAY_SERVE_THROUGHPUT_OPTIMIZED); false: its proxy in Python."""
    port: int = Field(8123, ge=1024, le=65535)
    """Of the application."""
    plot: str = "runs/benchmark/serving.png"
    """Picture of latencies and replicas."""


class BenchmarkJob(ConfigModel):
    """What to measure, on what."""

    parts: tuple[Part, ...] = Field(("train_overhead", "build_actors", "build_memory", "decoding"), min_length=1)
    """Which parts. Captioning and pretraining (of ProCap, at its full size), scoring, serving, batch: only if named."""
    out: str = "runs/benchmark"
    """Folder of the record; a part that is measured again replaces its older numbers there, other parts stay."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs, for the builds."""
    tokenizer: str = "runs/demo/tokenizer/artifact"
    """Image tokenizer, for the builds."""
    procedures: str = "data/demo/procedures"
    """Folder of procedures, for train_overhead."""
    train_overhead: TrainOverheadConfig = TrainOverheadConfig()
    """Training."""
    build_actors: BuildActorsConfig = BuildActorsConfig()
    """Building, speed."""
    build_memory: BuildMemoryConfig = BuildMemoryConfig()
    """Building, memory."""
    decoding: DecodingConfig = DecodingConfig()
    """Decoding."""
    serving: ServingConfig = ServingConfig()
    """Serving; needs the load generator `hey`."""

    def preflight(self) -> Iterator[str]:
        if "train_overhead" in self.parts:
            yield from missing(self.procedures, "procedures")
        if {"build_actors", "build_memory"} & set(self.parts):
            yield from missing(self.pairs, "pairs")
            yield from missing(self.tokenizer, "tokenizer")
        if "serving" in self.parts:
            yield from missing(self.serving.artifact, "serving.artifact")
            yield from missing(self.serving.pairs, "serving.pairs")


# -- the record --------------------------------------------------------------------------------------------------


class Environment(BaseModel):
    """Where and how something was measured."""

    model_config = ConfigDict(extra="forbid")

    device: str
    threads: int
    """Torch threads of a process."""
    commit: str
    command: str
    load: float | None
    """Processes that wanted a core in the minute before (the load average), where the system tells."""
    versions: dict[str, str]


class Measurement(BaseModel):
    """Two things measured by turns: the ``n``-th of ``above`` is compared with the ``n``-th of ``below``."""

    model_config = ConfigDict(extra="forbid")

    part: Part
    title: str
    """What over what."""
    unit: str
    """Of the raw numbers."""
    aim: str
    """What the ratio should be."""
    above: list[float]
    below: list[float]
    more: dict[str, Any] = {}
    """What else was measured."""
    environment: Environment

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratios(self) -> list[float]:
        return [above / below for above, below in zip(self.above, self.below, strict=True)]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float:
        """The median of ``ratios``."""
        return statistics.median(self.ratios)

    def row(self) -> str:
        """A row of a Markdown table under :data:`HEADER`."""
        low, high, n = min(self.ratios), max(self.ratios), len(self.ratios)
        spread = f" ({low:.2f} to {high:.2f}, n = {n})" if n > 1 else " (n = 1)"
        raw = f"{statistics.median(self.above):.4g} / {statistics.median(self.below):.4g} {self.unit}"
        where = f"{self.environment.device}, {self.environment.threads} threads"
        cells = [self.title, f"**{self.ratio:.2f}**{spread}", self.aim, raw, where, self.environment.commit]
        return "| " + " | ".join([*cells, f"`{self.environment.command}`"]) + " |"


HEADER = "| what | ratio: median (range) | aim | medians | device | commit | command |\n|---|---|---|---|---|---|---|"


class Record(BaseModel):
    """All measurements of a folder."""

    model_config = ConfigDict(extra="forbid")

    measurements: list[Measurement] = []

    @classmethod
    def load(cls, out: Path | str) -> Record:
        """The record in ``out``, empty if there is none.

        Raises:
            ValueError: the file there is something else.
        """
        path = Path(out) / RECORD
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(_without_computed(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ValueError(f"out: {path} is not a record of benchmarks, give another folder: {error}") from None

    def with_part(self, measured: Sequence[Measurement]) -> Record:
        """A record in which these measurements stand for all older ones of their parts."""
        parts = {one.part for one in measured}
        return Record(measurements=[one for one in self.measurements if one.part not in parts] + list(measured))

    def save(self, out: Path | str) -> None:
        """Write ``benchmark.json`` and the rows for BENCHMARKS.md, ``benchmark.md``."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        (folder / TABLE).write_text(self.table() + "\n", encoding="utf-8")

    def table(self) -> str:
        """All rows as a Markdown table."""
        return "\n".join([HEADER, *(one.row() for one in self.measurements)])


def _without_computed(record: dict[str, Any]) -> dict[str, Any]:
    """What is stored for readers of the JSON and computed again here."""
    for one in record["measurements"]:
        one.pop("ratios", None)
        one.pop("ratio", None)
    return record


def environment(threads: int, device: str = "cpu") -> Environment:
    """This machine, this checkout, this command line."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Environment(
        device=device_name(device),
        threads=threads,
        commit=commit(),
        command=shlex.join(["python", *sys.argv]),
        load=None if load is None else round(load, 2),
        versions={"python": platform.python_version(), **_versions("torch", "ray", "deepspeed", "diffusers")},
    )


def device_name(device: str = "cpu") -> str:
    """The processor and the memory, and the GPU if that is what is used."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{processor}, {cores} cores"
    with contextlib.suppress(ValueError, OSError, AttributeError):
        text += f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    if device.startswith("cuda"):
        import torch

        text = f"{torch.cuda.get_device_name(device)}; {text}"
    return text


def _versions(*packages: str) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


# -- steady state of a build -------------------------------------------------------------------------------------


class Stamp(BaseModel):
    """A chunk that left the last stage of a worker."""

    worker: int
    """Its process."""
    seconds: float
    """When, by the machine's clock."""
    rows: int


def steady_rate(stamps: Sequence[Stamp], workers: int) -> float:
    """Rows a second while all ``workers`` worked: from the moment the last one of them had its first chunk done to the
    moment the first one of them had its last chunk done. Starting them and the idle end are outside.

    Raises:
        ValueError: another number of workers took part, or there were too few chunks for such a time.
    """
    by_worker: dict[int, list[float]] = {}
    for stamp in stamps:
        by_worker.setdefault(stamp.worker, []).append(stamp.seconds)
    if len(by_worker) != workers:
        raise ValueError(f"{len(by_worker)} workers took part in the build, not {workers}; take more num_pairs")
    begin = max(min(times) for times in by_worker.values())
    end = min(max(times) for times in by_worker.values())
    rows = sum(stamp.rows for stamp in stamps if begin < stamp.seconds <= end)
    if not rows:
        raise ValueError(f"{len(stamps)} chunks are too few for {workers} workers to be measured; take more num_pairs")
    return rows / (end - begin)


# -- memory ------------------------------------------------------------------------------------------------------


def peak_memory_mib() -> float:
    """The most resident memory this process ever had. Not ``getrusage``: its number begins, after fork and exec, with
    the parent's."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    from idc.training.loop import peak_rss_gib

    return peak_rss_gib() * 1024


# -- decoding ----------------------------------------------------------------------------------------------------


def by_turns(actions: dict[str, Callable[[], Any]], repeats: int, sync: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds of each action, ``repeats`` times, by turns; every second round backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(repeats):
        for name in list(actions)[:: 1 if number % 2 == 0 else -1]:
            sync()
            began = time.perf_counter()
            actions[name]()
            sync()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def measure_decoding(
    config: DecodingConfig,
    decoder: CachedDecoder,
    projected: tuple[CachedDecoder, Callable[[torch.Tensor], torch.Tensor]],
    memory_BSD: torch.Tensor,
    encode: Callable[[], Any],
) -> list[Measurement]:
    """Cached over uncached decoding in tokens a second, greedy and by beam search, and the encoder's time beside them.

    Args:
        decoder: of random weights, in eval mode.
        projected: the same decoder without the projection of its memory, and that projection. Uncached, ``decoder``
            projects the memory at every step; this one, which does so once, says how much of the ratio that is.
        memory_BSD: what the encoder gives, (B, S, D).
        encode: one pass of the encoder over ``config.encoder_batch`` pairs.
    """
    import torch

    from idc.data.text import BOS, EOS, PAD
    from idc.decoding import decode

    torch.set_num_threads(config.threads)
    cuda = config.device.startswith("cuda")
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "pad": PAD, "max_length": config.steps, "stop_early": False}
    without, project = projected

    def search(beams: int, cached: bool, once: bool = False) -> torch.Tensor:
        if once:
            with torch.no_grad():
                memory = project(memory_BSD)
            return decode(without, memory, beams=beams, cached=cached, **options).ids
        return decode(decoder, memory_BSD, beams=beams, cached=cached, **options).ids

    greedy: dict[str, Callable[[], Any]] = {
        "cached": lambda: search(1, cached=True),
        "uncached": lambda: search(1, cached=False),
        "projected once": lambda: search(1, cached=False, once=True),
    }
    first = {name: action() for name, action in greedy.items()}  # also the warm-up
    agree = float((first["cached"] == first["uncached"]).float().mean())
    seconds = by_turns(greedy, config.repeats, sync)
    wide: dict[str, Callable[[], Any]] = {
        "cached": lambda: search(config.beams, cached=True),
        "uncached": lambda: search(config.beams, cached=False),
    }
    beam_seconds = by_turns(wide, config.beam_repeats, sync)
    encode()
    encoder = by_turns({"encoder": encode}, 2, sync)["encoder"]

    tokens = config.batch_size * config.steps
    where = environment(config.threads, config.device)
    size = f"{config.batch_size} pairs, memory {memory_BSD.shape[1]} x {memory_BSD.shape[2]}, {config.steps} steps"

    def rates(values: list[float]) -> list[float]:
        return [tokens / value for value in values]

    def measured(title: str, aim: str, cached: list[float], other: list[float], **more: Any) -> Measurement:
        return Measurement(
            part="decoding",
            title=f"{title} ({size}, decoder alone)",
            unit="tokens/s",
            aim=aim,
            above=rates(cached),
            below=rates(other),
            more={"seconds_cached": cached, "seconds_uncached": other, **more},
            environment=where,
        )

    encoder_seconds = statistics.median(encoder) / config.encoder_batch
    return [
        measured(
            "greedy decoding, cached over uncached",
            "at least 4",
            seconds["cached"],
            seconds["uncached"],
            share_of_equal_tokens=agree,
            encoder_seconds_a_pair=encoder_seconds,
            decoder_seconds_a_pair_cached=statistics.median(seconds["cached"]) / config.batch_size,
            encoder_seconds=encoder,
            encoder_batch=config.encoder_batch,
        ),
        measured(
            "greedy decoding, cached over uncached that projects its memory once",
            "",
            seconds["cached"],
            seconds["projected once"],
        ),
        measured(
            f"beam search with {config.beams} beams, cached over uncached",
            "",
            beam_seconds["cached"],
            beam_seconds["uncached"],
        ),
    ]
