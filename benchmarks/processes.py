"""Helpers for benchmarks of whole jobs: runs in fresh processes, in turns, runs that are paused between their turns,
and a stage that timestamps chunks.

Each run gets a fresh process, with its own Ray or none: a loaded DeepSpeed, a grown heap or a second Ray would change
the measurement.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.measurement import Stamp, peak_memory_mib
from idc.captioning.contract import Captioner
from idc.data.images import decode_image
from idc.data.pipeline import Batch, num_rows

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")
STOPPED_S = 10.0
"""Longest wait for a process to stop, in seconds."""


def apart(function: Callable[..., T], *args: Any) -> T:
    """Call a module-level function in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder for outputs that are not kept."""
    folder = Path(tempfile.mkdtemp(prefix="idc-benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def turns(kinds: Sequence[str], rounds: int) -> Iterator[str]:
    """``kinds`` in order, then backwards, and so on, so that drift over time affects all of them alike."""
    for number in range(rounds):
        yield from kinds if number % 2 == 0 else reversed(kinds)


def say(text: str) -> None:
    print(text, flush=True)


class PausedRun:
    """A run in a process of its own. It and its descendants, a Ray that it starts included, are stopped (SIGSTOP)
    between its turns: they then use no CPU, and runs that take turns of seconds are compared at the same speed of the
    machine.
    """

    def __init__(self, function: Callable[..., Any], *args: Any):
        self._process = multiprocessing.get_context("spawn").Process(target=function, args=args)
        self._process.start()

    def processes(self) -> list[psutil.Process]:
        """The run's process, then its descendants."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def pause(self) -> None:
        stopped: set[int] = set()
        while more := [process for process in self.processes() if process.pid not in stopped]:
            self._each(more, "suspend")  # a process that was not stopped yet may have started another one
            stopped.update(process.pid for process in more)
            self._wait_stopped(more)

    def resume(self) -> None:
        self._each(self.processes(), "resume")

    def turn(self, reached: Callable[[], bool]) -> None:
        """Let the run go on until ``reached``.

        Raises:
            RuntimeError: it ended before.
        """
        self.resume()
        while not reached():
            if not self._process.is_alive():
                raise RuntimeError(f"the run ended with status {self._process.exitcode} before its turns were over")
            time.sleep(0.02)
        self.pause()

    def cpu_seconds(self) -> dict[tuple[int, str], float]:
        """CPU seconds so far of every living process, by process id and name."""
        import psutil

        seconds = {}
        for process in self.processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                seconds[process.pid, process_name(process.cmdline())] = times.user + times.system
        return seconds

    def close(self) -> None:
        """End the run and all its descendants at once."""
        import psutil

        self.pause()  # so that none starts another one meanwhile
        processes = self.processes()
        self._each(processes, "kill")
        self._process.join()
        psutil.wait_procs(processes, timeout=10)

    @staticmethod
    def _wait_stopped(processes: Sequence[psutil.Process]) -> None:
        """Wait until the signal has arrived: on a busy machine a process may run on for a moment.

        Raises:
            RuntimeError: it has not arrived within :data:`STOPPED_S`.
        """
        import psutil

        still = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
        end = time.monotonic() + STOPPED_S
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                while process.status() not in still:
                    if time.monotonic() > end:
                        raise RuntimeError(f"process {process.pid} did not stop within {STOPPED_S} s")
                    time.sleep(0.001)

    @staticmethod
    def _each(processes: Sequence[psutil.Process], action: str) -> None:
        import psutil

        for process in processes:
            with suppress(psutil.Error):
                getattr(process, action)()


def process_name(command: Sequence[str]) -> str:
    """The name of one of Ray's processes, or "the run"."""
    first = command[0] if command else ""
    if first.startswith("ray::"):
        return first.split()[0].partition(".")[0]
    programs = ("gcs_server", "raylet", "dashboard.py", "agent.py", "log_monitor.py", "monitor.py")
    names = {Path(word).name for word in command[:4]}
    return next((name for name in programs if name in names), "the run")


class Stamper:
    """A final stage that passes chunks on and logs their time and the worker's peak memory."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / f"{os.getpid()}.jsonl"

    def __call__(self, batch: Batch) -> Batch:
        line = {"seconds": time.time(), "rows": num_rows(batch), "peak_mib": peak_memory_mib()}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        return batch


def stamps_of(folder: Path) -> list[Stamp]:
    """The stamps that a job's stampers wrote into a folder."""
    return [
        Stamp(worker=worker, seconds=line["seconds"], rows=line["rows"])
        for worker, written_lines in written_lines(folder).items()
        for line in written_lines
    ]


def written_lines(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {
        int(path.stem): [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }


def caption_alone(
    load_captioner: Callable[[], Captioner],
    images: dict[str, bytes],
    batch: int,
    threads: int,
    seconds: float,
    ready: Any,
) -> dict[str, float]:
    """Decode and caption the same pair, batch after batch, for ``seconds``; runs in its own process. ``cpu_ms`` is its
    processor time a pair.

    Args:
        ready: barrier at which all processes wait before the timed part.
    """
    import torch

    torch.set_num_threads(threads)
    captioner = load_captioner()

    def once() -> None:
        before = [decode_image(images["before"]) for _ in range(batch)]
        after = [decode_image(images["after"]) for _ in range(batch)]
        captioner.describe(before, after)

    for _ in range(3):
        once()
    ready.wait()
    took: list[float] = []
    used, began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        once()
        took.append(time.perf_counter() - start)
    return {
        "pairs": float(batch * len(took)),
        "cpu_ms": (time.process_time() - used) * 1e3 / (batch * len(took)),
        "seconds": time.perf_counter() - began,
        "median_ms": statistics.median(took) * 1e3,
    }
