"""``python -m serve.app`` as a user starts it: processor time and latency of a request, by turns with the captioner
alone on the same pair.

The load comes from threads of this process, over connections that stay open; only the time of the command and of the
processes that it starts is counted.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from benchmarks.measurement import Measurement, this_environment
from benchmarks.processes import caption_alone, say, scratch
from idc.captioning.contract import Captioner
from idc.config import ConfigModel
from idc.data.store import iter_rows

if TYPE_CHECKING:
    import psutil

_START_S = 300.0
"""How long the command may take until it serves."""


class ServeCommandConfig(ConfigModel):
    """`python -m serve.app`, compared with the captioner without a server."""

    artifact: str = "shipped"
    """Captioner: a folder, or a name of `--artifact`."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs; the first pair of its test split is used in all requests."""
    connections: tuple[int, ...] = Field((1, 8, 32, 64), min_length=1)
    """Concurrent requests of each level."""
    requests: int = Field(20, ge=1)
    """Requests of each connection; a level of one connection has three times as many."""
    rounds: int = Field(5, ge=1)
    """Turns, each with a command that is started anew."""
    port: int = Field(8124, ge=1024, le=65535)
    """Port of the command."""


def serve_command(config: ServeCommandConfig, load_captioner: Callable[[], Captioner]) -> list[Measurement]:
    """Processor time at each level, the latency of a request alone, and memory.

    Args:
        load_captioner: loads the captioner alone; picklable.

    Raises:
        ValueError: the command does not start, or a request is not answered by 200.
    """
    where = this_environment(1)
    row = next(iter(iter_rows(config.pairs, ["before", "after"], split="test", batch_size=1)))
    images = {name: row[name] for name in ("before", "after")}
    body = json.dumps({name: base64.b64encode(image).decode() for name, image in images.items()}).encode()
    alone = partial(_alone, load_captioner, images)
    batched_ms: list[float] = []
    alone_ms: list[float] = []
    latencies_ms: list[float] = []
    memory_mib: list[float] = []
    used_ms: defaultdict[int, list[float]] = defaultdict(list)
    for _ in range(config.rounds):
        batched_ms.append(alone(16)["cpu_ms"])
        alone_ms.append(alone(1)["median_ms"])
        with _command(config) as process:
            _send(config.port, body, 8, config.requests)
            for connections in config.connections:
                before = _cpu_seconds(process)
                took = _send(config.port, body, connections, config.requests * (3 if connections == 1 else 1))
                used_ms[connections].append((_cpu_seconds(process) - before) * 1e3 / len(took))
                if connections == 1:
                    latencies_ms.append(statistics.median(took) * 1e3)
            memory_mib.append(sum(_each(process, lambda member: member.memory_full_info().pss)) / 2**20)
        levels = ", ".join(f"{connections}: {used_ms[connections][-1]:.1f}" for connections in config.connections)
        say(f"serve_command: CPU ms a request at {levels}; the captioner alone {batched_ms[-1]:.1f}")
    rows = [
        Measurement(
            part="serve_command",
            title="processor time of a pair by the captioner alone, in batches of 16, over that of a request, "
            f"{connections} connection{'s' if connections > 1 else ''}",
            unit="CPU ms",
            better="neither",
            aim={32: "at least 0.85", 64: "at least 0.9"}.get(connections, ""),
            above=batched_ms,
            below=used_ms[connections],
            environment=where,
        )
        for connections in config.connections
    ]
    if latencies_ms:
        added = statistics.median(whole - part for whole, part in zip(latencies_ms, alone_ms, strict=True))
        rows.append(
            Measurement(
                part="serve_command",
                title="median of a request alone over the captioner alone",
                unit="ms",
                aim="adds at most 8 ms",
                above=latencies_ms,
                below=alone_ms,
                more={"added_ms": round(added, 1)},
                environment=where,
            )
        )
    memory = "memory (PSS) of the command and its processes, after the load"
    return [*rows, Measurement(part="serve_command", title=memory, unit="MiB", above=memory_mib, environment=where)]


def _alone(load_captioner: Callable[[], Captioner], images: dict[str, bytes], batch: int) -> dict[str, float]:
    spawn = get_context("spawn")
    with spawn.Pool(1) as pool, spawn.Manager() as manager:
        return pool.apply(caption_alone, (load_captioner, images, batch, 1, 2.0, manager.Barrier(1)))


@contextmanager
def _command(config: ServeCommandConfig) -> Iterator[psutil.Process]:
    """The command while it serves, with one replica of one thread."""
    import psutil

    settings = [f"models.demo={config.artifact}", f"port={config.port}"]
    scaling = ["scaling.min_replicas=1", "scaling.max_replicas=1"]
    with scratch() as folder:
        output = Path(folder) / "output"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "serve.app", *settings, *scaling],
                env=environment, stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            end = time.monotonic() + _START_S
            while not _is_ready(config.port):
                if process.poll() is not None or time.monotonic() > end:
                    raise ValueError(f"python -m serve.app does not serve: {output.read_text()[-2000:]}")
                time.sleep(0.1)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _send(port: int, body: bytes, connections: int, requests: int) -> list[float]:
    """Seconds of each request."""

    def client(_: int) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        took = []
        for _ in range(requests):
            began = time.perf_counter()
            connection.request("POST", "/v1/captions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ValueError(f"a request is answered by {answer.status}: {text[:500]!r}")
            took.append(time.perf_counter() - began)
        connection.close()
        return took

    with ThreadPoolExecutor(connections) as pool:
        return [seconds for of_client in pool.map(client, range(connections)) for seconds in of_client]


def _each(process: psutil.Process, value: Callable[[psutil.Process], float]) -> Iterator[float]:
    """A value of a process and of each of its living descendants."""
    import psutil

    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            yield value(member)


def _cpu_seconds(process: psutil.Process) -> float:
    def used(member: psutil.Process) -> float:
        times = member.cpu_times()
        return float(times.user + times.system)

    return sum(_each(process, used))
