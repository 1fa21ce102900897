"""Runs commands one after another or side by side, as processes of this machine: one line per command on the terminal,
its output in a log."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import NamedTuple

from idc.util.cores import usable_cores


class Used(NamedTuple):
    """Time of a run of commands.

    Attributes:
        seconds: in total.
        seconds_of: title -> seconds.
    """

    seconds: float
    seconds_of: dict[str, float]


Command = tuple[str, list[str], int | None]
"""Title, arguments of Python, and the number of its queue: of adjacent commands, the queues run side by side, each in
order. ``None``: alone."""


def run_commands(commands: Sequence[Command], root: Path, logs: Path) -> Used:
    """Run commands of this project in order in the working directory.

    Commands in queues get ``OMP_NUM_THREADS``, their queue's share of the cores; the next one alone waits for all of
    them.

    Args:
        commands: titles, arguments, and queues.
        root: folder that contains ``jobs/``, for scripts and presets missing in the working directory.
        logs: folder for ``01.log`` and so on.

    Raises:
        RuntimeError: a command failed; the message ends with its last log lines.
    """
    began = time.monotonic()
    seconds_of: dict[str, float] = {}
    print(f"{len(commands)} steps; the output of each is in {logs}", flush=True)

    def run_one(number: int, threads: int | None) -> None:
        title, command, _ = commands[number - 1]
        line = StepLine(f"[{number}/{len(commands)}] {title}", logs / f"{number:02d}.log", alone=threads is None)
        try:
            with line:
                line.write(shlex.join(command) + "\n")
                run = [sys.executable, *(_resolved(word, root) for word in command)]
                _run(run, line.write, {} if threads is None else {"OMP_NUM_THREADS": str(threads)})
        except RuntimeError as error:
            raise RuntimeError(f"{error}; the end of {line.log}:\n{line.end()}") from None
        seconds_of[title] = round(line.seconds, 1)

    for queues in _side_by_side(commands):
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


def _side_by_side(commands: Sequence[Command]) -> list[list[list[int]]]:
    """The numbers of the commands, from 1: in groups one after another, of queues that run at the same time."""
    groups: list[dict[int | None, list[int]]] = []
    for number, (_, _, queue) in enumerate(commands, start=1):
        if queue is None:
            groups.append({None: [number]})
        elif groups and None not in groups[-1]:
            groups[-1].setdefault(queue, []).append(number)
        else:
            groups.append({queue: [number]})
    return [list(group.values()) for group in groups]


def _run(command: Sequence[str], show: Callable[[str], None], settings: dict[str, str]) -> None:
    """Run a command as a child of this process with further environment variables, show its output as it comes, and
    wait for its end."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}  # a Ray of its own
    environment |= settings
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


def _resolved(argument: str, root: Path) -> str:
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
