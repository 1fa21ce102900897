"""Chunks on Ray: the same files as a local run, whatever dies on the way."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.pipeline import Batch, StageSpec, good_rows, run_local
from idc.data.store import DatasetFolder, iter_rows, read_manifest, read_rejects
from tests.cluster.nodes import nodes
from tests.processes import descendants

pytestmark = pytest.mark.ray

SCHEMA = pa.schema(
    [pa.field("pair_id", pa.string(), False), pa.field("value", pa.int64()), pa.field("blob", pa.binary())]
)


class Numbers:
    """``num_chunks`` chunks of four rows."""

    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks

    def read(self, chunk_id: int) -> Batch:
        index = np.arange(4 * chunk_id, 4 * chunk_id + 4)
        return {"pair_id": [f"p{i}" for i in index], "index": index}


class Square:
    """Squares; every seventh row is bad. Ragged arrays check that batches travel unharmed."""

    def __init__(self, delay: float = 0.0, log: str | None = None) -> None:
        self.delay, self.log = delay, log

    def __call__(self, batch: Batch) -> Batch:
        time.sleep(self.delay)
        if self.log is not None:
            with open(self.log, "a") as stream:
                stream.write(f"{batch['pair_id'][0]}\n")
        error = ["seventh: no sevens" if i % 7 == 0 else None for i in batch["index"]]
        ragged = [np.full((int(i) + 1, 2), i, np.uint8) for i in batch["index"]]
        return {**batch, "value": batch["index"] ** 2, "ragged": ragged, "error": error}


class Pack:
    """Uses what :class:`Square` made."""

    def __call__(self, batch: Batch) -> Batch:
        blob: list[bytes | None] = [None] * len(batch["pair_id"])
        for i in good_rows(batch):
            assert batch["ragged"][i].dtype == np.uint8
            blob[i] = batch["ragged"][i].tobytes()
        return {**batch, "blob": blob}


class Widen:
    """40 MB a chunk: few of them fill the object stores of :func:`tests.cluster.nodes.nodes`."""

    def __call__(self, batch: Batch) -> Batch:
        return {**batch, "wide": np.zeros((4, 10_000_000), np.uint8)}


class Narrow:
    """Uses what :class:`Widen` made."""

    def __call__(self, batch: Batch) -> Batch:
        return {**batch, "value": batch["wide"].sum(axis=1, dtype=np.int64), "blob": [b""] * 4}


class Raise:
    def __call__(self, batch: Batch) -> Batch:
        if batch["pair_id"][0] == "p4":
            raise KeyError("a fault in the stage")
        return {**batch, "value": batch["index"], "blob": [b""] * 4}


def folder(path: Path, num_chunks: int) -> DatasetFolder:
    return DatasetFolder.open_for_build(
        path, kind="pairs", schema=SCHEMA, fingerprint="numbers", config={}, num_chunks=num_chunks
    )


def same_parts(one: Path, two: Path) -> None:
    names = sorted(p.name for p in one.glob("*.parquet"))
    assert names == sorted(p.name for p in two.glob("*.parquet"))
    for name in names:
        assert pq.read_table(one / name).equals(pq.read_table(two / name)), name


@pytest.mark.parametrize("split_actors", [False, True], ids=["one actor", "two actors"])
def test_ray_writes_what_local_writes(ray_session: None, tmp_path: Path, split_actors: bool) -> None:
    from cluster.data import run_chunks_on_ray

    stages = [
        StageSpec(Square, num_cpus=0.5, concurrency=2, batch_size=3),
        StageSpec(Pack, num_cpus=0.25 if split_actors else 0.5, concurrency=1 if split_actors else 2),
    ]
    local = run_local(folder(tmp_path / "local", 6), Numbers(6), stages, progress=False, max_reject_share=0.5)
    on_ray = run_chunks_on_ray(folder(tmp_path / "ray", 6), Numbers(6), stages, progress=False, max_reject_share=0.5)
    assert on_ray == local
    assert on_ray.num_rows == 20
    assert on_ray.reject_reasons == {"seventh": 4}
    same_parts(tmp_path / "local", tmp_path / "ray")
    assert [r.row_id for r in read_rejects(tmp_path / "ray")] == ["p0", "p7", "p14", "p21"]
    assert [r["value"] for r in iter_rows(tmp_path / "ray", ["value"])] == [i * i for i in range(24) if i % 7]


def test_more_actors_than_cpus_do_not_wait_for_ever(ray_session: None, tmp_path: Path) -> None:
    from cluster.data import run_chunks_on_ray

    stages = [StageSpec(Square, num_cpus=3, concurrency=2), StageSpec(Pack, num_cpus=4)]
    manifest = run_chunks_on_ray(
        folder(tmp_path, 3), Numbers(3), stages, progress=False, max_reject_share=0.5, no_progress_timeout_s=60
    )
    assert manifest.complete
    assert manifest.num_rows == 10


_ON_NODES = """
import sys
from pathlib import Path
from cluster.config import ClusterConfig
from cluster.session import run_chunks
from idc.data.pipeline import StageSpec
from tests.cluster.test_data import Narrow, Numbers, Widen, folder
first = StageSpec(Widen, num_cpus=1.0, num_gpus=float(sys.argv[3]), concurrency=2)
config = ClusterConfig(address=sys.argv[1], grows=sys.argv[4] == "grows", no_progress_timeout_s=float(sys.argv[5]))
stages = [first, StageSpec(Narrow, num_cpus=0.5)]
try:
    run_chunks(False, config, folder(Path(sys.argv[2]), 16), Numbers(16), stages)
except ValueError as error:
    print("ValueError:", error)
"""


def test_stages_that_together_ask_for_more_than_the_nodes_have(tmp_path: Path) -> None:
    """Two actors of the first stage take all CPUs, and the object stores are full before its last chunk. The second one
    gets its part of them, on several nodes too, or the job ends: refused if nothing helps, or after a time in which no
    part was written, although chunks move."""

    def run(out: str, *settings: str) -> str:
        log, arguments = tmp_path / f"{out}.log", [cluster.address, str(tmp_path / out), *settings]
        cluster.python(["-c", _ON_NODES, *arguments], log).wait(300)
        return log.read_text()

    with nodes(2) as cluster:
        text = run("fitted", "0", "fixed", "120")
        assert "the stages need more than the cluster's" in text
        assert "they have 1 of 2, 1 of 1 actors" in text
        assert read_manifest(tmp_path / "fitted").complete, text
        text = run("waiting", "0", "grows", "30")
        assert "ValueError: no part was written for 30 s: the stages may wait for CPUs or GPUs that others use" in text
        assert "Traceback" not in text
        text = run("refused", "0.5", "fixed", "120")
        assert "the stages need an actor each at the same time (1 CPUs and 0.5 GPUs, 0.5 CPUs and 0 GPUs)" in text


def test_a_fault_of_a_stage_ends_the_job_and_says_where(ray_session: None, tmp_path: Path) -> None:
    from cluster.data import run_chunks_on_ray

    with pytest.raises(Exception, match=r"chunk 1: KeyError: 'a fault in the stage'"):
        run_chunks_on_ray(folder(tmp_path, 3), Numbers(3), [StageSpec(Raise)], progress=False)
    assert not read_manifest(tmp_path).complete


@pytest.mark.slow
def test_a_killed_build_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL of the driver in the middle; the second run does only what is missing, and the parts are the same."""
    script = f"""
import sys
from pathlib import Path
from cluster.config import ClusterConfig
from cluster.data import run_chunks_on_ray as run
from cluster.session import session
from idc.data.pipeline import StageSpec
from tests.cluster.test_data import Numbers, Pack, Square, folder
with session(ClusterConfig(num_cpus=2, num_gpus=0, object_store_mb=100, auth="disabled", temp_dir=sys.argv[2])):
    stages = [StageSpec(Square, dict(delay=0.3, log={str(tmp_path / "log")!r})), StageSpec(Pack)]
    run(folder(Path(sys.argv[1]), 20), Numbers(20), stages, max_reject_share=0.5)
"""
    out, log = tmp_path / "out", tmp_path / "log"
    temp = Path("/tmp") / f"ray-k{os.getpid()}"
    command = [sys.executable, "-c", script, str(out), str(temp)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while len(list(out.glob("part-*"))) < 5:
        assert first.poll() is None, "the build ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(first.pid).children(recursive=True)
    agents = descendants(psutil.Process(first.pid), "Agent")
    first.kill()
    first.wait()
    started = [child for child in children if child not in agents]
    assert not psutil.wait_procs(started, timeout=60)[1], "workers outlive their driver"
    for agent in agents:  # Ray's own, which notice late that their raylet has ended
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
    done = sorted(p.name for p in out.glob("part-*"))
    assert 5 <= len(done) < 20
    assert not read_manifest(out).complete
    kept = {name: (out / name).stat().st_mtime_ns for name in done}
    log.unlink()

    second = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    assert read_manifest(out).complete
    assert {name: (out / name).stat().st_mtime_ns for name in done} == kept
    assert len(log.read_text().splitlines()) == 20 - len(done)
    stages = [StageSpec(Square), StageSpec(Pack)]
    run_local(folder(tmp_path / "local", 20), Numbers(20), stages, progress=False, max_reject_share=0.5)
    same_parts(tmp_path / "local", out)
    assert not list(out.glob(".tmp-*"))
    shutil.rmtree(temp, ignore_errors=True)
