"""The check of a cluster that is joined: workers that do not fit, inputs and outputs that a node does not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.config import ClusterConfig
from cluster.preflight import Bundle, Requirements, check_cluster, probe, unmet
from idc.config import ConfigModel, missing

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
    (fault,) = unmet([bundle], [SMALL, LARGE])
    assert fault.startswith(f"n: {bundle.workers} workers of ")
    assert f"there is room for {room} on the nodes (4 CPUs and 0 GPUs, 16 CPUs and 2 GPUs)" in fault
    assert list(unmet([bundle._replace(workers=room), Bundle("n", 100, 0.0)], [SMALL, LARGE])) == []


@pytest.mark.ray
def test_all_faults_of_a_cluster_are_told_at_once(ray_session: None, tmp_path: Path) -> None:
    out = tmp_path / "new" / "runs"
    check_cluster(Requirements(Job(pairs=str(tmp_path)), [Bundle("n", 1, 1.0)], str(out)), ClusterConfig())
    needed = Requirements(Job(pairs="nowhere"), [Bundle("train.num_workers", 1000, 1.0)], str(out))
    with pytest.raises(ValueError, match=r"the cluster is not ready .* faults: 2") as raised:
        check_cluster(needed, ClusterConfig())
    for part in (
        "train.num_workers: 1000 workers of 1 CPUs and 0 GPUs each",
        "pairs: no such file or folder: 'nowhere'",
    ):
        assert part in str(raised.value)
    assert list(out.iterdir()) == []
    with pytest.raises(ValueError, match="not ready") as raised:
        check_cluster(needed, ClusterConfig(grows=True))
    assert "1000 workers" not in str(raised.value)
    assert probe(None, str(out / "marker")) == [
        f"does not see what is written to {str(out)!r}; it must be on storage of all nodes"
    ]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write to .*file/runs': Not a directory"):
        check_cluster(Requirements(out=str(tmp_path / "file" / "runs")), ClusterConfig())
