"""How requests with tokens come in: by TLS to a Gateway of ours, from there to the one that KubeRay's operator owns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Doc = dict[str, Any]

LABEL = "gateway.networking.k8s.io/gateway-name"
"""Label of the pods of a Gateway."""
INTERNAL = {"networking.istio.io/service-type": "ClusterIP"}
"""Annotation by which Istio makes a service inside the cluster, and no load balancer."""


def gateway_faults(docs: Sequence[Doc], around: Sequence[Doc]) -> Iterator[tuple[Doc, str]]:
    """(document, fault) for listeners, routes and policies by which a token could travel in clear."""
    gateways = {doc["metadata"]["name"]: doc for doc in docs if doc["kind"] == "Gateway"}
    secrets = {doc["metadata"]["name"]: doc["data"].keys() for doc in [*docs, *around] if doc["kind"] == "Secret"}
    owned = {
        f"{doc['metadata']['name']}-gateway": doc["spec"]["upgradeStrategy"]["clusterUpgradeOptions"][
            "gatewayClassName"
        ]
        for doc in docs
        if doc["kind"] == "RayService" and "clusterUpgradeOptions" in doc["spec"].get("upgradeStrategy", {})
    }
    outer = gateways.keys() - owned.keys()
    for name in sorted(outer):
        for place, listener in enumerate(gateways[name]["spec"]["listeners"]):
            where = f"spec.listeners[{place}]"
            if listener["protocol"] != "HTTPS" or "tls" not in listener:
                yield gateways[name], f"{where}.protocol: must be HTTPS with tls, or tokens travel in clear"
                continue
            for reference in listener["tls"]["certificateRefs"]:
                if not secrets.get(reference["name"], set()) >= {"tls.crt", "tls.key"}:
                    yield gateways[name], f"{where}.tls: there is no Secret {reference['name']!r} with a certificate"
    for doc in docs:
        if doc["kind"] == "RayService":
            for name in owned:
                yield from ((doc, fault) for fault in _owned_faults(doc, name, owned[name], gateways, docs, outer))
        elif doc["kind"] == "NetworkPolicy":
            yield from ((doc, fault) for fault in _policy_faults(doc["spec"], owned.keys(), outer))
        elif doc["kind"] == "HTTPRoute":
            for parent in doc["spec"]["parentRefs"]:
                listeners = gateways[parent["name"]]["spec"]["listeners"] if parent["name"] in gateways else []
                if parent["sectionName"] not in [one["name"] for one in listeners]:
                    yield doc, f"spec.parentRefs: there is no listener {parent['sectionName']!r} of {parent['name']!r}"


def _owned_faults(
    service: Doc, name: str, kind: str, gateways: dict[str, Doc], docs: Sequence[Doc], outer: set[str]
) -> Iterator[str]:
    """What is wrong with the Gateway that the operator makes and restores for a RayService, and with the way to it."""
    spec = {"gatewayClassName": kind, "listeners": [{"name": "http", "protocol": "HTTP", "port": 80}]}
    gateway = gateways.get(name, {"metadata": {}, "spec": None})
    if gateway["spec"] != spec:
        yield f"spec.upgradeStrategy: the Gateway {name} must be there with the operator's own spec, {spec}"
    if not INTERNAL.items() <= gateway["metadata"].get("annotations", {}).items():
        yield f"spec.upgradeStrategy: the Gateway {name} needs the annotation {INTERNAL}, or it is open to all in clear"
    backend = {"name": f"{name}-{kind}", "port": 80}
    if not any(
        {one["name"] for one in doc["spec"]["parentRefs"]} <= outer
        and all(rule["backendRefs"] == [backend] for rule in doc["spec"]["rules"])
        for doc in docs
        if doc["kind"] == "HTTPRoute"
    ):
        yield f"spec.upgradeStrategy: no HTTPRoute leads from a Gateway with TLS to {backend}"
    sources = [
        source.get("podSelector", {}).get("matchLabels", {}).get(LABEL)
        for doc in docs
        if doc["kind"] == "NetworkPolicy" and doc["spec"]["podSelector"].get("matchLabels", {}).get(LABEL) == name
        for rule in doc["spec"].get("ingress", [])
        for source in rule.get("from", [{}])
    ]
    if not sources or not set(sources) <= outer:
        yield f"spec.upgradeStrategy: a NetworkPolicy must let only the pods of {sorted(outer)} to those of {name}"


def _policy_faults(spec: Doc, owned: Any, outer: set[str]) -> Iterator[str]:
    selectors = [spec["podSelector"]]
    for way, side in (("ingress", "from"), ("egress", "to")):
        selectors += [peer.get("podSelector", {}) for rule in spec.get(way, []) for peer in rule.get(side, [])]
    for selector in selectors:
        name = selector.get("matchLabels", {}).get(LABEL)
        if name is not None and name not in {*owned, *outer}:
            yield f"there is no Gateway {name!r}"
        if any(rule["key"] == LABEL for rule in selector.get("matchExpressions", [])):
            yield f"{LABEL}: must have a value, as one Gateway takes TLS from everywhere and one takes no TLS"
