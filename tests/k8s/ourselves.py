"""The manifests against this repository: versions of the lock, commands that exist and accept their settings, workers
that fit on their pods, and a config of Serve that the application accepts."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import yaml

from cluster.preflight import Bundle, lacking
from idc.config import ConfigError, load
from serve.config import ServeConfig
from tests.docs.checks import faulty_command
from tests.k8s.pods import clusters_of, pods_of

ROOT = Path(__file__).resolve().parents[2]
Doc = dict[str, Any]
HOME = "/app/"
"""Folder of the code in the image."""


@cache
def locked(package: str) -> str:
    """Version of a package in the lock file."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{package}==(\S+)", lock, re.MULTILINE)
    return str(found)


@cache
def image_tags() -> dict[str, set[str]]:
    """Name of an image of ours -> the tags that fit to the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return {
        "idc": {f"{project}-ray{locked('ray')}-{kind}" for kind in ("cpu", "cuda")},
        "idc-mlflow": {locked("mlflow")},
    }


def version_faults(doc: Doc) -> Iterator[str]:
    """Images and Ray versions that are not those of the lock."""
    for path, cluster in clusters_of(doc):
        if cluster["rayVersion"] != locked("ray"):
            yield f"{path}.rayVersion: {cluster['rayVersion']}, and requirements.lock has {locked('ray')}"
    for pods in pods_of(doc):
        for path, container in pods.containers():
            name, _, tag = container["image"].rpartition("/")[2].partition(":")
            if not tag or tag == "latest":
                yield f"{path}.image: {container['image']} has no version"
            elif name not in image_tags() and not re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", tag):
                yield f"{path}.image: {container['image']} has no digest (k8s/images)"
            elif name in image_tags() and tag not in image_tags()[name]:
                yield f"{path}.image: the tag is {tag}; by the lock it is {' or '.join(sorted(image_tags()[name]))}"


def entrypoint_faults(doc: Doc, settings: dict[str, str]) -> Iterator[str]:
    """What is wrong with the command of a RayJob, whose variables ``settings`` has."""
    if doc["kind"] != "RayJob":
        return
    command = doc["spec"]["entrypoint"]
    try:
        words = shlex.split(Template(command).substitute(settings))
    except (KeyError, ValueError) as error:
        yield f"spec.entrypoint: {error} is not in the ConfigMap settings"
        return
    for word in words:
        if word.startswith(HOME) and not (ROOT / word.removeprefix(HOME)).exists():
            yield f"spec.entrypoint: the image has no {word}"
            return
    words = [word.removeprefix(HOME) for word in words]
    faults = list(faulty_command(shlex.join(words)))
    yield from (f"spec.entrypoint: {fault}" for fault in faults)
    if not faults:
        cluster = doc["spec"]["rayClusterSpec"]
        yield from (f"spec.entrypoint: {fault}" for fault in lacking(_bundles(words), _nodes(cluster, "replicas")))


def _bundles(words: Sequence[str]) -> list[Bundle]:
    """Workers that a command asks for at once."""
    script, *rest = words[1:]
    path = rest.pop(1) if rest[0] == "--config" else None
    settings = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in rest if "=" in word)}
    schema = getattr(importlib.import_module(script.removesuffix(".py").replace("/", ".")), "Job", None)
    if schema is None:  # a command without workers
        return []
    job: Any = load(schema, path and str(ROOT / path), settings)
    found = []
    if hasattr(job, "train"):
        train = job.train
        found.append(Bundle("train.num_workers", train.num_workers, train.cpus_per_worker, train.gpus_per_worker))
    if getattr(job, "build", None) is not None:
        found.append(Bundle("build.actors", job.build.actors, 1, job.build.gpus_per_actor))
    if hasattr(job, "actors"):
        found.append(Bundle("actors", job.actors, job.cpus_per_actor, job.gpus_per_actor))
    if hasattr(job, "workers") and getattr(job, "describer", None) != "endpoint":  # which is asked from the driver
        found.append(Bundle("workers", job.workers, 1, getattr(job, "gpus_per_worker", 0)))
    return found


def _nodes(cluster: Doc, number: str) -> list[dict[str, float]]:
    """Resources of the workers of a cluster, with ``number`` (a field) of each group."""
    found = []
    for group in cluster.get("workerGroupSpecs", []):
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        node = {"CPU": _cpus(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}
        found += [node] * group[number]
    return found


def _cpus(quantity: str | int) -> float:
    text = str(quantity)
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


# -- Serve --------------------------------------------------------------------------------------------------------


def serve_faults(doc: Doc) -> Iterator[str]:
    """What is wrong with the config of a RayService: unknown keys, refused args, replicas that do not fit."""
    if doc["kind"] != "RayService":
        return
    from pydantic import ValidationError
    from ray.serve.schema import ServeDeploySchema

    where = "spec.serveConfigV2"
    try:
        text = yaml.safe_load(doc["spec"]["serveConfigV2"])
        ServeDeploySchema.model_validate(text)
    except (yaml.YAMLError, ValidationError) as error:
        yield f"{where}: {' '.join(str(error).split())}"
        return
    yield from _unknown(ServeDeploySchema, text, where)
    cluster = doc["spec"]["rayClusterConfig"]
    pods = [group["template"]["spec"] for group in cluster["workerGroupSpecs"]]
    listening = text["http_options"]["port"]
    for pod in [cluster["headGroupSpec"]["template"]["spec"], *pods]:  # by the port of this name the operator probes
        ports = {port["name"]: port["containerPort"] for port in pod["containers"][0].get("ports", [])}
        if ports.get("serve", 8000) != listening:
            yield f"{where}.http_options.port: {listening} is not the port named serve, {ports.get('serve', 8000)}"
    for place, app in enumerate(text["applications"]):
        module, _, function = app["import_path"].partition(":")
        try:
            getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            yield f"{where}.applications[{place}].import_path: {error}"
            continue
        try:
            config = load(ServeConfig, overrides=app["args"])
        except ConfigError as error:
            yield from (f"{where}.applications[{place}].args.{fault}" for fault in error.faults)
            continue
        scaling, head = config.scaling, f"{where}.applications[{place}].args.scaling"
        for replicas, number in ((scaling.min_replicas, "minReplicas"), (scaling.max_replicas, "maxReplicas")):
            wanted = [Bundle("replicas", replicas, scaling.cpus, scaling.gpus)]
            wanted.append(Bundle("front_replicas", scaling.front_replicas, scaling.front_cpus))
            yield from (f"{head}: with {number} nodes: {fault}" for fault in lacking(wanted, _nodes(cluster, number)))
        if min(pod["terminationGracePeriodSeconds"] for pod in pods) <= scaling.drain_s:
            yield f"{head}.drain_s: {scaling.drain_s:g} is not below terminationGracePeriodSeconds of the workers"
        if doc["spec"].get("rayClusterDeletionDelaySeconds", 60) <= scaling.drain_s:
            yield f"{head}.drain_s: {scaling.drain_s:g} is not below rayClusterDeletionDelaySeconds"
        spread = {one["name"]: one.get("max_replicas_per_node") for one in app.get("deployments", [])}
        if scaling.front_replicas > 1 and spread.get("Front") != 1:
            yield f"{head}.front_replicas: all may be on one node; set max_replicas_per_node of Front to 1"


def _unknown(schema: Any, value: Any, path: str) -> Iterator[str]:
    """Keys that a schema of Serve ignores."""
    if isinstance(value, list):
        for place, one in enumerate(value):
            yield from _unknown(schema, one, f"{path}[{place}]")
    elif isinstance(value, dict):
        fields = schema.model_fields
        for name, one in value.items():
            if name not in fields:
                yield f"{path}.{name}: no such setting of Serve"
            elif (inner := _schema_in(fields[name].annotation)) is not None:
                yield from _unknown(inner, one, f"{path}.{name}")


def _schema_in(annotation: Any) -> Any:
    """The one pydantic schema in an annotation such as ``list[Schema] | None``."""
    if hasattr(annotation, "model_fields"):
        return annotation
    found = [one for one in map(_schema_in, getattr(annotation, "__args__", ())) if one is not None]
    return found[0] if found else None


def environment(docs: Sequence[Doc]) -> dict[str, str]:
    """The ConfigMap ``settings``, as a submitter sees it."""
    (found,) = [doc["data"] for doc in docs if (doc["kind"], doc["metadata"]["name"]) == ("ConfigMap", "settings")]
    assert os.environ.get("IDC_ROOT") is None, "the commands are checked from the checkout"
    return dict(found)
