"""Checks of a cluster that a job joins, in seconds before it starts, with all faults at once: CPUs and GPUs that are
not there, paths that a node does not see or cannot write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from cluster.config import ClusterConfig
from idc.config import ConfigError, ConfigModel, missing_inputs
from idc.data.remote_copies import check_writable, is_uri
from idc.training.config import TrainConfig

PROBE_TIMEOUT_S = 60.0
"""Time-out for a node to answer, in seconds. Its first worker takes seconds to start."""


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


def training_workers(train: TrainConfig) -> Bundle:
    """The workers without which a training does not start."""
    field = "num_workers" if train.min_workers is None else "min_workers"
    return Bundle(f"train.{field}", getattr(train, field), train.cpus_per_worker, train.gpus_per_worker)


@dataclass(frozen=True)
class Requirements:
    """What a job needs of its cluster.

    Attributes:
        job: its config, whose inputs every node must see.
        bundles: its workers.
        out: folder that it writes, a path or a URI, which every node must see and be able to write.
    """

    job: ConfigModel | None = None
    bundles: Sequence[Bundle] = ()
    out: str | None = None


def check_cluster(needed: Requirements, config: ClusterConfig) -> None:
    """Check the connected cluster.

    Raises:
        ValueError: with one line for each fault.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    faults = [] if config.grows else list(unmet(needed.bundles, [node["Resources"] for node in nodes]))
    with _marker(needed.out) as marker:
        probes = []
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(probe).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            probes.append((node["NodeManagerAddress"], task.remote(needed.job, marker)))
        end = time.monotonic() + PROBE_TIMEOUT_S
        for address, answer in probes:
            try:
                left = max(0.0, end - time.monotonic())
                faults += [f"node {address}: {fault}" for fault in ray.get(answer, timeout=left)]
            except ray.exceptions.GetTimeoutError:
                ray.cancel(answer, force=True)
                faults.append(f"node {address} did not answer in {PROBE_TIMEOUT_S:.0f} s; see the log of its raylet")
            except ray.exceptions.RayError as error:
                faults.append(f"node {address} cannot run a task: {type(error).__name__}; see the log of its raylet")
    if faults:
        head = f"the cluster is not ready (cluster.check=false skips the check), faults: {len(faults)}"
        raise ValueError("\n  ".join([head, *faults]))


def check_machine(bundles: Sequence[Bundle], num_gpus: int | None = None) -> None:
    """Check that this machine, where no cluster is joined, has the GPUs (``num_gpus``, by default those of torch).

    Raises:
        ConfigError: with one line for each setting; Ray would wait for them forever.
    """
    if not any(bundle.gpus for bundle in bundles):
        return
    if num_gpus is None:
        import torch

        num_gpus = torch.cuda.device_count()
    faults = [
        f"{field}: {workers} workers of {gpus:g} GPUs each, and this machine has {num_gpus}; ask for none, or join a "
        "cluster that has them"
        for field, workers, _, gpus in bundles
        if gpus and int(num_gpus / gpus + 1e-9) < workers
    ]
    if faults:
        raise ConfigError(faults)


def unmet(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Faults of the workers that do not fit on the nodes' CPUs and GPUs, whatever else runs there."""
    there = amounts(nodes)
    for field, workers, cpus, gpus in bundles:
        needs = [(kind, each) for kind, each in (("CPU", cpus), ("GPU", gpus)) if each]
        if not needs:
            continue
        # A node's amounts are floats: 0.3 / 0.1 is a hair below 3.
        room = sum(min(int(node.get(kind, 0) / each + 1e-9) for kind, each in needs) for node in nodes)
        if room < workers:
            yield (
                f"{field}: {workers} workers of {cpus:g} CPUs and {gpus:g} GPUs each, and there is room for {room} on "
                f"the nodes ({there}); ask for less, start more nodes, or set cluster.grows=true if it adds them"
            )


def amounts(nodes: Sequence[Mapping[str, float]]) -> str:
    """The CPUs and GPUs of nodes, for a message."""
    return ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)


def probe(job: ConfigModel | None, marker: str | None) -> list[str]:
    """The inputs that are missing on this node, and what is wrong with the output; runs in a task there.

    Args:
        marker: a file that the driver has written into the output folder; on object storage the output's URI.
    """
    faults = missing_inputs(job)
    if marker is not None and is_uri(marker):
        try:
            check_writable(marker, "output")
        except ValueError as error:
            faults.append(str(error))
    elif marker is not None:
        folder = Path(marker).parent
        if not Path(marker).exists():
            faults.append(f"does not see what is written to {str(folder)!r}; it must be on storage of all nodes")
        elif not os.access(folder, os.W_OK):
            faults.append(f"cannot write to {str(folder)!r}")
    return faults


@contextmanager
def _marker(out: str | None) -> Iterator[str | None]:
    """A file in the output folder, which is made for it if need be; a URI is itself."""
    if out is None or is_uri(out):
        yield out
        return
    folder = Path(out).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = NamedTemporaryFile(dir=folder, prefix=".preflight-")  # noqa: SIM115  # removed by the with below
    except OSError as error:
        raise ValueError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
    with file:
        yield file.name
