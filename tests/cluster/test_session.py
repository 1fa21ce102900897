"""A local Ray as other machines see it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from cluster.config import ClusterConfig
from cluster.session import environment_of_local_ray
from idc.loopback import collect_no_metrics
from tests.sockets import open_to_others


@pytest.mark.ray
def test_a_local_ray_listens_on_loopback_alone(ray_session: None) -> None:
    import ray

    @ray.remote
    def worker() -> str:
        return str(ray.util.get_node_ip_address())

    assert ray.get(worker.remote()) == "127.0.0.1"
    assert open_to_others(psutil.Process()) == []


def test_rays_metrics_are_off_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RAY_enable_metrics_collection", "RAY_event_stats", "RAY_task_events_report_interval_ms",
             "REPORTER_UPDATE_INTERVAL_MS")  # fmt: skip
    for name in names:
        monkeypatch.setenv(name, "1")  # whatever it was is there again after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_event_stats", "1")
    collect_no_metrics()
    assert [os.environ[name] for name in names] == ["0", "1", "0", "600000"]


def test_what_a_local_ray_leaves_unwatched_is_watched_by_the_next_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    unwatched = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_enable_metrics_collection": "0"}
    for name in (*unwatched, "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "1")  # whatever it was is there again after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_event_stats", "1")
    with environment_of_local_ray(ClusterConfig(auth="disabled")):
        assert unwatched.items() <= os.environ.items()
    kept = {name: os.environ.get(name) for name in (*unwatched, "RAY_event_stats", "RAY_AUTH_MODE")}
    # The user's own stays; the way to authenticate, which Ray reads once in a process, too.
    assert kept == {**dict.fromkeys(unwatched), "RAY_event_stats": "1", "RAY_AUTH_MODE": "disabled"}


_JOBS_ADDRESS = """
from cluster.config import ClusterConfig
from cluster.session import session

with session(ClusterConfig(dashboard=True, num_cpus=4, num_gpus=0, object_store_mb=100, auth="disabled")):
    import ray
    from ray._private import services, worker

    temp_dir = worker._global_node._ray_params.temp_dir
    # As Ray's JobSupervisor finds the cluster for the driver of a job.
    print("jobs join", services.canonicalize_bootstrap_address_or_die("auto", temp_dir))
    print("this is", ray.get_runtime_context().gcs_address)
"""


@pytest.mark.ray
@pytest.mark.slow
def test_jobs_join_the_ray_that_they_are_submitted_to_and_no_other_of_this_machine(ray_session: None) -> None:
    import ray

    done = subprocess.run(
        [sys.executable, "-c", _JOBS_ADDRESS], capture_output=True, text=True, check=True, timeout=300
    )
    found = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.startswith(("jobs join", "this is")))
    assert found["jobs join"] == found["this is"]
    assert found["this is"] != ray.get_runtime_context().gcs_address
