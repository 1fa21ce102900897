"""Reads the state of a training, a data set and a sweep from its folder."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from idc import heartbeat
from idc.atomic import modified, read_object
from idc.status.work import Work
from idc.sweep.progress import PLAN, read_progress

RANK_0 = ".rank0.json"
"""Written by rank 0 of a training when it starts: ``node``, ``pid``, ``steps`` (of the whole run)."""
LOG, CONFIG, RESULT, FATAL, MANIFEST = "log.jsonl", "config.json", "result.json", "fatal.json", "manifest.json"

_LINES = 20
"""Last lines of a log from which its usual interval is taken."""
_TAIL = 1 << 16


def is_training(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and any(
        (folder / name).exists() for name in (LOG, RANK_0, heartbeat.FILE, RESULT)
    )


def is_data(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def is_sweep(folder: Path) -> bool:
    return (folder / PLAN).is_file()


def training(folder: Path, name: str, times: float, now: float) -> Work:
    """A training run.

    Args:
        times: usual intervals without a new line after which it counts as stalled.
    """
    work = Work("training", name, str(folder))
    config, rank_0 = read_object(folder / CONFIG) or {}, read_object(folder / RANK_0)
    train = config.get("train", {})
    lines = _last_lines(folder / LOG)
    work.total = (rank_0 or {}).get("steps") or train.get("steps")
    if lines:
        last = lines[-1]
        work.done = last["step"]
        rates = [line["seconds_per_step"] for line in lines if "seconds_per_step" in line]
        rate = statistics.median(rates) if rates else None
        work.metrics = {
            key: value for key, value in last.items()
            if key == "loss" or key.startswith("validation/") or key == "samples_per_second"
        }  # fmt: skip
        for line in reversed(lines):  # the last validation may be some lines ago
            if scores := {key: value for key, value in line.items() if key.startswith("validation/")}:
                work.metrics |= scores
                break
        if rate is not None and work.total is not None:
            work.left_s = rate * max(0, work.total - work.done)
    work.take_sign(heartbeat.read_heartbeat(folder), now)
    if rank_0 is not None:
        work.node, work.pid = rank_0["node"], rank_0["pid"]
    if (result := read_object(folder / RESULT)) is not None:
        work.state, work.reason, work.left_s, work.done = "done", None, None, result["steps"]
        work.total = result["steps"]
        work.metrics = {"loss": result["loss"], **{f"validation/{k}": v for k, v in result["metrics"].items()}}
        return work
    if (fatal := read_object(folder / FATAL)) is not None and work.state != "running":
        work.state, work.reason = "failed", f"{fatal['type']}: {fatal['message']}"
    usual = None
    if len(lines) > 1 and work.left_s is not None:
        gaps = [after["step"] - before["step"] for before, after in itertools.pairwise(lines)]
        usual = statistics.median(gaps) * statistics.median(line["seconds_per_step"] for line in lines)
    times_seen = [at for at in (modified(folder / LOG), work.started) if at is not None]
    work.silent_s = now - max(times_seen) if times_seen else None
    work.find_stalled(usual, times, now)
    if work.state != "running":
        work.left_s = None
    return work


def data(folder: Path, name: str, times: float, now: float) -> Work:
    """A data set: complete, or how many of its chunks are written."""
    manifest = read_object(folder / MANIFEST) or {}
    work = Work("data", name, str(folder), unit="chunks", total=manifest.get("num_chunks"))
    written = sorted(changed_at for part in folder.glob("part-*.parquet") if (changed_at := modified(part)) is not None)
    work.done = len(written)
    work.take_sign(heartbeat.read_heartbeat(folder), now)
    if manifest.get("complete"):
        rows = manifest["num_rows"]
        work.state, work.unit, work.done, work.total = "done", "rows", rows, rows
        work.metrics = {"rejected": manifest["num_rejected"]}
        return work
    started = work.started
    new = [at for at in written if started is None or at >= started]
    rate = (new[-1] - (started if started is not None else new[0])) / len(new) if len(new) > 1 else None
    if work.state == "running":
        seen = [*new[-1:], *([started] if started is not None else [])]
        work.silent_s = now - max(seen) if seen else None
        if rate is not None and work.total is not None:
            work.left_s = rate * max(0, work.total - work.done)
        work.find_stalled(rate, times, now)
    return work


def sweep_work(folder: Path, name: str, now: float) -> Work:
    """A sweep: how many of its trials have an end, and the best so far."""
    progress = read_progress(folder)
    work = Work("sweep", name, str(folder), unit="trials", done=progress.ended, total=progress.total)
    work.take_sign(heartbeat.read_heartbeat(folder), now)
    work.core_hours, work.gpu_hours = progress.core_hours, progress.gpu_hours
    if progress.best is not None:
        work.metrics = {progress.metric: progress.best.value or 0.0}
    if progress.failed:
        work.metrics["failed"] = float(progress.failed)
    if work.state == "stopped" and progress.ended >= progress.total:
        work.state = "done"
    if work.state == "running" and work.started is not None and (since := progress.ended_since(work.started)):
        work.left_s = (now - work.started) / since * (progress.total - progress.ended)
    return work


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            text = file.read()
    except OSError:
        return []
    entries = []
    for line in text.split(b"\n")[-_LINES - 1 :]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "step" in entry:
            entries.append(entry)
    return entries
