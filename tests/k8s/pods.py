"""The pods of a document: what is common to Deployments, StatefulSets and the kinds of KubeRay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Doc = dict[str, Any]


@dataclass(frozen=True)
class Pods:
    """A pod template.

    Attributes:
        path: of the template in its document.
        template: a PodTemplateSpec.
        added: labels that the operator adds, as far as policies and budgets use them.
        replicas: pods that always run.
        of_ray: whether an operator, and no controller of Kubernetes, owns the pods.
    """

    path: str
    template: Doc
    added: dict[str, str] = field(default_factory=dict)
    replicas: int = 1
    of_ray: bool = False

    @property
    def spec(self) -> Doc:
        """The PodSpec."""
        spec: Doc = self.template["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the running pods."""
        return self.template.get("metadata", {}).get("labels", {}) | self.added

    def containers(self) -> Iterator[tuple[str, Doc]]:
        """(path, container), those that run at the start included."""
        for kind in ("initContainers", "containers"):
            for place, container in enumerate(self.spec.get(kind, [])):
                yield f"{self.path}.spec.{kind}[{place}]", container


def pods_of(doc: Doc) -> Iterator[Pods]:
    """The pod templates of a document."""
    spec = doc.get("spec", {})
    if doc["kind"] in ("Deployment", "StatefulSet"):
        yield Pods("spec.template", spec["template"], replicas=spec["replicas"])
    if "submitterPodTemplate" in spec:
        yield Pods("spec.submitterPodTemplate", spec["submitterPodTemplate"])
    for path, cluster in clusters_of(doc):
        yield Pods(
            f"{path}.headGroupSpec.template", cluster["headGroupSpec"]["template"],
            {"ray.io/is-ray-node": "yes", "ray.io/node-type": "head", "ray.io/group": "headgroup"}, of_ray=True,
        )  # fmt: skip
        for place, group in enumerate(cluster.get("workerGroupSpecs", [])):
            added = {"ray.io/is-ray-node": "yes", "ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
            yield Pods(
                f"{path}.workerGroupSpecs[{place}].template", group["template"], added,
                replicas=group.get("minReplicas", 0), of_ray=True,
            )  # fmt: skip


def clusters_of(doc: Doc) -> Iterator[tuple[str, Doc]]:
    """(path, RayClusterSpec) of a document."""
    key = {"RayCluster": "", "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}.get(doc["kind"])
    if key is not None:
        yield (f"spec.{key}", doc["spec"][key]) if key else ("spec", doc["spec"])
