"""Caption tokens per second of an artifact, as the papers' tables report them."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.systems import load_captioner

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

_PAIRS, _ROUNDS = 32, 5


def tokens_per_second(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Measure the speed of a captioner; an entry of a sweep's step, to be run alone on the machine.

    Counted as ProCap's official code does: pairs x longest caption, padding included, over the time from decoded images
    to words. The result is the median of five rounds of one batch of 32 pairs, after one warm-up round. A decoder may
    stop when all captions of the batch have ended, while the official code always takes all steps.

    Args:
        payload: ``artifact``, ``device``, ``speed``, ``pairs`` (folder), ``split``, ``tokens`` (of the longest
            caption).
    """
    import torch

    captioner = load_captioner(payload["artifact"], payload["device"], payload["speed"])
    of = None if payload["split"] == "all" else payload["split"]
    befores, afters = [], []
    for row in iter_rows(payload["pairs"], ["before", "after"], of, batch_size=_PAIRS):
        befores.append(decode_image(row["before"]))
        afters.append(decode_image(row["after"]))
        if len(befores) == _PAIRS:
            break
    seconds = []
    for _ in range(1 + _ROUNDS):
        if payload["device"] == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        captioner(befores, afters)
        if payload["device"] == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    return {"tokens_per_second": len(befores) * payload["tokens"] / median, "seconds": seconds, "pairs": len(befores)}
