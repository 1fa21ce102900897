"""Torch's threads on a machine with other work: what the short wait of :data:`idc.SPIN_COUNT` changes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pydantic import Field

from benchmarks.measurement import Measurement, environment
from benchmarks.processes import apart, say, turns, variable
from idc import SPIN_COUNT, SPIN_VARIABLE
from idc.config import ConfigModel
from idc.cores import usable_cores

LIBRARY = "300000"
"""libgomp's own, if nothing is set."""


class ThreadsConfig(ConfigModel):
    """Training steps of a small transformer (3 layers of width 128, 16 x 64 tokens), each round in a process of its
    own."""

    threads: int = Field(2, ge=1)
    """Torch threads."""
    seconds: float = Field(5.0, gt=0)
    """Length of a round."""
    rounds: int = Field(4, ge=1)
    """Rounds of each kind, by turns."""


def measure_threads(config: ThreadsConfig) -> Iterator[Measurement]:
    """Two rows: on the machine as it is, and beside as many busy processes as it has cores."""
    where = environment(threads=config.threads)
    for others in (0, usable_cores()):
        found: dict[str, list[float]] = {SPIN_COUNT: [], LIBRARY: []}
        with busy(others):
            for count in turns((SPIN_COUNT, LIBRARY), config.rounds):
                with variable(SPIN_VARIABLE, count):
                    found[count].append(apart(seconds_a_step, config.threads, config.seconds))
                say(f"threads: {others} busy processes, {count}: {found[count][-1]:.4f} s a step")
        beside = "without other work" if not others else f"beside {others} busy processes"
        yield Measurement(
            part="threads",
            title=f"training step, {config.threads} threads that wait shortly over as libgomp does, {beside}",
            unit="s",
            better="lower",
            aim="below 1" if others else "at most 1.02",
            above=found[SPIN_COUNT],
            below=found[LIBRARY],
            environment=where,
        )


@contextmanager
def busy(number: int) -> Iterator[None]:
    """That many processes which compute all the time."""
    with ExitStack() as stack:
        for _ in range(number):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def seconds_a_step(threads: int, seconds: float) -> float:
    """Mean time of a step, after three that do not count."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randn(16, 64, 128)
    steps, began = -3, time.perf_counter()
    while steps <= 0 or time.perf_counter() - began < seconds:
        if steps == 0:
            began = time.perf_counter()
        loss = (model(tokens) - tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1
    return (time.perf_counter() - began) / steps
