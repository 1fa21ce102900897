"""Caption tokens per second: of one artifact as the papers' tables report them, or of several, interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from idc.captioning.contract import Captioner
from idc.captioning.loading import LoadConfig
from idc.config import missing
from idc.data.images import decode_image
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.data.text import words
from idc.systems import load_captioner
from idc.training.artifact import captioning_identity, num_parameters, read_artifact
from idc.util.atomic import write_text
from idc.util.cores import usable_cores

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

_PAIRS, _ROUNDS = 32, 5


class ThroughputJob(LoadConfig):
    """Measure the speed of captioners in one process, interleaved, so that the machine is the same for all."""

    artifacts: dict[str, str] = Field(min_length=1)
    """Name -> artifact of a captioner."""
    pairs: str = Field(min_length=1)
    """Folder of pairs to caption."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Split to take the pairs from."""
    num_pairs: int = Field(_PAIRS, ge=1)
    """Pairs of the one batch, the first of the split."""
    rounds: int = Field(_ROUNDS, ge=1)
    """Measured rounds, after one round to warm up; each captions the batch once with every captioner in turn."""
    out: str = Field(min_length=1)
    """JSON file to write."""

    def errors(self) -> Iterator[str]:
        if self.base.source is not None:
            yield "base.source: several captioners have no one base; put it where their artifacts name it"
        if self.endpoint is not None:
            yield "endpoint: the models that are measured run here; leave it out"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        for name, path in self.artifacts.items():
            yield from missing(path, f"artifacts.{name}")


class CaptionerSpeed(BaseModel):
    """The speed of one captioner.

    Attributes:
        artifact: its folder.
        identity: :func:`idc.training.artifact.captioning_identity`.
        parameters: :func:`idc.training.artifact.num_parameters`.
        seconds: of each round.
        base: the base model, whose parameters are not counted; None if it has none.
    """

    model_config = ConfigDict(extra="forbid")
    artifact: str
    identity: str
    parameters: int
    seconds: list[float]
    base: str | None = None

    @property
    def size(self) -> str:
        """The parameters in words, with the base."""
        return f"{self.parameters:,}" if self.base is None else f"{self.parameters:,} and {self.base}"


class Throughput(BaseModel):
    """The speeds of captioners, measured interleaved.

    Attributes:
        fingerprint: of captioners, pairs and settings.
        pairs: of the batch.
        tokens: of the longest reference of these pairs, with its end token; the same for all captioners.
        device, speed: how they were loaded.
        cores: that the process may use.
        captioners: by name.
    """

    model_config = ConfigDict(extra="forbid")
    fingerprint: str
    pairs: int
    tokens: int
    device: str
    speed: str
    cores: int
    captioners: dict[str, CaptionerSpeed]

    def tokens_per_second(self, name: str) -> tuple[float, float, float]:
        """Median, lowest and highest of the rounds: pairs x longest caption, padding included, over the time from
        decoded images to words, as ProCap's official code counts."""
        each = [self.pairs * self.tokens / seconds for seconds in self.captioners[name].seconds]
        return statistics.median(each), min(each), max(each)

    @classmethod
    def read(cls, path: str | Path) -> Throughput:
        """Read a file of :func:`measure_throughput`.

        Raises:
            ValueError: it is missing or something else.
        """
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            raise ValueError(f"{path} is not a measured speed of jobs/evaluate.py: {error}") from None


def speed_table(result: Throughput) -> str:
    """A line for each captioner, and one for what was measured."""
    width = max(map(len, result.captioners))
    lines = []
    for name, timing in result.captioners.items():
        median, low, high = result.tokens_per_second(name)
        rounds = f"{low:,.0f} to {high:,.0f} in {len(timing.seconds)} rounds"
        lines.append(f"{name:{width}}  {timing.size:>13} parameters  {median:>9,.0f} tokens a second ({rounds})")
    lines.append(f"{result.pairs} pairs, {result.tokens} tokens each, {result.device}, {result.cores} cores")
    return "\n".join(lines)


def measure_throughput(job: ThroughputJob, overwrite: bool = False) -> Throughput:
    """Measure, and write ``job.out``; a finished measurement of the same captioners and settings is returned.

    Raises:
        ValueError: an artifact is not a captioner, the split has no pairs, or ``out`` is another measurement and
            ``overwrite`` is off.
    """
    identities = {name: captioning_identity(path) for name, path in job.artifacts.items()}
    settings = job.model_dump(mode="json", exclude={"artifacts", "pairs", "out"})
    whole = fingerprint("throughput", list(identities.items()), read_manifest(job.pairs).fingerprint, settings)
    if Path(job.out).exists() and not overwrite:
        if (earlier := Throughput.read(job.out)).fingerprint == whole:
            return earlier
        raise ValueError(
            f"out: {job.out!r} is a measurement of other captioners or settings; choose another file, or replace it "
            "with --overwrite"
        )
    import torch

    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    befores, afters, references = _batch(job.pairs, job.split, job.num_pairs)
    captioners = {name: load_captioner(path, device, job.speed) for name, path in job.artifacts.items()}
    seconds = time_interleaved(list(captioners.values()), befores, afters, device, job.rounds)
    done = Throughput(
        fingerprint=whole,
        pairs=len(befores),
        tokens=1 + max((len(words(text)) for texts in references for text in texts), default=0),
        device=device,
        speed=job.speed,
        cores=usable_cores(),
        captioners={
            name: CaptionerSpeed(
                artifact=path,
                identity=identities[name],
                parameters=num_parameters(path),
                seconds=round_seconds,
                base=_base_of(path),
            )
            for (name, path), round_seconds in zip(job.artifacts.items(), seconds, strict=True)
        },
    )
    write_text(Path(job.out), done.model_dump_json(indent=1) + "\n")
    return done


def _base_of(artifact: str) -> str | None:
    """Name of the base model of an artifact: its id, or the name of its folder."""
    base = read_artifact(artifact).base
    return None if base is None else base.source if base.revision else Path(base.source).name


def tokens_per_second(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Measure the speed of a captioner; an entry of a sweep's step, to be run alone on the machine.

    Counted as ProCap's official code does: pairs x longest caption, padding included, over the time from decoded images
    to words. The result is the median of five rounds of one batch of 32 pairs, after one warm-up round. A decoder may
    stop when all captions of the batch have ended, while the official code always takes all steps.

    Args:
        payload: ``artifact``, ``device``, ``speed``, ``pairs`` (folder), ``split``, ``tokens`` (of the longest
            caption).
    """
    captioner = load_captioner(payload["artifact"], payload["device"], payload["speed"])
    befores, afters, _ = _batch(payload["pairs"], payload["split"], _PAIRS)
    (seconds,) = time_interleaved([captioner], befores, afters, payload["device"], _ROUNDS)
    rate = len(befores) * payload["tokens"] / statistics.median(seconds)
    return {"tokens_per_second": rate, "seconds": seconds, "pairs": len(befores)}


def time_interleaved(
    captioners: Sequence[Captioner],
    befores: Sequence[np.ndarray],
    afters: Sequence[np.ndarray],
    device: str,
    rounds: int,
) -> list[list[float]]:
    """Seconds per captioner and round of captioning one batch; the captioners take turns, after a round to warm up."""
    import torch

    seconds: list[list[float]] = [[] for _ in captioners]
    for _ in range(1 + rounds):
        for captioner, round_seconds in zip(captioners, seconds, strict=True):
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)  # calls return before the GPU is done
            started = time.perf_counter()
            captioner(befores, afters)
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            round_seconds.append(time.perf_counter() - started)
    return [round_seconds[1:] for round_seconds in seconds]


def _batch(pairs: str, split: str, count: int) -> tuple[list[np.ndarray], list[np.ndarray], list[list[str]]]:
    """The first pairs of a split: before images, after images, references."""
    befores, afters, references = [], [], []
    of = None if split == "all" else split
    for row in iter_rows(pairs, ["before", "after", "captions"], of, batch_size=min(count, _PAIRS)):
        befores.append(decode_image(row["before"]))
        afters.append(decode_image(row["after"]))
        references.append(list(row["captions"]))
        if len(befores) == count:
            break
    if not befores:
        raise ValueError(f"{pairs} has no pairs{'' if of is None else f' of the split {of!r}'}")
    return befores, afters, references
