"""Checks of a cluster that a job joins, in seconds before it starts, with all faults at once: CPUs and GPUs that are
not there, nodes with other versions, paths that a node does not see, full disks."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from cluster.config import ClusterConfig
from idc.config import ConfigModel, missing_inputs
from idc.data.object_store import marked, marker_fault
from idc.data.remote_copies import is_uri

PACKAGES = ("ray", "torch", "deepspeed", "transformers", "numpy", "pyarrow", "pydantic", "safetensors")
"""Packages whose versions must be equal on all nodes: objects of theirs go from one node to another."""
ANSWER_S = 60.0
"""Time-out for all nodes to answer, in seconds. A node's first worker takes seconds to start."""
_SMALLEST_OBJECT_STORE_MB = 75  # Ray's own minimum


class Bundle(NamedTuple):
    """Workers that a job needs at the same time.

    Attributes:
        field: setting of the number, for the message.
        workers: their number.
        cpus, gpus: of each.
    """

    field: str
    workers: int
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True)
class Wanted:
    """Requirements of a job on its cluster.

    Attributes:
        job: its config, whose inputs every node must see.
        bundles: its workers.
        out: folder that it writes, a path or a URI, which every node must see and be able to write.
    """

    job: ConfigModel | None = None
    bundles: Sequence[Bundle] = ()
    out: str | None = None


class Node(NamedTuple):
    """A node's answer.

    Attributes:
        versions: of Python and :data:`PACKAGES`.
        faults: inputs that are missing, and what is wrong with the output folder, seen from there.
        free_gb: by folder.
    """

    versions: dict[str, str]
    faults: list[str]
    free_gb: dict[str, float]


def check_cluster(wanted: Wanted, config: ClusterConfig) -> None:
    """Check the connected cluster.

    Raises:
        ValueError: with one line for each fault.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    faults = [] if config.grows else list(lacking(wanted.bundles, [node["Resources"] for node in nodes]))
    faults += _small_stores(nodes)
    with _marker(wanted.out) as marker:
        answers, silent = _ask(nodes, wanted.job, marker)
    faults += silent
    here = _versions()
    for name, answer in answers.items():
        differing = [
            f"{package} {answer.versions[package]} (here {here[package]})"
            for package in here
            if answer.versions[package] != here[package]
        ]
        if differing:
            faults.append(f"node {name} has other versions: {', '.join(differing)}; install requirements.lock there")
        faults += [f"node {name}: {fault}" for fault in answer.faults]
        faults += [
            f"node {name}: {free:.1f} GB are free in {folder}, and cluster.min_free_gb = {config.min_free_gb:g}"
            for folder, free in answer.free_gb.items()
            if free < config.min_free_gb
        ]
    if faults:
        number = f"{len(faults)} fault{'s' * (len(faults) > 1)}"
        head = f"the cluster is not ready, {number} (cluster.check=false skips the check):"
        raise ValueError("\n  ".join([head, *faults]))


def lacking(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Faults of the workers that do not fit on the nodes' CPUs and GPUs, whatever else runs there."""
    there = ", ".join(
        f"{node.get('CPU', 0):g} CPUs" + (f" and {node['GPU']:g} GPUs" if node.get("GPU") else "") for node in nodes
    )
    for field, workers, cpus, gpus in bundles:
        # A node's amounts are floats: 0.3 / 0.1 is a hair below 3.
        room = sum(
            min(int(node.get(kind, 0) / each + 1e-9) for kind, each in (("CPU", cpus), ("GPU", gpus)) if each)
            if cpus or gpus
            else workers
            for node in nodes
        )
        if room < workers:
            each = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            yield (
                f"{field}: {workers} workers of {each} each, and there is room for {room} on the nodes ({there}); "
                "ask for less, start more nodes, or set cluster.grows=true if it adds them by itself"
            )


def probe(job: ConfigModel | None, marker: str | None) -> Node:
    """This node's answer; runs in a task there.

    Args:
        marker: a file that the driver has written into the output folder.
    """
    faults, free = missing_inputs(job), {}
    folders = {tempfile.gettempdir()}
    if marker is not None and is_uri(marker):
        if fault := marker_fault(marker):
            faults.append(fault)
    elif marker is not None:
        path = Path(marker)
        if not path.exists():
            faults.append(f"does not see what is written to {str(path.parent)!r}; it must be on storage of all nodes")
        else:
            folders.add(str(path.parent))
            probe_file = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
            try:
                probe_file.write_text("")
                probe_file.unlink()
            except OSError as error:
                faults.append(f"cannot write to {str(path.parent)!r}: {error.strerror}")
    for folder in sorted(folders):
        with suppress(OSError):
            free[folder] = shutil.disk_usage(folder).free / 1e9
    return Node(_versions(), faults, free)


def _versions() -> dict[str, str]:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def _small_stores(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for node in nodes:
        size = node["Resources"].get("object_store_memory", 0) / 2**20
        if size < _SMALLEST_OBJECT_STORE_MB:
            yield f"node {_name(node)}: its object store has {size:.0f} MiB; start it with --object-store-memory"


@contextmanager
def _marker(out: str | None) -> Iterator[str | None]:
    """A file in the output folder, which is made for it if need be; on object storage a small object."""
    if out is None:
        yield None
        return
    if is_uri(out):
        with marked(out, "output") as uri:
            yield uri
        return
    path = Path(out).absolute() / f".preflight-{socket.gethostname()}-{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    except OSError as error:
        raise ValueError(f"cannot write to {str(path.parent)!r}: {error.strerror}") from None
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _ask(
    nodes: Sequence[Mapping[str, Any]], job: ConfigModel | None, marker: str | None
) -> tuple[dict[str, Node], list[str]]:
    """The nodes' answers by name, and faults of the nodes that gave none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(probe).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        asked[task.remote(job, marker)] = _name(node)
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    answers: dict[str, Node] = {}
    faults = []
    for answer in done:
        try:
            answers[asked[answer]] = ray.get(answer)
        except ray.exceptions.RayError as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            faults.append(f"node {asked[answer]} cannot run a task: {reason.strip()}")
    for answer in late:
        ray.cancel(answer, force=True)
        faults.append(f"node {asked[answer]} did not answer within {ANSWER_S:.0f} s; see the log of its raylet")
    return answers, faults


def _name(node: Mapping[str, Any]) -> str:
    """Address and, where several nodes share it, a part of the id."""
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
