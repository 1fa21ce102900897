"""Caption tokens per second, as the papers' tables report them.

Counted as ProCap's official code does: pairs x longest caption, padding included, over the time from decoded images to
words. The official code always takes all steps; a decoder here may stop when all captions of the batch have ended.
"""

from __future__ import annotations

import itertools
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
    """Measure the speed of a captioner, the median of five rounds after one to warm up; an entry of a sweep's step, to
    be run alone on the machine.

    Args:
        payload: ``artifact``, ``device``, ``speed``, ``pairs`` (folder), ``split``, ``tokens`` (of the longest
            caption).
    """
    import torch

    device, split = payload["device"], payload["split"]
    captioner = load_captioner(payload["artifact"], device, payload["speed"])
    pairs = iter_rows(payload["pairs"], ["before", "after"], None if split == "all" else split)
    rows = list(itertools.islice(pairs, _PAIRS))
    if not rows:
        raise ValueError(f"{payload['pairs']} has no pairs of the split {split!r}")
    befores, afters = ([decode_image(row[role]) for row in rows] for role in ("before", "after"))
    seconds = []
    for _ in range(1 + _ROUNDS):
        started = time.perf_counter()
        captioner(befores, afters)
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)  # calls return before the GPU is done
        seconds.append(time.perf_counter() - started)
    rate = len(rows) * payload["tokens"] / statistics.median(seconds[1:])
    return {"tokens_per_second": rate, "seconds": seconds[1:], "pairs": len(rows)}
