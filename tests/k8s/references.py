"""References inside what is applied together: names that must exist, selectors that must match, budgets that allow
evictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.k8s.gateways import LABEL as GATEWAY
from tests.k8s.pods import Pods, clusters_of, pods_of

Doc = dict[str, Any]

FOREIGN = (GATEWAY, "ray.io/node-type")
"""Labels of pods that others make here: a Gateway's, and the operator's job that cleans up Redis."""
NODE_CACHE = {"ipBlock": {"cidr": "169.254.20.10/32"}}
"""Where NodeLocal DNSCache answers, which is no pod."""


def reference_faults(docs: Sequence[Doc], around: Sequence[Doc] = ()) -> Iterator[tuple[Doc, str]]:
    """(document, fault) for names in ``docs`` that are neither there nor in ``around``, which is applied before."""
    every = [*docs, *around]
    keys = {
        (doc["kind"], doc["metadata"]["name"]): {*doc.get("data", {}), *doc.get("stringData", {})} for doc in every
    }  # fmt: skip
    for doc in docs:
        for pods in pods_of(doc):
            for fault in _pod_faults(doc, pods, keys):
                yield doc, fault
        for fault in _selector_faults(doc, [pods for source in every for pods in pods_of(source)]):
            yield doc, fault
        yield from ((doc, fault) for fault in _nested_secrets(doc, keys))
        for path, cluster in clusters_of(doc):
            redis = cluster.get("gcsFaultToleranceOptions", {}).get("redisAddress", "redis:6379").partition(":")[0]
            if "gcsFaultToleranceOptions" in cluster and ("Service", redis) not in keys:
                yield doc, f"{path}.gcsFaultToleranceOptions.redisAddress: there is no Service {redis!r}"


def _pod_faults(doc: Doc, pods: Pods, keys: dict[tuple[str, str], set[str]]) -> Iterator[str]:
    spec = pods.spec
    account = spec.get("serviceAccountName")
    if account is not None and ("ServiceAccount", account) not in keys:
        yield f"{pods.path}.spec.serviceAccountName: there is no ServiceAccount {account!r}"
    claims = {template["metadata"]["name"] for template in doc["spec"].get("volumeClaimTemplates", [])}
    volumes = {entry["name"] for entry in spec.get("volumes", [])} | claims
    for number, volume in enumerate(spec.get("volumes", [])):
        where = f"{pods.path}.spec.volumes[{number}]"
        for kind, name in (
            ("PersistentVolumeClaim", volume.get("persistentVolumeClaim", {}).get("claimName")),
            ("ConfigMap", volume.get("configMap", {}).get("name")),
            ("Secret", volume.get("secret", {}).get("secretName")),
        ):
            if name is not None and (kind, name) not in keys:
                yield f"{where}: there is no {kind} {name!r}"
    for where, container in pods.containers():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"{where}.volumeMounts: there is no volume {mount['name']!r}"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            action = container.get(probe, {})
            port = (action.get("httpGet") or action.get("tcpSocket") or {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{where}.{probe}: there is no port {port!r}"
        for source in container.get("envFrom", []):
            name = source["configMapRef"]["name"]
            if ("ConfigMap", name) not in keys:
                yield f"{where}.envFrom: there is no ConfigMap {name!r}"


def _nested_secrets(value: Any, keys: dict[tuple[str, str], set[str]], path: str = "") -> Iterator[str]:
    """References to keys of Secrets and ConfigMaps, wherever they are in a document."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _nested_secrets(item, keys, f"{path}[{number}]")
    elif isinstance(value, dict):
        for kind, field in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
            item = value.get(field, {})
            if item and not item.get("optional") and item["key"] not in keys.get((kind, item["name"]), set()):
                yield f"{path.lstrip('.')}.{field}: there is no key {item['key']!r} in a {kind} {item['name']!r}"
        for name, item in value.items():
            yield from _nested_secrets(item, keys, f"{path}.{name}")


def _selector_faults(doc: Doc, pods: Sequence[Pods]) -> Iterator[str]:
    kind, spec = doc["kind"], doc.get("spec", {})
    if kind == "Service":
        hit = [template for template in pods if spec["selector"].items() <= template.labels.items()]
        named = {
            port["name"] for template in hit for _, each in template.containers() for port in each.get("ports", [])
        }
        for number, port in enumerate(spec["ports"]):
            if port["targetPort"] not in named:
                yield f"spec.ports[{number}].targetPort: no pod of the selector has a port {port['targetPort']!r}"
    elif kind in ("Deployment", "StatefulSet"):
        if not matches(spec["selector"], spec["template"]["metadata"]["labels"]):
            yield "spec.selector: does not select the pods of spec.template"
    elif kind == "PodDisruptionBudget":
        hit = [template for template in pods if matches(spec["selector"], template.labels)]
        running = sum(template.replicas for template in hit)
        if not hit:
            yield "spec.selector: selects no pods"
        elif any(template.of_ray for template in hit) and not isinstance(spec.get("minAvailable"), int):
            yield "spec.minAvailable: must be a number for pods that an operator owns"
        elif len(groups := {template.labels.get("ray.io/group") for template in hit}) > 1:
            yield f"spec.selector: selects the groups {sorted(map(str, groups))}; all pods of one may go at once"
        elif running - spec.get("minAvailable", running - 1) < 1 or spec.get("maxUnavailable", 1) < 1:
            yield f"spec: allows no eviction of its {running} pods, which would block every drain of a node"
    elif kind == "NetworkPolicy":
        yield from _policy_faults(spec, pods)


def _policy_faults(spec: Doc, pods: Sequence[Pods]) -> Iterator[str]:
    selectors = [("spec.podSelector", spec["podSelector"])]
    for way, side in (("ingress", "from"), ("egress", "to")):
        if way in spec and way.capitalize() not in spec["policyTypes"]:
            yield f"spec.{way}: means nothing without {way.capitalize()} in spec.policyTypes"
        for at, rule in enumerate(spec.get(way, [])):
            # A pod of another namespace is not ours to know.
            selectors += [
                (f"spec.{way}[{at}].{side}[{number}].podSelector", peer["podSelector"])
                for number, peer in enumerate(rule.get(side, []))
                if "podSelector" in peer and "namespaceSelector" not in peer
            ]
            names = way == "egress" and any(port["port"] == 53 for port in rule.get("ports", []))
            if names and NODE_CACHE not in rule.get("to", [NODE_CACHE]):
                yield f"spec.egress[{at}].to: needs {NODE_CACHE}, or a DNS cache of the node is out of reach"
            for number, port in enumerate(rule.get("ports", [])):
                if way == "ingress" and spec["podSelector"] and not _foreign(spec["podSelector"]):
                    hit = [template for template in pods if matches(spec["podSelector"], template.labels)]
                    opened = {
                        p["containerPort"]
                        for template in hit
                        for _, c in template.containers()
                        for p in c.get("ports", [])
                    }
                    if port["port"] not in opened:
                        yield f"spec.ingress[{at}].ports[{number}]: no selected pod listens on {port['port']}"
    for path, selector in selectors:
        if not _foreign(selector) and not any(matches(selector, template.labels) for template in pods):
            yield f"{path}: selects no pods"


def _foreign(selector: Doc) -> bool:
    wanted = {
        *selector.get("matchLabels", {}),
        *(expression["key"] for expression in selector.get("matchExpressions", [])),
    }
    return bool(wanted.intersection(FOREIGN))


def matches(selector: Doc, labels: dict[str, str]) -> bool:
    """Whether a label selector selects pods with ``labels``; an empty one selects all."""
    rules = selector.get("matchExpressions", [])
    assert all(rule["operator"] == "Exists" for rule in rules), "the other operators are not used in k8s/"
    return selector.get("matchLabels", {}).items() <= labels.items() and all(rule["key"] in labels for rule in rules)
