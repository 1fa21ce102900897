"""Faults of nodes that `make test-all` leaves out, as each takes minutes:

python -m pytest tests/faults/node_faults.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.nodes import nodes
from tests.faults.disturbed import Disturbed


def test_without_min_workers_a_run_waits_for_a_replacement(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13])
        run.reach(13)
        cluster.kill(2)
        run.open(13)
        cluster.wait_for(lambda listed: sum(node["Alive"] for node in listed) == 2)
        cluster.add()
        run.end()
    assert run.worlds() == [2]
    run.check(lost=run.train["checkpoint_every"])


def test_a_cut_between_two_workers_delays_them(tmp_path: Path) -> None:
    """They wait in a collective until it is mended; nothing is lost."""
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 14])
        run.reach(13)
        cluster.cut(1, 2)
        run.open(13)
        run.open(14)
        with pytest.raises(AssertionError):
            run.reach(15, seconds=15.0)
        cluster.mend(1, 2)
        run.end()
    run.check(lost=0)


def test_a_worker_that_is_cut_from_the_head_is_lost_and_comes_back(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13])
        run.reach(13)
        cluster.cut(0, 2)
        cluster.wait_for(lambda listed: sum(node["Alive"] for node in listed) == 2)
        cluster.mend(0, 2)
        cluster.kill(2)  # its Ray ends by itself, as it was given up; a supervisor starts it again
        cluster.start_again(2)
        run.open(13)
        run.end()
    run.check(lost=run.train["checkpoint_every"])


def test_a_node_that_is_a_group_of_processes_is_lost(tmp_path: Path) -> None:
    """What all of these tests fall back to where a process may not make namespaces."""
    with nodes(2, hosts=False) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13], min_workers=1)
        run.reach(13)
        cluster.kill(2)
        run.open(13)
        run.end()
    assert run.worlds() == [2, 1]
    run.check(lost=run.train["checkpoint_every"])
