"""The manifests of ``k8s/``, without a cluster: all of them are right, and a wrong field in any is found and named.

They are built by a builder of our own, on every machine; where ``kubectl`` is installed, it must build the same.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate

from cluster import train_metrics
from serve.prometheus import ServingMetrics
from tests.k8s.checks import built_faults, source_faults
from tests.k8s.kustomize import K8S, ROOT, TEMPLATES, build, builders, built, kustomizations
from tests.k8s.ourselves import entrypoint_faults, environment
from tests.k8s.pods import clusters_of, pods_of
from tests.k8s.schemas import KUBERNETES, OWN
from tests.k8s.sizes import quantity
from tests.k8s.wrong_fields import WRONG, WRONG_TOGETHER

Doc = dict[str, Any]
FOLDERS = kustomizations()
JOBS = [name for name in FOLDERS if name.startswith("jobs/")]


# -- what is there ------------------------------------------------------------------------------------------------


def test_every_file_has_the_right_fields() -> None:
    assert list(source_faults(K8S)) == []


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_applied_is_right(name: str) -> None:
    assert list(built_faults(K8S, name)) == []


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "secrets"])
def test_every_builder_of_this_machine_builds_the_same(name: str) -> None:
    for builder, make in builders().items():
        assert by_name(make(K8S / name)) == by_name(built(name)), builder


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


def test_no_manifest_has_a_secret() -> None:
    for name in FOLDERS:
        assert name == "secrets" or not [doc for doc in built(name) if doc["kind"] == "Secret"]


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


def test_a_job_has_a_queue() -> None:
    (queue,) = [doc for doc in built("overlays/kueue") if doc["kind"] == "LocalQueue"]
    for name in JOBS:
        (job,) = built(name)
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]
        assert job["metadata"]["namespace"] == queue["metadata"]["namespace"]


@pytest.mark.parametrize("name", JOBS)
def test_the_queue_admits_a_job(name: str) -> None:
    """Kueue leaves a job waiting for ever that asks for a resource without a quota, or for more than it."""
    (queue,) = [doc["spec"] for doc in built("overlays/kueue") if doc["kind"] == "ClusterQueue"]
    ((group,), (flavor,)) = queue["resourceGroups"], queue["resourceGroups"][0]["flavors"]
    quota = {one["name"]: quantity(one["nominalQuota"]) for one in flavor["resources"]}
    assert list(quota) == group["coveredResources"]
    (job,) = built(name)
    asked = requested([job])
    assert {key: total for key, total in asked.items() if total > quota.get(key, 0)} == {}


def test_dev_fits_its_node_during_an_upgrade_of_its_own() -> None:
    """Not with a job's worker besides, which then waits: the page says so."""
    text = (K8S / "README.md").read_text(encoding="utf-8")
    ((cores, memory),) = re.findall(r"one node of (\d+) cores and (\d+) GiB", text)
    docs = built("overlays/dev")
    second = [doc for doc in docs if doc["kind"] == "RayService"]
    asked = requested([*docs, *second, *built("monitoring")])
    system = {"cpu": 1.0, "memory": 2 * 2**30}  # of the kubelet, DNS, operators
    assert asked["cpu"] + system["cpu"] <= int(cores)
    assert asked["memory"] + system["memory"] <= int(memory) * 2**30
    assert asked["memory"] > 24 * 2**30, "a smaller node would do: say so"


def requested(docs: list[Doc]) -> dict[str, float]:
    """What all pods that always run ask for, with the container of the autoscaler."""
    totals: dict[str, float] = {}
    asking = [
        (pods.replicas, container["resources"]["requests"])
        for doc in docs
        for pods in pods_of(doc)
        for container in pods.spec["containers"]
    ]
    asking += [
        (1, cluster["autoscalerOptions"]["resources"]["requests"])
        for doc in docs
        for _, cluster in clusters_of(doc)
        if "autoscalerOptions" in cluster
    ]
    for replicas, requests in asking:
        for key, value in requests.items():
            totals[key] = totals.get(key, 0.0) + replicas * quantity(value)
    return totals


@pytest.mark.parametrize("name", JOBS)
def test_a_job_takes_runs_in_a_bucket(name: str) -> None:
    (job,) = built(name)
    settings = environment(built("overlays/s3"))
    assert settings["IDC_RUNS"].startswith("s3://")
    assert list(entrypoint_faults(job, settings)) == []


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
    trained = {f"ray_idc_train_{name}" for name in (*train_metrics._GAUGES, "validation")}
    used = metrics_used()
    assert used - ours - theirs - trained == set()
    assert used >= {
        "ray_idc_pairs_waiting", "ray_idc_requests_total", "ray_idc_caption_tokens_total",
        "ray_serve_deployment_replica_healthy", "ray_idc_train_loss",
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


# -- what is found ------------------------------------------------------------------------------------------------


def named(table: dict[tuple[str, ...], list[tuple[str, str, str]]]) -> list[Any]:
    """The rows of a table of mistakes as parameters, named by file and wrong text."""
    return [pytest.param(*key, *row, id=f"{key[-1]} {row[1]}") for key, rows in table.items() for row in rows]


@pytest.mark.parametrize(("file", "right", "wrong", "said"), named(WRONG))
def test_a_wrong_field_is_found_in_its_file(file: str, right: str, wrong: str, said: str, copied: Path) -> None:
    change(copied / file, right, wrong)
    found = list(source_faults(copied))
    assert found
    assert all(fault.startswith(f"{file}: ") for fault in found)
    assert any(re.search(said, fault) for fault in found), found


@pytest.mark.parametrize(("name", "file", "right", "wrong", "said"), named(WRONG_TOGETHER))
def test_a_wrong_value_is_found_in_what_is_applied(
    name: str, file: str, right: str, wrong: str, said: str, copied: Path
) -> None:
    change(copied / file, right, wrong)
    found = list(built_faults(copied, name))
    assert any(re.search(f"^{name}: .*{said}", fault) for fault in found), found


def test_the_builder_refuses_what_it_does_not_know(copied: Path) -> None:
    for wrong, said in (
        ("commonLabels: {a: b}\n", "commonLabels"),
        ("patches: [{target: {kind: Nothing}, patch: '[]'}]\n", "nothing of that kind"),
    ):
        text = (K8S / "overlays" / "kueue" / "kustomization.yaml").read_text(encoding="utf-8")
        (copied / "overlays" / "kueue" / "kustomization.yaml").write_text(text + wrong)
        with pytest.raises(ValueError, match=said):
            build(copied / "overlays" / "kueue")


def test_what_is_written_by_hand_is_said_to_be() -> None:
    """The page names every kind whose schema is ours, and the version of those that are published."""
    text = (K8S / "README.md").read_text(encoding="utf-8")
    assert {kind for _, kind in OWN if kind not in text} == set()
    assert f"Kubernetes {KUBERNETES}" in text
    assert [name for name in TEMPLATES if not (K8S / name).is_dir()] == []


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of ``k8s/``, without the secrets of whoever runs the tests."""
    return Path(shutil.copytree(K8S, tmp_path / "k8s", ignore=shutil.ignore_patterns("*.env")))


def change(path: Path, right: str, wrong: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert right in text
    path.write_text(text.replace(right, wrong, 1))


def by_name(docs: list[Doc]) -> dict[tuple[str, str], Doc]:
    found = {(doc["kind"], doc["metadata"]["name"]): doc for doc in docs}
    assert len(found) == len(docs)
    return found


def entrypoint(name: str) -> str:
    (job,) = built(name)
    return str(job["spec"]["entrypoint"])
