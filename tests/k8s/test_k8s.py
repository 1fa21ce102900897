"""The manifests of ``k8s/``, without a cluster: as they are built, by the published schemas and by what must hold.

They are built by a builder of our own, on every machine; where ``kubectl`` is installed, it must build the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate

from idc.config import load
from serve.config import ServeConfig
from serve.prometheus import ServingMetrics
from tests.docs.checks import faulty_command
from tests.k8s.kustomize import K8S, ROOT, build, builders, built, kustomizations
from tests.k8s.pods import clusters_of, pods_of

Doc = dict[str, Any]
FOLDERS = kustomizations()
JOBS = [name for name in FOLDERS if name.startswith("jobs/")]
APPLIED = [name for name in FOLDERS if name != "secrets"]
KUBERNETES = "1.34"
"""Version of the schemas of the package ``kubernetes-validate``."""
FOREIGN = ("ray.io", "kueue.x-k8s.io", "gateway.networking.k8s.io")
"""Groups whose kinds are in no package; of their pods the template is checked."""


def locked(package: str) -> str:
    (version,) = re.findall(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    return str(version)


def secret_docs(folder: Path) -> list[Doc]:
    """The Secrets of a copy of ``k8s/secrets``, whose values ``make.sh`` writes."""
    copied = Path(shutil.copytree(K8S / "secrets", folder, ignore=shutil.ignore_patterns("*.env", "tls.*")))
    subprocess.run(["sh", "make.sh"], cwd=copied, check=True, capture_output=True)
    return build(copied)


# -- what is applied ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", APPLIED)
def test_fields_are_those_of_the_published_schemas(name: str) -> None:
    for doc in built(name):
        if doc["apiVersion"].partition("/")[0] not in FOREIGN:
            kubernetes_validate.validate(doc, KUBERNETES, strict=True)
        for pods in pods_of(doc):
            metadata = {"name": "pod", **pods.template.get("metadata", {})}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pods.spec}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_wrong_field_of_a_pod_is_found() -> None:
    (service,) = [doc for doc in built("base") if doc["kind"] == "RayService"]
    pods = next(pods_of(service))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": {**pods.spec, "container": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", APPLIED)
def test_every_builder_of_this_machine_builds_the_same(name: str) -> None:
    for builder, make in builders().items():
        assert by_name(make(K8S / name)) == by_name(built(name)), builder


@pytest.mark.parametrize("name", APPLIED)
def test_names_exist(name: str, tmp_path: Path) -> None:
    """Of ServiceAccounts, claims, ConfigMaps and Secrets with their keys; the selector of a Service has pods."""
    docs = built(name)
    every = [*docs, *built("base"), *secret_docs(tmp_path / "secrets")]
    keys = {(doc["kind"], doc["metadata"]["name"]): {*doc.get("data", {})} for doc in every}
    for doc in docs:
        for kind, wanted, key in references(doc):
            assert (kind, wanted) in keys, f"{doc['kind']}/{doc['metadata']['name']}: there is no {kind} {wanted!r}"
            assert key is None or key in keys[kind, wanted], f"there is no key {key!r} in {kind} {wanted!r}"
        if doc["kind"] == "Service":
            labels = [pods.labels for source in every for pods in pods_of(source)]
            assert any(doc["spec"]["selector"].items() <= each.items() for each in labels), doc["metadata"]["name"]


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
        elif name in fields and isinstance(item, dict) and fields[name][1] in item and not item.get("optional"):
            yield fields[name][0], item[fields[name][1]], item.get("key")
        yield from references(item)


def test_no_manifest_has_a_secret() -> None:
    assert not [name for name in APPLIED for doc in built(name) if doc["kind"] == "Secret"]


@pytest.mark.parametrize("name", APPLIED)
def test_clusters_are_as_the_operator_needs_them(name: str) -> None:
    """Tokens, no workers on the head, the versions of the lock; of a RayService a port named serve on every pod, which
    is the one that Serve listens on, and no requests to the head."""
    for doc in built(name):
        for _, cluster in clusters_of(doc):
            assert cluster["authOptions"]["mode"] == "token"
            assert cluster["rayVersion"] == locked("ray")
            assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        if doc["kind"] == "RayService":
            config, cluster = yaml.safe_load(doc["spec"]["serveConfigV2"]), doc["spec"]["rayClusterConfig"]
            assert doc["spec"]["excludeHeadPodFromServeSvc"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                ports = {
                    port["name"]: port["containerPort"] for port in group["template"]["spec"]["containers"][0]["ports"]
                }
                assert ports["serve"] == config["http_options"]["port"]


@pytest.mark.parametrize("name", APPLIED)
def test_images_are_those_of_the_lock_or_have_a_digest(name: str) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert version is not None
    own = {
        "idc": {f"{version[1]}-ray{locked('ray')}-{kind}" for kind in ("cpu", "cuda")},
        "idc-mlflow": {locked("mlflow")},
    }
    for doc in built(name):
        for pods in pods_of(doc):
            for path, container in pods.containers():
                image, _, tag = container["image"].rpartition("/")[2].partition(":")
                right = tag in own[image] if image in own else re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", tag)
                assert right, f"{doc['metadata']['name']}: {path}.image: {container['image']}"


@pytest.mark.parametrize("name", JOBS)
def test_the_command_of_a_job_is_accepted(name: str) -> None:
    """By its own parser, with the folders of the cluster and with runs in a bucket; Kueue has its queue."""
    (job,) = built(name)
    for settings in (by_name(built(place))["ConfigMap", "settings"]["data"] for place in ("base", "overlays/s3")):
        command = Template(job["spec"]["entrypoint"]).substitute(settings).replace("/app/", "")
        assert list(faulty_command(shlex.join(shlex.split(command)))) == []
    assert settings["IDC_RUNS"].startswith("s3://")
    (queue,) = [doc for doc in built("overlays/kueue") if doc["kind"] == "LocalQueue"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]


def test_there_is_a_job_for_every_main_command() -> None:
    scripts = {script for name in JOBS for script in re.findall(r"/app/jobs/(\w+)\.py", entrypoint(name))}
    assert scripts == {
        "render", "import_dataset", "mine_pairs", "describe_pairs", "train_tokenizer", "pretrain_procap",
        "finetune_procap", "pretrain_namc", "finetune_namc", "train_twincap", "sweep", "evaluate",
        "register", "promote",
    }  # fmt: skip
    assert {name: built(name)[0]["metadata"]["name"] for name in JOBS} == {name: name[5:] for name in JOBS}


def test_serving_has_the_config_that_is_documented() -> None:
    production = yaml.safe_load((ROOT / "serve" / "configs" / "production.yaml").read_text(encoding="utf-8"))
    (service,) = [doc for doc in built("base") if doc["kind"] == "RayService"]
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == production
    settings = by_name(built("base"))["ConfigMap", "serve-settings"]["data"]
    module, _, function = settings["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].partition(":")
    assert hasattr(__import__(module, fromlist=[function]), function)
    for app in production["applications"]:
        module, _, function = app["import_path"].partition(":")
        assert hasattr(importlib.import_module(module), function)
        load(ServeConfig, overrides=app["args"])  # refuses what is wrong


# -- secrets, MLflow, metrics ---------------------------------------------------------------------------------------


def test_the_secrets_are_those_of_their_files(tmp_path: Path) -> None:
    """Random, for their owner alone, kept when made again, and out of git."""
    folder = Path(shutil.copytree(K8S / "secrets", tmp_path / "secrets", ignore=shutil.ignore_patterns("*.env")))
    subprocess.run(["sh", "make.sh"], cwd=folder, check=True)
    names = [*(path.name for path in folder.glob("*.env")), "tls.crt", "tls.key"]
    files = {name: (folder / name).read_text() for name in names}
    assert {(folder / name).stat().st_mode & 0o777 for name in names} == {0o600}
    certificate = load_pem_x509_certificate(files["tls.crt"].encode())
    hosts = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    assert hosts.get_values_for_type(DNSName) == ["captions.example.org"]
    key = load_pem_private_key(files["tls.key"].encode(), password=None)
    assert key.public_key() == certificate.public_key()
    subprocess.run(["sh", "make.sh"], cwd=folder, check=True)
    assert {name: (folder / name).read_text() for name in names} == files
    words = [line.partition("=")[2] for name in names[:-2] for line in files[name].split() if "password" in line]
    assert len(set(words)) == len(words) == 3
    assert all(re.fullmatch("[0-9a-f]{64}", word) for word in words)
    secrets = [by_name(make(folder)) for make in builders().values()]
    for docs in secrets:
        for doc in docs.values():  # kustomize breaks lines
            doc["data"] = {name: "".join(value.split()) for name, value in doc["data"].items()}
    assert all(docs == secrets[0] for docs in secrets)
    tracked = subprocess.run(["git", "ls-files", "k8s/secrets"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not [name for name in names if name in tracked.stdout]
    command = ["git", "check-ignore", *(f"k8s/secrets/{name}" for name in names)]
    ignored = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert len(ignored.stdout.splitlines()) == len(names)


def test_every_pod_denies_what_is_not_allowed() -> None:
    denied = by_name(built("base"))["NetworkPolicy", "default-deny"]["spec"]
    assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_the_mlflow_image_is_that_of_the_lock() -> None:
    text = (K8S / "mlflow.Dockerfile").read_text(encoding="utf-8")
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    (version,) = re.findall(r"^mlflow==(\S+)", lock, re.MULTILINE)
    assert f"FROM ghcr.io/mlflow/mlflow:v{version}\n" in text


def test_mlflow_answers_to_its_names_alone() -> None:
    """By MLflow's own check of the Host header, whose module is loaded without the whole server around it."""
    import mlflow

    path = Path(mlflow.__file__).parent / "server" / "security_utils.py"
    spec = importlib.util.spec_from_file_location("security_utils", path)
    assert spec is not None
    assert spec.loader is not None
    security = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(security)
    is_allowed_host_header = security.is_allowed_host_header
    container = by_name(built("base"))["Deployment", "mlflow"]["spec"]["template"]["spec"]["containers"][0]
    (names,) = [one.partition("=")[2].split(",") for one in container["args"] if one.startswith("--allowed-hosts=")]
    used = by_name(built("base"))["ConfigMap", "settings"]["data"]["MLFLOW_TRACKING_URI"].removeprefix("http://")
    for host in (used, "mlflow.idc.svc.cluster.local:5000", "localhost:5000", "10.4.2.7:5000", "192.168.1.2:5000"):
        assert is_allowed_host_header(names, host), host
    for host in ("example.org", "example.org:5000", "xmlflow:5000"):
        assert not is_allowed_host_header(names, host), host


def test_every_metric_of_the_dashboard_exists() -> None:
    served = {
        line.split()[2] for line in ServingMetrics().text([], {}).decode().splitlines() if line.startswith("# TYPE")
    }
    ours = {f"ray_{name}{suffix}" for name in served for suffix in ("", "_bucket")}
    theirs = {f"ray_{name}" for name in serve_metrics()}
    used = metrics_used()
    assert used - ours - theirs == set()
    assert used >= {
        "ray_idc_pairs_waiting", "ray_idc_requests_total", "ray_idc_caption_tokens_total",
        "ray_serve_deployment_replica_healthy",
    }  # fmt: skip


def metrics_used() -> set[str]:
    """Names of the metrics of the dashboard."""
    dashboard = json.loads((K8S / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    queries = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    return set(re.findall(r"\bray_\w+", queries))


def serve_metrics() -> set[str]:
    """Names of the metrics of the installed Ray Serve."""
    from ray import serve

    sources = Path(serve.__file__).parent.rglob("*.py")
    return {name for path in sources for name in re.findall(r'"(serve_[a-z_]+)"', path.read_text(encoding="utf-8"))}


def by_name(docs: list[Doc]) -> dict[tuple[str, str], Doc]:
    named = {(doc["kind"], doc["metadata"]["name"]): doc for doc in docs}
    assert len(named) == len(docs)
    return named


def entrypoint(name: str) -> str:
    (job,) = built(name)
    return str(job["spec"]["entrypoint"])
