"""Caption tokens per second: of one artifact as the papers' tables report them, or of several, interleaved.

Counted as ProCap's official code does: pairs x longest caption, padding included, over the time from decoded images to
words. The official code always takes all steps; a decoder here may stop when all captions of the batch have ended.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from idc.captioning.contract import Captioner
from idc.captioning.loading import LoadConfig
from idc.config import missing
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import words
from idc.systems import load_captioner
from idc.training.artifact import num_parameters, read_artifact
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


def measure_throughput(job: ThroughputJob, overwrite: bool = False) -> str:
    """Measure, write the figures to ``job.out``, and return them as a table. An artifact that is not a captioner, a
    split without pairs, or an ``out`` that exists without ``overwrite`` is a ValueError."""
    if Path(job.out).exists() and not overwrite:
        raise ValueError(f"out: {job.out!r} exists; choose another file, or replace it with --overwrite")
    import torch

    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    befores, afters, references = _batch(job.pairs, job.split, job.num_pairs)
    captioners = [load_captioner(path, device, job.speed) for path in job.artifacts.values()]
    tokens = 1 + max((len(words(text)) for texts in references for text in texts), default=0)  # 1: the end token
    result: dict[str, Any] = {
        "pairs": len(befores), "tokens": tokens, "device": device, "speed": job.speed, "cores": usable_cores(),
        "captioners": {},
    }  # fmt: skip
    lines = []
    timings = time_interleaved(captioners, befores, afters, device, job.rounds)
    for (name, path), seconds in zip(job.artifacts.items(), timings, strict=True):
        parameters, of = num_parameters(path), read_artifact(path).base
        base = of and (of.source if of.revision else Path(of.source).name)  # its parameters are not counted
        result["captioners"][name] = {"artifact": path, "parameters": parameters, "base": base, "seconds": seconds}
        size = f"{parameters:,} and {base}" if base else f"{parameters:,}"
        rates = sorted(len(befores) * tokens / each for each in seconds)
        lines.append(
            f"{name:{max(map(len, job.artifacts))}}  {size:>13} parameters  {statistics.median(rates):>9,.0f} tokens a "
            f"second ({rates[0]:,.0f} to {rates[-1]:,.0f} in {len(rates)} rounds)"
        )
    write_text(Path(job.out), json.dumps(result, indent=1) + "\n")
    return "\n".join([*lines, f"{len(befores)} pairs, {tokens} tokens each, {device}, {usable_cores()} cores"])


def tokens_per_second(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Measure the speed of a captioner, the median of five rounds; an entry of a sweep's step, to be run alone on the
    machine.

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
    of = None if split == "all" else split
    rows = list(itertools.islice(iter_rows(pairs, ["before", "after", "captions"], of), count))
    if not rows:
        raise ValueError(f"{pairs} has no pairs{'' if of is None else f' of the split {of!r}'}")
    befores, afters = ([decode_image(row[role]) for row in rows] for role in ("before", "after"))
    return befores, afters, [list(row["captions"]) for row in rows]
