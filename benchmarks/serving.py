"""``python -m serve.app`` as a user starts it: processor time and latency of requests, by turns with the
captioner alone on the same pair.

    python -m benchmarks.serving
    python -m benchmarks.serving artifact=runs/demo/finetune-0/artifact connections=[8,64] rounds=3

The load comes from threads of this process, over connections that stay open; only the processor time of the command and
of the processes that it starts is counted.
"""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING

from pydantic import Field

from benchmarks.measurement import Row, markdown
from idc.config import ConfigModel, cli, missing
from idc.data.store import iter_rows

if TYPE_CHECKING:
    import psutil

_START_S = 300.0
"""How long the command may take until it serves."""
_BOUNDARY = "idc-benchmark"


class ServingConfig(ConfigModel):
    """The served application, compared with the captioner without a server."""

    artifact: str = "shipped"
    """Captioner: a folder, or a name of `--artifact`."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs; the first pair of its test split is used in all requests."""
    connections: tuple[int, ...] = Field((1, 32, 64), min_length=1)
    """Concurrent requests of each level."""
    requests: int = Field(20, ge=1)
    """Requests of each connection; a level of one connection has three times as many."""
    rounds: int = Field(3, ge=1)
    """Turns, each with a command that is started anew."""
    port: int = Field(8124, ge=1024, le=65535)
    """Port of the command."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")


def measure_serving(config: ServingConfig) -> Iterator[Row]:
    """Processor time at each level, the latency of a request alone, and memory; one replica of one thread.

    Raises:
        ValueError: the command does not start, or a request is not answered by 200.
    """
    row = next(iter(iter_rows(config.pairs, ["before", "after"], split="test", batch_size=1)))
    images: dict[str, bytes] = {name: row[name] for name in ("before", "after")}
    batched_ms, alone_ms, latencies_ms, memory_mib = [], [], [], []
    used_ms: defaultdict[int, list[float]] = defaultdict(list)
    for _ in range(config.rounds):
        with get_context("spawn").Pool(1) as pool:
            batched_ms.append(pool.apply(caption_alone, (config.artifact, images, 16))["cpu_ms"])
            alone_ms.append(pool.apply(caption_alone, (config.artifact, images, 1))["median_ms"])
        with _command(config) as process:
            send(config.port, images, 8, config.requests)
            for connections in config.connections:
                before = _cpu_seconds(process)
                took = send(config.port, images, connections, config.requests * (3 if connections == 1 else 1))
                used_ms[connections].append((_cpu_seconds(process) - before) * 1e3 / len(took))
                if connections == 1:
                    latencies_ms.append(statistics.median(took) * 1e3)
            memory_mib.append(sum(_each(process, lambda member: member.memory_full_info().pss)) / 2**20)
    for connections in config.connections:
        title = f"CPU time of a pair by the captioner alone, batches of 16, over a request's, {connections} at once"
        yield Row(title, "CPU ms", batched_ms, used_ms[connections])
    if latencies_ms:
        title = "median of a request alone over the captioner alone"
        yield Row(title, "ms", latencies_ms, alone_ms)
    yield Row("memory (PSS) of the command and its processes, after the load", "MiB", memory_mib)


def caption_alone(artifact: str, images: dict[str, bytes], batch: int, seconds: float = 2.0) -> dict[str, float]:
    """Decode and caption the same pair, batch after batch, on one thread: ``cpu_ms`` a pair, ``median_ms`` a batch."""
    import torch

    from idc.captioning.loading import CaptionerLoader, LoadConfig
    from idc.data.images import decode_image

    torch.set_num_threads(1)
    captioner = CaptionerLoader(artifact, LoadConfig())()

    def once() -> None:
        befores, afters = ([decode_image(images[name]) for _ in range(batch)] for name in ("before", "after"))
        captioner.describe(befores, afters)

    for _ in range(3):
        once()
    took: list[float] = []
    used, began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        once()
        took.append(time.perf_counter() - start)
    return {
        "cpu_ms": (time.process_time() - used) * 1e3 / (batch * len(took)),
        "median_ms": statistics.median(took) * 1e3,
    }


@contextmanager
def _command(config: ServingConfig) -> Iterator[psutil.Process]:
    import psutil

    settings = [f"models.demo={config.artifact}", f"port={config.port}"]
    scaling = ["scaling.min_replicas=1", "scaling.max_replicas=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "serve.app", *settings, *scaling]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + _START_S
            while not _is_ready(config.port):
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    raise ValueError(f"python -m serve.app does not serve: {output.read().decode()[-2000:]}")
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


def send(port: int, images: dict[str, bytes], connections: int, requests: int) -> list[float]:
    """Seconds of each request for a pair; ``requests`` of each connection.

    Raises:
        ValueError: one is not answered by 200.
    """
    part = '--{}\r\nContent-Disposition: form-data; name="{}"; filename="{}.png"\r\n\r\n'
    parts = [part.format(_BOUNDARY, name, name).encode() + image + b"\r\n" for name, image in images.items()]
    body = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}

    def client(_: int) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        took = []
        for _ in range(requests):
            began = time.perf_counter()
            connection.request("POST", "/v1/captions", body, headers)
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
    import psutil

    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            yield value(member)


def _cpu_seconds(process: psutil.Process) -> float:
    def used(member: psutil.Process) -> float:
        times = member.cpu_times()
        return float(times.user + times.system)

    return sum(_each(process, used))


def main() -> None:
    print(markdown(measure_serving(cli(ServingConfig, __doc__, local=False, overwrite=False).config)))


if __name__ == "__main__":
    main()
