"""Rules beyond the schemas: what KubeRay's operator refuses, and what pods of ours must have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.pods import Pods, clusters_of, pods_of

Doc = dict[str, Any]

_LONGEST = {"RayCluster": 53, "RayJob": 47, "RayService": 47}
_IN_START = {"num-cpus", "num-gpus", "memory", "resources"}
_PORTS = {"gcs-server": ("port", 6379), "dashboard": ("dashboard-port", 8265), "metrics": ("metrics-export-port", 8080)}
"""Name of a port of Ray's container -> the parameter of `ray start` that sets it, and its default. By these names the
operator makes services, and asks the dashboard."""
_OPERATORS = ("ray.io/cluster", "ray.io/group", "ray.io/node-type")
"""Labels that the operator overwrites."""


def operator_faults(doc: Doc) -> Iterator[str]:
    """What the operator refuses in a RayCluster, RayJob or RayService, or silently does otherwise."""
    kind, name, spec = doc["kind"], doc["metadata"]["name"], doc.get("spec", {})
    if kind not in _LONGEST:
        return
    if len(name) > _LONGEST[kind] or not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"metadata.name: {name!r} is not a DNS label of at most {_LONGEST[kind]} characters"
    for path, cluster in clusters_of(doc):
        yield from _cluster_faults(path, cluster)
    if kind == "RayJob":
        yield from _job_faults(spec)
    if kind == "RayService":
        yield from _service_faults(spec)
        strategy = spec.get("upgradeStrategy", {})
        if strategy.get("type") == "NewClusterWithIncrementalUpgrade":
            options = strategy.get("clusterUpgradeOptions")
            if options is None:
                yield "spec.upgradeStrategy.clusterUpgradeOptions: needed by NewClusterWithIncrementalUpgrade"
            elif options["stepSizePercent"] > options.get("maxSurgePercent", 100):
                yield "spec.upgradeStrategy.clusterUpgradeOptions.stepSizePercent: is refused above maxSurgePercent"
            if not spec["rayClusterConfig"].get("enableInTreeAutoscaling"):
                yield "spec.rayClusterConfig.enableInTreeAutoscaling: must be true for NewClusterWithIncrementalUpgrade"
        elif "clusterUpgradeOptions" in strategy:
            yield f"spec.upgradeStrategy.clusterUpgradeOptions: means nothing with type {strategy.get('type')}"


def _service_faults(spec: Doc) -> Iterator[str]:
    """What the operator needs to send requests to the pods of a RayService."""
    head = spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    if head.get("ports") and "serve" not in {port["name"] for port in head["ports"]}:
        yield (
            "spec.rayClusterConfig.headGroupSpec.template.spec.containers[0].ports: needs one named serve: the "
            "operator takes Serve's port from the head alone, and makes no service without it: it is never ready"
        )
    if not spec.get("excludeHeadPodFromServeSvc"):
        yield "spec.excludeHeadPodFromServeSvc: must be true, or requests go to the head, which has no replicas"


def _cluster_faults(path: str, cluster: Doc) -> Iterator[str]:
    scaled = cluster.get("enableInTreeAutoscaling", False)
    if "autoscalerOptions" in cluster and not scaled:
        yield f"{path}.autoscalerOptions: means nothing without enableInTreeAutoscaling"
    if cluster["authOptions"]["mode"] == "token":
        numbers = cluster["rayVersion"].split(".")[:2]
        if not all(number.isdigit() for number in numbers) or [int(number) for number in numbers] < [2, 52]:
            yield f"{path}.rayVersion: {cluster['rayVersion']!r}, and tokens need 2.52 or newer"
    else:
        yield f"{path}.authOptions.mode: anyone who reaches the dashboard could run code; set token"
    groups = [("headGroupSpec", cluster["headGroupSpec"])]
    groups += [(f"workerGroupSpecs[{at}]", group) for at, group in enumerate(cluster.get("workerGroupSpecs", []))]
    if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield f'{path}.headGroupSpec.rayStartParams.num-cpus: must be "0", or workers of a training start on the head'
    names = [group.get("groupName") for _, group in groups]
    for place, group in groups:
        where = f"{path}.{place}"
        pod, params = group["template"]["spec"], group["rayStartParams"]
        if names.count(group.get("groupName")) > 1:
            yield f"{where}.groupName: {group['groupName']!r} is there twice"
        if not pod["containers"]:
            yield f"{where}.template.spec.containers: needs one"
            continue
        labels = group["template"]["metadata"].get("labels", {})
        for label in labels.keys() & set(_OPERATORS):
            yield f"{where}.template.metadata.labels: the operator overwrites {label}"
        if labels.get("app.kubernetes.io/name", "kuberay") != "kuberay":
            yield f"{where}.template.metadata.labels: app.kubernetes.io/name must be kuberay: services select by it"
        ports = {port["name"]: port["containerPort"] for port in pod["containers"][0].get("ports", [])}
        for port, (parameter, default) in _PORTS.items():
            if ports.get(port, default) != int(params.get(parameter, default)):
                yield f"{where}.template.spec.containers[0].ports: {port} is {ports[port]}, and Ray listens elsewhere"
            if place == "headGroupSpec" and ports and port not in ports:
                yield f"{where}.template.spec.containers[0].ports: needs one named {port}, or services lack it"
        if not str(pod["containers"][0]["resources"]["limits"]["cpu"]).isdigit():
            yield f"{where}.template.spec.containers[0].resources.limits.cpu: must be whole: Ray gets it rounded up"
        if scaled and pod.get("restartPolicy", "Never") != "Never":
            yield f"{where}.template.spec.restartPolicy: must be Never, or left out, with autoscaler v2"
        if "labels" in params:
            yield f"{where}.rayStartParams.labels: is refused; use the group's own field labels"
        if _IN_START & params.keys() and "resources" in group:
            yield f"{where}.resources: is refused together with {sorted(_IN_START & params.keys())} in rayStartParams"
        if "gcsFaultToleranceOptions" in cluster:
            used = [one["name"] for one in pod["containers"][0].get("env", [])]
            for name in {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME"}.intersection(used):
                yield f"{where}.template.spec.containers[0].env: {name} is refused with gcsFaultToleranceOptions"
        if place == "headGroupSpec":
            continue
        least, now, most = (group.get(key) for key in ("minReplicas", "replicas", "maxReplicas"))
        if least is None or now is None or most is None:
            yield f"{where}: replicas, minReplicas and maxReplicas must all be there"
        elif not least <= now <= most:
            yield f"{where}.replicas: {now} is not between minReplicas={least} and maxReplicas={most}"


def _job_faults(spec: Doc) -> Iterator[str]:
    mode = spec.get("submissionMode", "K8sJobMode")
    for name in ("submitterPodTemplate", "submitterConfig"):
        if name in spec and mode != "K8sJobMode":
            yield f"spec.{name}: is refused with, or means nothing to, submissionMode {mode}"
    if "activeDeadlineSeconds" not in spec:
        yield "spec.activeDeadlineSeconds: missing; a job that hangs would hold its nodes for ever"
    if "restartPolicy" not in spec.get("submitterPodTemplate", {"spec": {"restartPolicy": "Never"}})["spec"]:
        yield "spec.submitterPodTemplate.spec.restartPolicy: missing; a Job takes Never or OnFailure alone"
    if mode == "InteractiveMode" and spec.get("backoffLimit"):
        yield "spec.backoffLimit: is refused with InteractiveMode"
    if not spec.get("shutdownAfterJobFinishes") and ("ttlSecondsAfterFinished" in spec or spec.get("suspend")):
        yield "spec.shutdownAfterJobFinishes: must be true for ttlSecondsAfterFinished and suspend"
    if "deletionStrategy" in spec and spec.get("shutdownAfterJobFinishes"):
        yield "spec.deletionStrategy: is refused together with shutdownAfterJobFinishes"


def queue_faults(doc: Doc) -> Iterator[str]:
    """What Kueue cannot queue."""
    if "kueue.x-k8s.io/queue-name" in doc["metadata"].get("labels", {}):
        if not doc["spec"].get("shutdownAfterJobFinishes"):
            yield "spec.shutdownAfterJobFinishes: must be true, or the job's quota is never free again"
        for path, cluster in clusters_of(doc):
            if cluster.get("enableInTreeAutoscaling"):
                yield f"{path}.enableInTreeAutoscaling: Kueue admits clusters of a fixed size"


def security_faults(doc: Doc) -> Iterator[str]:
    """What a pod of ours must have: no root, no rights that it does not need, bounded resources, probes, no secrets."""
    for pods in pods_of(doc):
        yield from _pod_faults(doc, pods)
    for path, cluster in clusters_of(doc):
        if "autoscalerOptions" in cluster:
            yield from _container_faults(f"{path}.autoscalerOptions", cluster["autoscalerOptions"])
    if doc["kind"] == "Secret" and not doc["metadata"].get("namespace"):
        yield "metadata.namespace: missing"


def _pod_faults(doc: Doc, pods: Pods) -> Iterator[str]:
    spec, path = pods.spec, f"{pods.path}.spec"
    context = spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield f"{path}.securityContext: needs runAsNonRoot: true and runAsUser above 0"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{path}.securityContext.seccompProfile: must be RuntimeDefault"
    if "serviceAccountName" not in spec:
        yield f"{path}.serviceAccountName: missing; the namespace's default account is shared by all"
    # Only an autoscaler talks to the Kubernetes API, and Prometheus, which looks for pods.
    scaled = pods.added.get("ray.io/node-type") == "head" and any(
        cluster.get("enableInTreeAutoscaling") for _, cluster in clusters_of(doc)
    )
    needs_api = scaled or doc["metadata"]["name"] == "prometheus"
    if spec.get("automountServiceAccountToken") is not needs_api:
        yield f"{path}.automountServiceAccountToken: must be {str(needs_api).lower()}"
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{path}.{name}: is refused by the namespace"
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            yield f"{path}.volumes: {volume['name']} is a path of the node"
    for where, container in pods.containers():
        yield from _container_faults(where, container)
        for env in container.get("env", []):
            if re.search("PASSWORD|SECRET|TOKEN|API_KEY", env["name"]) and "value" in env:
                yield f"{where}.env: {env['name']} is written here; take it from a Secret (secretKeyRef)"
        # KubeRay adds probes of its own to the containers of Ray; a submitter ends by itself.
        own = doc["kind"] in ("Deployment", "StatefulSet") and ".containers[" in where
        for probe in ("readinessProbe", "livenessProbe"):
            if own and probe not in container:
                yield f"{where}.{probe}: missing"


def _container_faults(where: str, container: Doc) -> Iterator[str]:
    context, resources = container.get("securityContext", {}), container.get("resources", {})
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}.securityContext.allowPrivilegeEscalation: must be false"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where}.securityContext.capabilities: must drop ALL"
    for bound in ("requests", "limits"):
        for name in ("cpu", "memory", "ephemeral-storage"):
            if name not in resources.get(bound, {}):
                yield f"{where}.resources.{bound}.{name}: missing"
