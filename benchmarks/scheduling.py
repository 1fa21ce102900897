"""One driver that schedules the chunks of a data job over many nodes: what a chunk costs the driver, and how busy it
keeps the workers. The nodes are Ray nodes of this machine, one worker each; what a chunk does there is to wait, as the
work of 64 GPUs does not fit here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pydantic import Field

from benchmarks.measurement import Measurement, environment, peak_memory_mib, steady
from benchmarks.processes import Stamper, apart, say, scratch, stamps_of
from cluster.config import ClusterConfig
from cluster.session import session
from idc.config import ConfigModel
from idc.data.pipeline import Batch, StageSpec
from idc.data.store import DatasetFolder
from idc.loopback import collect_no_metrics, keep_ray_on_loopback

_STORE_BYTES = 80 * 2**20  # of a node; Ray's minimum is 75 MiB


class SchedulingConfig(ConfigModel):
    """Chunks over many nodes. A node with its worker takes 0.25 GiB of memory, and with others on two
    cores several seconds to start: 64 were not at work after five minutes."""

    nodes: tuple[int, ...] = Field((1, 16, 32), min_length=1)
    """Numbers of nodes."""
    chunk_s: float = Field(2.0, ge=0)
    """Seconds that a chunk takes on its worker."""
    chunks_each: int = Field(20, ge=3)
    """Chunks per worker."""
    many_chunks: tuple[int, ...] = (500, 2_000)
    """Numbers of chunks without work, on 4 workers of one node: what a chunk costs the driver, and whether that grows
    with their number. Empty: not measured."""


class Numbers:
    """A source whose chunks are one number each."""

    def __init__(self, count: int) -> None:
        self.num_chunks = count

    def read(self, chunk_id: int) -> Batch:
        return {"number": [chunk_id]}


class Hold:
    """A stage that takes this many seconds and no processor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batch: Batch) -> Batch:
        time.sleep(self.seconds)
        return batch


def measure_scheduling(config: SchedulingConfig) -> Iterator[Measurement]:
    """Rows by number of nodes, and by number of chunks."""
    where = environment(threads=1)
    for nodes in config.nodes:
        with scratch() as folder:
            chunks = nodes * config.chunks_each
            apart(schedule, str(folder), nodes, 1, chunks, config.chunk_s)
            window = steady(stamps_of(folder / "stamps"), nodes)
        busy = window.rate * config.chunk_s / nodes
        say(f"scale: {nodes} nodes {window.rate:.2f} chunks/s, busy {busy:.3f}")
        yield Measurement(
            part="scale",
            title=f"share of the time that a worker on each of {nodes} nodes is busy, chunks of {config.chunk_s:g} s",
            unit="share",
            better="higher",
            aim="at least 0.9",
            above=[busy],
            more={"chunks_per_second": window.rate},
            environment=where,
        )
    for chunks in config.many_chunks:
        with scratch() as folder:
            spent = apart(schedule, str(folder), 1, 4, chunks, 0.0)
        say(f"scale: {chunks} chunks {spent}")
        yield Measurement(
            part="scale",
            title=f"processor time of the driver for a chunk, {chunks:,} chunks without work on 4 workers",
            unit="CPU ms",
            better="lower",
            aim="none",
            above=[spent["cpu_s"] / chunks * 1e3],
            more={"wall_ms_per_chunk": spent["wall_s"] / chunks * 1e3, "peak_mib_of_the_driver": spent["peak_mib"]},
            environment=where,
        )


def schedule(place: str, nodes: int, workers_each: int, chunks: int, chunk_s: float) -> dict[str, float]:
    """Run a data job on a Ray of many nodes, started for it; return the driver's processor and wall seconds, and its
    peak memory in MiB. Workers leave stamps in ``place/stamps``."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    keep_ray_on_loopback()
    collect_no_metrics()
    from ray.cluster_utils import Cluster

    stamps = Path(place) / "stamps"
    stamps.mkdir()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES},
    )
    for _ in range(nodes):
        cluster.add_node(wait=False, num_cpus=workers_each, object_store_memory=_STORE_BYTES)
    cluster.wait_for_nodes(timeout=60 + 10 * nodes)
    folder = DatasetFolder.open_for_build(
        str(Path(place) / "numbers"), kind="numbers", schema=pa.schema([("number", pa.int64())]),
        fingerprint="benchmark", config={}, num_chunks=chunks,
    )  # fmt: skip
    workers = nodes * workers_each
    stages = [
        StageSpec(Hold, {"seconds": chunk_s}, num_cpus=1, concurrency=workers),
        StageSpec(Stamper, {"folder": str(stamps)}, num_cpus=1, concurrency=workers),
    ]
    try:
        with session(ClusterConfig(address=cluster.address, worker_logs=False)):
            from cluster.data import run  # imports Ray, so only after the session has set the environment

            began, cpu = time.perf_counter(), time.process_time()
            run(folder, Numbers(chunks), stages, progress=False)
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    finally:
        cluster.shutdown()
    return {"wall_s": wall, "cpu_s": cpu, "peak_mib": peak_memory_mib()}
