"""Runs commands one after another or side by side, as processes of this machine: one line per command on the terminal,
its output in a log."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from idc.util.cores import usable_cores
from idc.util.program import shipped


class Used(NamedTuple):
    """Seconds of a run of commands, in total and by title."""

    seconds: float
    seconds_of: dict[str, float]


Command = tuple[str, list[str], int | None]
"""Title, arguments of Python, and the number of its queue: of adjacent commands, the queues run side by side, each in
order. ``None``: alone."""


def run_commands(commands: Sequence[Command], logs: Path) -> Used:
    """Run commands of this project in order in the working directory.

    Commands in queues get ``OMP_NUM_THREADS``, their queue's share of the cores; the next one alone waits for all of
    them.

    Args:
        logs: folder for ``01.log`` and so on.

    Raises:
        RuntimeError: a command failed; the message ends with its last log lines.
    """
    began = time.monotonic()
    seconds_of: dict[str, float] = {}
    failed = Event()
    logs.mkdir(parents=True, exist_ok=True)
    print(f"{len(commands)} steps; the output of each is in {logs}", flush=True)

    def run_queue(numbers: Sequence[int], threads: int | None) -> None:
        for number in numbers:
            if failed.is_set():
                return
            title, words, _ = commands[number - 1]
            line, command = f"[{number}/{len(commands)}] {title}", [shipped(word) for word in words]
            try:
                seconds_of[title] = _run(line, command, logs / f"{number:02d}.log", threads)
            except BaseException:
                failed.set()
                raise

    for queues in _side_by_side(commands):
        threads = max(1, usable_cores() // len(queues)) if len(queues) > 1 else None
        with ThreadPoolExecutor(len(queues)) as pool:
            for running in [pool.submit(run_queue, numbers, threads) for numbers in queues]:
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


def _run(line: str, command: Sequence[str], log: Path, threads: int | None) -> float:
    """Run a command as a child of this process, with its output in the log, and print its line; returns the seconds.
    On a terminal the line shows the log's last one meanwhile.

    Args:
        threads: of a command beside others, whose line is written whole, at its end; None for one that runs alone.
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}  # a Ray of its own
    environment |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    began, ended, live = time.monotonic(), "failed", sys.stdout.isatty()
    head = f"\r\x1b[K{line}" if live else line
    if threads is None and not live:
        print(line, end="", flush=True)
        head = ""
    try:
        with (
            log.open("w", encoding="utf-8") as file,
            subprocess.Popen([sys.executable, *command], env=environment, **options) as child,
        ):
            print(shlex.join(command), file=file, flush=True)
            try:
                for text in child.stdout or ():  # a carriage return ends a line, too
                    print(text, end="", file=file, flush=True)
                    if live and text.strip():
                        last = re.sub(r"\x1b\[[0-9;]*m|^\(.*?pid=\d+.*?\) ?", "", text.strip())
                        width = shutil.get_terminal_size().columns - 1
                        print(f"\r\x1b[K{f'{line}: {last}'[:width]}", end="", flush=True)
            except BaseException:
                child.terminate()
                raise
        if child.returncode:
            end = "".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-20:])
            name = shlex.join(command[:1])
            raise RuntimeError(f"{name} ended with status {child.returncode}; the end of {log}:\n{end.rstrip()}")
        ended = f"{time.monotonic() - began:.0f} s"
    finally:
        print(f"{head}: {ended}", flush=True)
    return round(time.monotonic() - began, 1)
