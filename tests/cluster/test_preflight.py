"""The check of a cluster that is joined: workers that do not fit, nodes that differ, paths and disks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import preflight
from cluster.config import ClusterConfig
from cluster.preflight import Bundle, Wanted, check_cluster, lacking, probe
from idc.config import ConfigModel, missing
from tests.systems.procap.world import World

SMALL = {"CPU": 4.0}
LARGE = {"CPU": 16.0, "GPU": 2.0}


class Job(ConfigModel):
    """A job with an input."""

    pairs: str

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")


@pytest.mark.parametrize(("bundle", "room"), [
    (Bundle("n", 6, 4.0), 6 - 1), (Bundle("n", 3, 1.0, 1.0), 2), (Bundle("n", 5, 1.0, 0.5), 4),
    (Bundle("n", 1, 17.0), 0), (Bundle("n", 3, 0.0, 1.0), 2),
])  # fmt: skip
def test_workers_that_do_not_fit_are_a_fault(bundle: Bundle, room: int) -> None:
    (fault,) = lacking([bundle], [SMALL, LARGE])
    assert fault.startswith(f"n: {bundle.workers} workers of ")
    assert f"there is room for {room} on the nodes (4 CPUs, 16 CPUs and 2 GPUs)" in fault
    assert list(lacking([bundle._replace(workers=room)], [SMALL, LARGE])) == []


def test_workers_without_needs_fit_anywhere() -> None:
    assert list(lacking([Bundle("n", 100, 0.0)], [SMALL])) == []


def test_a_node_tells_what_it_does_not_see(tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs", tmp_path / "runs"
    found = probe(Job(pairs=str(pairs)), str(out / "marker"))
    assert found.faults == [
        f"pairs: no such file or folder: {str(pairs)!r}",
        f"does not see what is written to {str(out)!r}; it must be on storage of all nodes",
    ]
    pairs.mkdir()
    out.mkdir()
    (out / "marker").write_text("")
    found = probe(Job(pairs=str(pairs)), str(out / "marker"))
    assert found.faults == []
    assert found.free_gb[str(out)] > 0
    assert [path.name for path in out.iterdir()] == ["marker"]


@pytest.mark.ray
def test_all_faults_of_a_cluster_are_told_at_once(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, ready = tmp_path / "new" / "runs", Wanted(Job(pairs=str(tmp_path)), [Bundle("n", 1, 1.0)], None)
    check_cluster(ready, ClusterConfig())
    monkeypatch.setattr(preflight, "_versions", lambda: {"python": "3.11.0", "ray": "1.0"})
    wanted = Wanted(Job(pairs="nowhere"), [Bundle("train.num_workers", 1000, 1.0)], str(out))
    with pytest.raises(ValueError, match="the cluster is not ready, 5 faults") as raised:
        check_cluster(wanted, ClusterConfig(min_free_gb=1e9))
    text = str(raised.value)
    for part in ("train.num_workers: 1000 workers of 1 CPUs each", "pairs: no such file or folder: 'nowhere'",
                 " has other versions: python ", "(here 1.0); install requirements.lock there",
                 f"GB are free in {out}, and cluster.min_free_gb = 1e+09"):  # fmt: skip
        assert part in text
    assert list(out.iterdir()) == []
    with pytest.raises(ValueError, match="not ready") as raised:
        check_cluster(wanted, ClusterConfig(grows=True))
    assert "1000 workers" not in str(raised.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to .*file/runs': Not a directory"):
        check_cluster(Wanted(out=str(tmp_path / "file" / "runs")), ClusterConfig())


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_that_does_not_fit_its_cluster_ends_with_the_faults(
    ray_session: None, world: World, tmp_path: Path
) -> None:
    import ray

    done = subprocess.run(
        [sys.executable, "jobs/train_twincap.py", f"pairs={world.pairs}", f"runs={tmp_path / 'runs'}",
         f"cluster.address={ray.get_runtime_context().gcs_address}", "name=x", "train.num_workers=64"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert "x: the cluster is not ready, 1 fault" in done.stderr
    assert "train.num_workers: 64 workers of" in done.stderr
