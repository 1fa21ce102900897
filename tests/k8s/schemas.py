"""JSON schemas of all kinds in ``k8s/``, closed: a field that they do not name is a fault.

Kinds of Kubernetes itself are checked by the published schemas in the package ``kubernetes-validate``. Those of
KubeRay, Kueue and the Gateway API are in no package; below are the fields that ``k8s/`` uses, written by hand, with
pods again by the published schema. A new field of theirs must be added here, after a look at the CRD
(``kubectl explain rayjob.spec``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema_rs import Draft202012Validator, Registry

KUBERNETES = "1.34"
"""Version whose schemas are used: the newest field of the manifests is much older."""
Schema = dict[str, Any]

_DEFINITIONS = "https://kubernetes.io/api/_definitions.json"
_STRING, _BOOL, _TEXTS = (
    {"type": "string"},
    {"type": "boolean"},
    {"type": "object", "additionalProperties": {"type": "string"}},
)
_COUNT: Schema = {"type": "integer", "minimum": 0}
_PERCENT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}


def _core(name: str) -> Schema:
    return {"$ref": f"{_DEFINITIONS}#/$defs/io.k8s.{name}"}


def _closed(required: str = "", /, **properties: Schema) -> Schema:
    return {
        "type": "object", "properties": properties, "required": required.split(), "additionalProperties": False
    }  # fmt: skip


def _enum(*values: str) -> Schema:
    return {"enum": list(values)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_PODS = _core("api.core.v1.PodTemplateSpec")
_HEAD = _closed("rayStartParams template", rayStartParams=_TEXTS, template=_PODS, serviceType=_enum("ClusterIP"))
_GROUP = _closed(
    "groupName rayStartParams template",
    groupName=_STRING, replicas=_COUNT, minReplicas=_COUNT, maxReplicas=_COUNT, idleTimeoutSeconds=_COUNT,
    rayStartParams=_TEXTS, template=_PODS,
)  # fmt: skip
_CLUSTER = _closed(
    "headGroupSpec rayVersion authOptions",
    rayVersion=_STRING,
    authOptions=_closed("mode", mode=_enum("disabled", "token"), secretName=_STRING),
    enableInTreeAutoscaling=_BOOL,
    autoscalerOptions=_closed(
        version=_enum("v1", "v2"), idleTimeoutSeconds=_COUNT,
        upscalingMode=_enum("Default", "Aggressive", "Conservative"),
        resources=_core("api.core.v1.ResourceRequirements"), securityContext=_core("api.core.v1.SecurityContext"),
    ),
    gcsFaultToleranceOptions=_closed(
        "redisAddress",
        redisAddress=_STRING, externalStorageNamespace=_STRING,
        redisPassword=_closed("valueFrom", valueFrom=_core("api.core.v1.EnvVarSource")),
    ),
    headGroupSpec=_HEAD,
    workerGroupSpecs=_list(_GROUP),
)  # fmt: skip
_JOB = _closed(
    "entrypoint rayClusterSpec",
    entrypoint=_STRING,
    submissionMode=_enum("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"),
    backoffLimit=_COUNT, activeDeadlineSeconds=_COUNT, ttlSecondsAfterFinished=_COUNT,
    shutdownAfterJobFinishes=_BOOL, suspend=_BOOL,
    submitterConfig=_closed(backoffLimit=_COUNT),
    submitterPodTemplate=_PODS,
    deletionStrategy=_closed(
        "deletionRules",
        deletionRules=_list(
            _closed(
                "condition policy",
                condition=_closed(
                    "ttlSeconds", jobStatus=_enum("SUCCEEDED", "FAILED"), jobDeploymentStatus=_enum("Failed"),
                    ttlSeconds=_COUNT,
                ),
                policy=_enum("DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"),
            )
        ),
    ),
    rayClusterSpec=_CLUSTER,
)  # fmt: skip
_SERVICE = _closed(
    "serveConfigV2 rayClusterConfig",
    serveConfigV2=_STRING,
    excludeHeadPodFromServeSvc=_BOOL,
    rayClusterDeletionDelaySeconds=_COUNT,
    upgradeStrategy=_closed(
        "type",
        type=_enum("NewClusterWithIncrementalUpgrade", "NewCluster", "None"),
        clusterUpgradeOptions=_closed(
            "gatewayClassName stepSizePercent intervalSeconds",
            gatewayClassName={"type": "string", "minLength": 1}, stepSizePercent=_PERCENT, maxSurgePercent=_PERCENT,
            intervalSeconds={"type": "integer", "minimum": 1},
        ),
    ),
    rayClusterConfig=_CLUSTER,
)  # fmt: skip
_SELECTOR = _core("apimachinery.pkg.apis.meta.v1.LabelSelector")
_QUANTITY = {"type": ["string", "integer"]}
_CLUSTER_QUEUE = _closed(
    "namespaceSelector resourceGroups",
    namespaceSelector=_SELECTOR,
    queueingStrategy=_enum("StrictFIFO", "BestEffortFIFO"),
    resourceGroups=_list(
        _closed(
            "coveredResources flavors",
            coveredResources=_list(_STRING),
            flavors=_list(
                _closed(
                    "name resources",
                    name=_STRING,
                    resources=_list(
                        _closed("name nominalQuota", name=_STRING, nominalQuota=_QUANTITY, borrowingLimit=_QUANTITY)
                    ),
                )
            ),
        )
    ),
)

_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_GATEWAY = _closed(
    "gatewayClassName listeners",
    gatewayClassName=_STRING,
    listeners=_list(
        _closed(
            "name protocol port",
            name=_STRING, protocol=_enum("HTTP", "HTTPS"), port=_PORT, hostname=_STRING,
            tls=_closed(
                "mode certificateRefs",
                mode=_enum("Terminate"),
                certificateRefs=_list(_closed("kind name", kind=_enum("Secret"), name=_STRING)),
            ),
        )
    ),
)  # fmt: skip
_ROUTE = _closed(
    "parentRefs rules",
    parentRefs=_list(_closed("name sectionName", name=_STRING, sectionName=_STRING)),
    rules=_list(_closed("backendRefs", backendRefs=_list(_closed("name port", name=_STRING, port=_PORT)))),
)

OWN: dict[tuple[str, str], Schema] = {
    ("ray.io/v1", "RayCluster"): _CLUSTER,
    ("ray.io/v1", "RayJob"): _JOB,
    ("ray.io/v1", "RayService"): _SERVICE,
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): _closed(nodeLabels=_TEXTS),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): _CLUSTER_QUEUE,
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): _closed("clusterQueue", clusterQueue=_STRING),
    ("gateway.networking.k8s.io/v1", "Gateway"): _GATEWAY,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _ROUTE,
}
"""(apiVersion, kind) -> schema of ``spec``."""


def schema_faults(doc: dict[str, Any]) -> Iterator[str]:
    """Wrong fields of a document: ``path: what is wrong``."""
    validator = _validator(str(doc.get("apiVersion")), str(doc.get("kind")))
    if validator is None:
        yield f"kind: there is no {doc.get('kind')} in {doc.get('apiVersion')}"
        return
    for error in validator.iter_errors(doc):
        yield f"{dotted(error.instance_path)}: {error.message[:300]}"


def dotted(path: Any) -> str:
    """``spec.template.containers[0].image``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "document"


@cache
def _validator(api_version: str, kind: str) -> Draft202012Validator | None:
    group, _, version = api_version.rpartition("/")
    if (api_version, kind) in OWN:
        schema = _closed(
            "apiVersion kind metadata",
            apiVersion=_enum(api_version), kind=_enum(kind), spec=OWN[api_version, kind],
            metadata=_core("apimachinery.pkg.apis.meta.v1.ObjectMeta"),
        )  # fmt: skip
    else:
        short = f"{group.partition('.')[0]}-{version}" if group else version
        file = _published().joinpath(f"{kind.lower()}-{short}.json")
        if not file.is_file():
            return None
        schema = json.loads(file.read_text())
    return Draft202012Validator(schema, registry=_registry())


def _published() -> Any:
    return files("kubernetes_validate").joinpath("kubernetes-json-schema", f"v{KUBERNETES}.0-local-strict")


@cache
def _registry() -> Registry:
    return Registry([(_DEFINITIONS, json.loads(_published().joinpath("_definitions.json").read_text()))])
