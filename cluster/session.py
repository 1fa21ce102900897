"""A Ray session for one job: joins the existing cluster, or starts a local Ray and ends it again."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from cluster.config import ClusterConfig
from cluster.preflight import Bundle, Requirements, check_cluster, check_machine
from cluster.ray_internals import start_local_ray
from cluster.worker import set_up_ray_worker
from idc.config import ConfigModel
from idc.data.pipeline import Source, StageSpec, ToRows, run_local
from idc.data.store import DatasetFolder, Manifest
from idc.util.cores import usable_cores
from idc.util.loopback import collect_no_metrics, keep_ray_on_loopback, keep_ray_paths_short

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_ALLOW_REGEX": r'^\{"time": "| \d+/\d+  ',  # events and progress of several workers are no repeats
    # An error of Ray in every log about how Train starts its PreemptionWatcher; the job is not concerned.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "'PreemptionWatcher' and ID: .* has constructor arguments",
    "RAY_DISABLE_WORKER_LOG_PREFIX": "1",  # workers' events are lines as they are
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # else every print of a training worker appears twice
    "RAY_worker_niceness": "0",  # Ray's default of 15 starves workers when anything else runs on a small machine
}

_LOCAL = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process for announced ends of nodes: a cloud's, not this machine's
    "RAY_prestart_worker_first_driver": "0",  # workers without our set-up hook, which none of our tasks would use
}
"""Environment of a local Ray: processes that it does not need share the cores with the workers."""


@contextmanager
def session(config: ClusterConfig, needed: Requirements | None = None, local: bool = False) -> Iterator[None]:
    """Context manager: Ray, connected; with ``local`` none.

    In order of precedence: the Ray that this process is connected to; the cluster at ``config.address`` or
    RAY_ADDRESS (set inside a Ray job); a local Ray, started here. At the end the session disconnects only from what it
    started or joined.

    Args:
        needed: checked on a cluster that is joined, before anything is done there; of this machine the GPUs.

    Raises:
        ConfigError: this machine lacks the GPUs.
        ValueError: RAY_ADDRESS is a Jobs API address; the cluster is not ready (:mod:`cluster.preflight`); a local Ray
            cannot start.
        ConnectionError: there is no cluster at the address.
    """
    needed = needed or Requirements()
    if local:
        check_machine(needed.bundles)
        yield
        return
    address = config.address or os.environ.get("RAY_ADDRESS") or None
    if address is not None and address.startswith(("http://", "https://")):
        raise ValueError(
            f"RAY_ADDRESS={address!r} is a Jobs API address: submit the job with `ray job submit -- python jobs/...`, "
            "or unset RAY_ADDRESS to run on a local Ray"
        )
    with _environment_restored():
        _set_environment(config, local=address is None)
        import ray  # after the environment: Ray reads it when it is loaded

        if ray.is_initialized():
            yield
            return
        if address is None:
            check_machine(needed.bundles, config.num_gpus)
        try:
            _connect(config, address)
            if address is not None and config.check:
                check_cluster(needed, config)
            yield
        finally:
            started = _processes_of_workers() if address is None else []
            ray.shutdown()
            for process in started:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _processes_of_workers() -> list[psutil.Process]:
    """The processes that the raylet of a local Ray has started. Some outlive it, such as the controller of a training
    of which a worker was killed."""
    raylets = [child for child in psutil.Process().children() if child.name() == "raylet"]
    return [process for raylet in raylets for process in raylet.children(recursive=True)]


@contextmanager
def _environment_restored() -> Iterator[None]:
    """Context manager: the environment variables are at the end what they were. Else a Ray that is started or joined
    later would watch neither its nodes nor its metrics, or authenticate otherwise than its user says."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _set_environment(config: ClusterConfig, local: bool) -> None:
    for name, value in (_ENVIRONMENT | _LOCAL if local else _ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    if not local:
        return
    collect_no_metrics()
    keep_ray_on_loopback()
    if config.temp_dir is None:
        keep_ray_paths_short()
    _choose_auth(config)


def _connect(config: ClusterConfig, address: str | None) -> None:
    import ray

    options: dict[str, Any] = {
        "logging_level": logging.WARNING,
        "ignore_reinit_error": False,
        "runtime_env": {"worker_process_setup_hook": set_up_ray_worker},
    }
    if address is not None:
        ray.init(address=address, **options)
    else:
        start_local_ray(
            num_cpus=config.num_cpus or max(4, usable_cores()),
            num_gpus=config.num_gpus,
            object_store_memory=config.object_store_mb * 2**20 if config.object_store_mb else None,
            include_dashboard=False,
            _temp_dir=config.temp_dir,
            **options,
        )


def run_chunks(
    local: bool,
    config: ClusterConfig,
    folder: DatasetFolder,
    source: Source,
    stages: Sequence[StageSpec],
    to_rows: ToRows | None = None,
    *,
    processes: int = 1,
    job: ConfigModel | None = None,
    **options: Any,
) -> Manifest:
    """Run the pending chunks of a data job, on this machine without Ray or in a Ray session.

    With ``local``, or if no chunk is pending, Ray is not imported. Options, result and errors are those of
    :func:`idc.data.pipeline.run_local`.

    Args:
        job: the config of the job, whose inputs every node of a cluster must see.
        processes: as in :func:`idc.data.pipeline.run_local`, with ``local`` only; on Ray the concurrency of the stages
            counts.
    """
    pending = folder.pending()
    if local or not pending:
        check_machine([Bundle("actors", 1, 0.0, stage.num_gpus) for stage in stages] if pending else [])
        return run_local(folder, source, stages, to_rows, processes=processes, **options)
    with session(config, Requirements(job, out=folder.location.local)):
        from cluster.data import run_chunks_on_ray  # fits the stages together, also in a session of the job's

        timeout, grows = config.no_progress_timeout_s, config.grows
        return run_chunks_on_ray(folder, source, stages, to_rows, no_progress_timeout_s=timeout, grows=grows, **options)


def _choose_auth(config: ClusterConfig) -> None:
    """Set explicitly whether a local Ray requires a token; by default Ray decides by files in the home folder."""
    if os.environ.setdefault("RAY_AUTH_MODE", config.auth) != "token":
        return
    at_hand = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    if not at_hand and not Path("~/.ray/auth_token").expanduser().exists():
        os.environ["RAY_AUTH_TOKEN"] = _own_token()


@cache
def _own_token() -> str:
    """The token of all sessions of this process, because Ray reads it once."""
    return secrets.token_hex(32)
