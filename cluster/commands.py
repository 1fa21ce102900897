"""Runs commands one after another or side by side, as processes of this machine, or as jobs of a local Ray: one line
per command on the terminal, its output in a log."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import NamedTuple

from cluster.config import ClusterConfig
from cluster.session import environment_restored, session, submit
from idc.cores import usable_cores


class Used(NamedTuple):
    """Time of a run of commands.

    Attributes:
        seconds: in total, including the start of Ray if there is one.
        seconds_of: title -> seconds.
    """

    seconds: float
    seconds_of: dict[str, float]


Command = tuple[str, list[str], int | None]
"""Title, arguments of Python, and the number of its queue: of adjacent commands, the queues run side by side, each in
order. ``None``: alone."""


def run_commands(commands: Sequence[Command], root: Path, logs: Path, *, on_ray: bool) -> Used:
    """Run commands of this project in order in the working directory.

    Commands in queues get ``OMP_NUM_THREADS``, their queue's share of the cores; the next one alone waits for all of
    them. On Ray all run one after another.

    Args:
        commands: titles, arguments, and queues.
        root: folder that contains ``jobs/``, for scripts and presets missing in the working directory.
        logs: folder for ``01.log`` and so on.
        on_ray: submit them to a Ray started for them, with its dashboard, through the Jobs API.

    Raises:
        RuntimeError: a command failed; the message ends with its last log lines.
    """
    began = time.monotonic()
    seconds_of: dict[str, float] = {}
    print(f"{len(commands)} steps; the output of each is in {logs}", flush=True)
    with ExitStack() as ending:
        ending.enter_context(environment_restored())
        os.environ.pop("RAY_ADDRESS", None)  # start a new Ray here
        url = here = None
        if on_ray:
            url = ending.enter_context(session(ClusterConfig(dashboard=True)))
            print(f"Ray dashboard: {url}", flush=True)
            import ray

            # Without, the driver of a job joins any Ray of this machine, also another user's.
            here = f"cd {shlex.quote(str(Path.cwd()))} && RAY_ADDRESS={ray.get_runtime_context().gcs_address}"

        def run_one(number: int, threads: int | None) -> None:
            title, command, _ = commands[number - 1]
            line = StepLine(f"[{number}/{len(commands)}] {title}", logs / f"{number:02d}.log", alone=threads is None)
            try:
                with line:
                    line.write(shlex.join(command) + "\n")
                    run = [sys.executable, *(script_or_preset(word, root) for word in command)]
                    if url is None:
                        run_here(run, line.write, {} if threads is None else {"OMP_NUM_THREADS": str(threads)})
                    else:
                        submit(url, f"{here} {shlex.join(run)}", line.write)
            except RuntimeError as error:
                raise RuntimeError(f"{error}; the end of {line.log}:\n{line.end()}") from None
            seconds_of[title] = round(line.seconds, 1)

        for queues in _side_by_side(commands, on_ray):
            failed = Event()
            threads = max(1, usable_cores() // len(queues)) if len(queues) > 1 else None

            def run_queue(numbers: Sequence[int], threads: int | None = threads, failed: Event = failed) -> None:
                for number in numbers:
                    if failed.is_set():
                        return
                    try:
                        run_one(number, threads)
                    except BaseException:
                        failed.set()
                        raise

            with ThreadPoolExecutor(len(queues)) as pool:
                for running in [pool.submit(run_queue, numbers) for numbers in queues]:
                    running.result()
    return Used(round(time.monotonic() - began, 1), seconds_of)


def _side_by_side(commands: Sequence[Command], on_ray: bool) -> list[list[list[int]]]:
    """The numbers of the commands, from 1: in groups one after another, of queues that run at the same time."""
    groups: list[dict[int | None, list[int]]] = []
    for number, (_, _, queue) in enumerate(commands, start=1):
        if queue is None or on_ray:
            groups.append({None: [number]})
        elif groups and None not in groups[-1]:
            groups[-1].setdefault(queue, []).append(number)
        else:
            groups.append({queue: [number]})
    return [list(group.values()) for group in groups]


def run_here(command: Sequence[str], show: Callable[[str], None], settings: Mapping[str, str] | None = None) -> None:
    """Run a command as a child of this process, show its output as it comes, and wait for its end.

    Args:
        settings: environment variables in addition to this process's.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, **(settings or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as child:
        assert child.stdout is not None
        # Incremental: a piece of output may end within a character.
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        try:
            while piece := os.read(child.stdout.fileno(), 1 << 16):
                show(decode(piece))
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise RuntimeError(f"{shlex.join(command[1:2])} ended with status {child.returncode}")


def script_or_preset(argument: str, root: Path) -> str:
    """Resolve the path of a job's script or preset from any working directory; return other arguments unchanged."""
    return argument if not argument.startswith("jobs/") or Path(argument).exists() else str(root / argument)


class StepLine:
    """The output line of a step, and its log. On a terminal the line also shows the last line of the log.

    Args:
        alone: no other line is written at the same time; without, a line is written whole, at the end of its step.
    """

    def __init__(self, title: str, log: Path, alone: bool = True):
        self.title, self.log, self.alone = title, log, alone
        self.seconds = 0.0

    def __enter__(self) -> StepLine:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.log.open("w", encoding="utf-8")
        self._began = time.time()
        self._live = sys.stdout.isatty()
        if not self._live and self.alone:
            print(self.title, end="", flush=True)
        return self

    def write(self, text: str) -> None:
        """Write a piece of the step's output to the log."""
        self._file.write(text)
        self._file.flush()
        lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
        if self._live and lines:
            last = re.sub(r"\x1b\[[0-9;]*m|^\(.*?pid=\d+.*?\) ?", "", lines[-1])
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{f'{self.title}: {last}'[:width]}", end="", flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        self.seconds = time.time() - self._began
        ended = "failed" if kind is not None else f"{self.seconds:.0f} s"
        head = f"\r\x1b[K{self.title}" if self._live else "" if self.alone else self.title
        print(f"{head}: {ended}", flush=True)

    def end(self, lines: int = 20) -> str:
        """The last lines of the log."""
        text = self.log.read_text(encoding="utf-8").replace("\r", "\n")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
