"""Whether pods fit where they are sent: on the clouds' machines with GPUs; and what is kept in memory into it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.pods import Pods, pods_of
from tests.k8s.references import matches

Doc = dict[str, Any]

MACHINES = {1: [(4, 16), (12, 79)], 8: [(96, 633)]}
"""GPUs -> (vCPUs, GiB) of the smallest machines with them that pods here are for: g6.xlarge and g2-standard-4, GCP's
a2-highgpu-1g; GCP's a2-highgpu-8g."""
_LEFT = 0.9
"""Share of a machine that the kubelet and the daemons of a cluster leave to pods, at least."""
_OBJECTS = 0.3
"""Share of a node's memory that Ray's object store takes, in /dev/shm."""
_ZONE = "topology.kubernetes.io/zone"
_UPLOAD = 512 * 2**20
"""Largest upload of `ray job submit --working-dir`, which is kept in Redis."""
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: str | int) -> float:
    """Value of a quantity of Kubernetes: ``512Mi``, ``500m``, ``3gb`` as Redis writes it."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2].replace("gb", "Gi")]


def size_faults(doc: Doc) -> Iterator[str]:
    """Requests that no machine meets, and memory that is too small for what is kept in it."""
    for pods in pods_of(doc):
        container = pods.spec["containers"][0]
        where, resources = f"{pods.path}.spec.containers[0]", container["resources"]
        if gpus := int(resources["requests"].get("nvidia.com/gpu", 0)):
            cpus, memory = quantity(resources["requests"]["cpu"]), quantity(resources["requests"]["memory"]) / 2**30
            if doc["kind"] != "RayService" and not _in_one_zone(pods):
                yield f"{pods.path}.spec.affinity: needs podAffinity to its own pods by {_ZONE}"
            if not any(cpus <= _LEFT * most and memory <= _LEFT * room for most, room in MACHINES.get(gpus, [])):
                yield f"{where}.resources.requests: fit no machine of {gpus} GPUs, of (vCPUs, GiB) {MACHINES.get(gpus)}"
        yield from _shared_memory_faults(pods, where, resources)
        if container["name"] == "redis":
            yield from _redis_faults(doc, where, container)


def _in_one_zone(pods: Pods) -> bool:
    affinity = pods.spec.get("affinity", {}).get("podAffinity", {})
    terms = [*affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])]
    terms += [term["podAffinityTerm"] for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
    return any(term["topologyKey"] == _ZONE and matches(term["labelSelector"], pods.labels) for term in terms)


def _shared_memory_faults(pods: Pods, where: str, resources: Doc) -> Iterator[str]:
    """Without a volume of ours the operator mounts one of the size of the memory."""
    mounts = {mount["mountPath"]: mount["name"] for mount in pods.spec["containers"][0].get("volumeMounts", [])}
    if "/dev/shm" not in mounts:
        return
    (volume,) = [one for one in pods.spec["volumes"] if one["name"] == mounts["/dev/shm"]]
    folder, memory = volume.get("emptyDir", {}), quantity(resources["limits"]["memory"])
    if folder.get("medium") != "Memory":
        yield f"{where}.volumeMounts: /dev/shm must be an emptyDir of medium Memory"
    elif not _OBJECTS * memory < quantity(folder["sizeLimit"]) < memory:
        yield f"{where}.volumeMounts: /dev/shm must hold Ray's object store, 30 % of the memory, and leave some of it"


def _redis_faults(doc: Doc, where: str, container: Doc) -> Iterator[str]:
    """Two uploads of the largest size must fit, with the copy that is made while the file of writes is rewritten."""
    (command,) = container["args"]
    most = re.search(r"\\nmaxmemory (\w+)\\n", command)
    if most is None or "noeviction" not in command:
        yield f"{where}.args: needs maxmemory, and noeviction, or the state of heads is lost without a word"
        return
    memory = quantity(most[1])
    disk = quantity(doc["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"])
    if memory < 2 * _UPLOAD:
        yield f"{where}.args: maxmemory {most[1]} does not hold two uploads of 512 MiB"
    if memory > 0.8 * quantity(container["resources"]["limits"]["memory"]):
        yield f"{where}.args: maxmemory {most[1]} leaves less than a fifth of the memory to Redis itself"
    if disk < 4 * memory:
        yield "spec.volumeClaimTemplates[0]: is smaller than four times maxmemory: writes, and their file rewritten"
