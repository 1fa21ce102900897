"""Settings of an application, all faults at once before Ray is started, and its models: sources to local folders,
versions of a real MLflow registry on SQLite, downloaded once."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from mlflow import MlflowClient
from ray.serve.schema import ServeDeploySchema

from idc.captioning.objects_config import ObjectsConfig
from idc.captioning.sources import NO_REGISTRY, SHIPPED, ModelSources, artifact_folder
from idc.config import ConfigError, load
from idc.data.text import Vocabulary
from idc.training.artifact import CONFIG, IDENTITY_TAG, WEIGHTS, artifact_identity, read_artifact, write_artifact
from serve.app import build, default_settings
from serve.backend import EncodedPair, Options, Overloaded
from serve.config import CommandConfig, ServeConfig, absolute_uri
from serve.deployment.command import absolute_folder
from serve.deployment.model import Model
from tests.serve.command import free_port
from tests.serve.local import local_config
from tests.serve.waiting import in_loop
from tests.vlm.hub import point_to, serving_hub
from tests.vlm.models import tiny_folder

CONFIGS = Path(__file__).parents[2] / "serve" / "configs"


def test_without_a_model_auto_is_served_on_this_machine_alone_and_else_the_models_that_are_named() -> None:
    def served(*argv: str) -> CommandConfig:
        config, *settings = [*default_settings(argv)[1:], *argv]
        pairs = [word.removeprefix("--").partition("=")[::2] for word in settings]
        return load(CommandConfig, config, {key: None if value == "null" else value for key, value in pairs})

    config = served("port=8001")
    assert (config.models, config.auth.tokens, config.host) == ({"auto": "auto"}, {}, "127.0.0.1")
    assert list(config.preflight()) == []
    assert served("--models.mine=runs/mine/artifact").models == {"mine": "runs/mine/artifact"}


def deployment(name: str) -> tuple[dict[str, Any], ServeDeploySchema]:
    """A file for ``serve deploy``, and as Serve reads it."""
    text = yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))
    return text, ServeDeploySchema.model_validate(text)


def test_the_production_file_is_one_that_serve_and_we_know_entirely() -> None:
    text, schema = deployment("production.yaml")
    (application,) = schema.applications
    assert application.import_path == "serve.app:build"
    assert set(text) <= set(ServeDeploySchema.model_fields)  # Serve itself takes keys that it does not know
    assert set(text["http_options"]) <= set(type(schema.http_options).model_fields)
    assert set(text["applications"][0]) <= set(type(application).model_fields)
    assert load(ServeConfig, overrides=application.args).auth.tokens


def test_the_file_for_a_language_model_has_the_keys_of_ray_serve_llm_and_ours() -> None:
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

    text, schema = deployment("language_model.yaml")
    model, ours = schema.applications
    (settings,) = model.args["llm_configs"]
    assert set(settings) <= set(LLMConfig.model_fields)
    LLMConfig.model_validate(settings)
    config = load(ServeConfig, overrides=ours.args)
    assert config.loading.endpoint.url.endswith(f":{text['http_options']['port']}{model.route_prefix}/v1")


GOOD: dict[str, Any] = {"models": {"a": "runs/a"}}


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"auth": {"tokens": {"me": "secret"}}}, ["auth.tokens.me: "]),
        ({"auth": {"origins": ["https://*.example.org"]}}, ["auth.origins.0: "]),
        ({"models": {}}, ["models: empty; name at least one"]),
        ({"models": {"auto": "auto"}, "loading": {"endpoint": {"url": "http://x/v1"}}}, ["models: auto runs here"]),
        ({"limits": {"waiting_pairs": 127, "timeout_s": 0}}, ["limits.waiting_pairs: ", "limits.timeout_s: "]),
        ({"scaling": {"min_replicas": 3}}, ["scaling.min_replicas: 3"]),
        ({"scaling": {"max_pair": 4}}, ["scaling.max_pair: no such setting; did you mean 'max_pairs'?"]),
    ],
)
def test_every_fault_is_named_with_its_place(changes: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        build({**GOOD, **changes})
    assert len(refused.value.errors) == len(faults), refused.value.errors
    for fault in faults:
        assert any(line.startswith(f"args of serve.app:build: {fault}") for line in refused.value.errors), fault


def test_what_cannot_be_loaded_is_a_fault_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    weights, words = {"w": torch.zeros(2)}, Vocabulary(["red"])
    for name in ("good", "cut", "deep"):
        write_artifact(tmp_path / name, system="procap", config={}, state_dict=weights, vocabulary=words)
    (tmp_path / "cut" / WEIGHTS).write_bytes(b"{}")
    (tmp_path / "deep" / CONFIG).write_bytes(b"[" * 100_000)
    models = {name: str(tmp_path / name) for name in ("good", "cut", "deep")}
    models["registered"] = "models:/captioner@champion"
    cut, deep, registered = load(CommandConfig, overrides={**GOOD, "models": models, "port": free_port()}).preflight()
    assert re.match(rf"models\.cut: .*{WEIGHTS} is damaged", cut)
    assert re.match(r"models\.deep: .*nested too deep", deep)
    assert registered == f"models.registered: models:/captioner@champion {NO_REGISTRY}"
    with pytest.raises(ConfigError, match=re.escape(registered)):
        build({**GOOD, "models": models})


@pytest.mark.parametrize("auth", [{}, {"auth": {}}, {"auth": {"tokens": {}}}])
def test_a_cluster_serves_nobody_without_tokens(auth: dict[str, Any]) -> None:
    """There, a proxy, a sidecar or a forwarded port makes others seem to be on this machine."""
    with pytest.raises(ConfigError, match=r"auth\.tokens: empty.*openssl rand -hex 32.*sha256sum"):
        build({**GOOD, **auth})


def test_the_command_names_what_is_missing_and_what_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-m", "serve.app", f"port={port}", "models.mine=runs/mine/artifact"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert run.returncode == 2
    assert f"port: cannot listen on 127.0.0.1:{port} (Address already in use); try port={port + 1}" in run.stderr
    assert "models.mine: runs/mine/artifact is not an artifact (it has no config.json)" in run.stderr
    with pytest.raises(ConfigError, match=r"host: '0\.0\.0\.0' needs auth\.tokens"):
        load(CommandConfig, overrides={**GOOD, "host": "0.0.0.0"})


# -- models


def make_artifact(path: Path, value: float) -> Path:
    return write_artifact(path, system="toy", config={}, state_dict={"weight": torch.full((3,), value)})


class Registry:
    """An MLflow registry with versions of the model ``captioner``, and a cache for what is fetched from it."""

    def __init__(self, uri: str, folder: Path):
        self.client = MlflowClient(tracking_uri=uri)
        self.uri, self.folder, self.cache = uri, folder, folder / "cache"
        experiment = self.client.create_experiment("idc", (folder / "mlartifacts").as_uri())
        self.run_id = self.client.create_run(experiment).info.run_id
        self.client.create_registered_model("captioner")

    def add(self, artifact: Path, **tags: str) -> None:
        """Add a version."""
        self.client.log_artifacts(self.run_id, str(artifact), artifact.name)
        source = f"runs:/{self.run_id}/{artifact.name}"
        self.client.create_model_version("captioner", source, self.run_id, tags)

    def add_weight(self, value: float) -> None:
        """Add a version with an artifact of its own."""
        artifact = make_artifact(self.folder / f"artifact-{value}", value)
        self.add(artifact, **{IDENTITY_TAG: artifact_identity(artifact)})

    def weights(self) -> Path:
        """Of the first version, in MLflow's storage."""
        return self.folder / f"mlartifacts/{self.run_id}/artifacts/artifact-1.0/{WEIGHTS}"

    def fetch(self, version: int = 1) -> Path:
        return Path(ModelSources(self.uri).fetch(f"models:/captioner/{version}"))


@pytest.fixture
def registry(tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry(tracking_uri, tmp_path)
    monkeypatch.setenv("IDC_CACHE", str(registry.cache))
    registry.add_weight(1.0)
    return registry


def weight(folder: Path) -> float:
    return float(read_artifact(folder).state_dict()["weight"][0])


def test_folders_are_themselves_and_need_no_registry(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", 1.0)
    sources = ModelSources("sqlite:////nowhere/mlflow.db")
    assert sources.version(str(artifact)) == f"sha256:{artifact_identity(artifact)[:12]}"
    assert sources.fetch(str(artifact)) == str(artifact)
    shutil.rmtree(artifact)
    make_artifact(artifact, 2.0)
    assert sources.version(str(artifact)) == f"sha256:{artifact_identity(artifact)[:12]}"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match=r"no config\.json"):
        sources.version(str(tmp_path / "lost"))


def test_concurrent_fetches_download_once(registry: Registry) -> None:
    with ThreadPool(4) as pool:
        first, *others = pool.map(registry.fetch, [1] * 4, chunksize=1)
    assert set(others) == {first}
    assert weight(first) == 1.0
    inode = first.stat().st_ino
    shutil.rmtree(registry.weights().parent)
    assert registry.fetch() == first
    assert first.stat().st_ino == inode, "nothing was downloaded again"
    assert [path for path in registry.cache.iterdir() if path.is_dir()] == [first], "nothing partial is left"


def test_an_artifact_that_was_exchanged_or_cut_short_is_not_the_registered_one(registry: Registry) -> None:
    """Whoever can write to the store of files, and not to the registry, cannot serve other weights."""
    weights = registry.weights()
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match="differs from the registered artifact; register it again"):
        registry.fetch()
    weights.unlink()
    with pytest.raises(ValueError, match=r"incomplete, model\.safetensors is missing"):
        registry.fetch()
    weights.write_bytes(content)
    assert weight(registry.fetch()) == 1.0, "what was cut short does not count"


def test_the_same_number_in_another_registry_is_another_version(
    registry: Registry, mlflow_database: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    shutil.copyfile(mlflow_database, tmp_path / "other" / "mlflow.db")
    other = Registry(f"sqlite:///{tmp_path / 'other' / 'mlflow.db'}", tmp_path / "other")
    other.add_weight(2.0)
    assert (weight(registry.fetch()), weight(other.fetch())) == (1.0, 2.0)


def test_what_is_missing_is_named_with_the_way_out(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ModelSources(registry.uri)
    for source, named in {
        "models:/captioner@champion": "models:/captioner@champion cannot be looked up.*jobs/promote.py",
        "models:/captioner/9": "models:/captioner/9 cannot be looked up",
        "models:/captioner": "does not have the form models:/NAME@ALIAS or models:/NAME/VERSION",
    }.items():
        with pytest.raises(ValueError, match=named):
            sources.version(source)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ValueError, match=r"cannot be looked up .*check whether it runs"):
        ModelSources("http://127.0.0.1:1").version("models:/captioner@champion")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match="models:/captioner/1 is in an MLflow registry; set the environment variable"):
        ModelSources(None).version("models:/captioner/1")


def test_a_database_is_found_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("sqlite:///runs/mlflow.db") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert absolute_uri("http://mlflow:5000") == "http://mlflow:5000"


def test_a_model_of_the_hub_is_looked_up_once_and_has_a_version_by_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "artifacts"))
    source = "hf:org/tiny"
    with serving_hub(tiny_folder("internvl")) as (endpoint, asked):
        point_to(endpoint, monkeypatch)
        sources = ModelSources()
        version = sources.version(source)
        assert asked
    assert sources.version(source) == version == ModelSources().version(source), "the hub is gone, and not asked again"
    folder = Path(sources.fetch(source))  # what was hashed, not what the hub holds meanwhile
    assert version == f"sha256:{artifact_identity(folder)[:12]}"
    assert folder.is_relative_to(tmp_path / "artifacts")
    assert read_artifact(folder).system == "zeroshot"
    for name in (source, "regions", "objects", "auto"):
        assert absolute_folder(name) == name, "replicas resolve it themselves"


def test_the_version_of_auto_changes_with_its_trained_captioner_and_with_the_settings_of_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    without = ModelSources(objects=ObjectsConfig(detector="none"))
    assert without.fetch("auto") == "auto"
    versions = [
        without.version("auto"),
        ModelSources(objects=ObjectsConfig(detector="none", mode="exact")).version("auto"),
    ]
    newest = Path(shutil.copytree(artifact_folder(SHIPPED), tmp_path / "runs" / "mine" / "artifact"))
    with (newest / CONFIG).open("a") as config:
        config.write("\n")
    versions.append(without.version("auto"))
    assert len(set(versions)) == 3


def replica(**models: str) -> Model:
    """Without Ray, and without any captioner as yet."""
    replica = Model.__new__(Model)
    replica._config, replica._sources = local_config(models), ModelSources()
    replica._loading, replica._captioners, replica._not_before = replica._config.loading, {}, {}
    replica._statuses = {status.name: status for status in replica._config.unknown_models()}
    return replica


def test_contents_that_change_between_the_look_up_and_the_load_are_not_served(tmp_path: Path) -> None:
    source = str(shutil.copytree(artifact_folder(SHIPPED), tmp_path / "artifact"))
    loading = replica(mine=source)
    version = loading._sources.version(source)
    loading._load(source, version)
    with (tmp_path / "artifact" / CONFIG).open("a") as config:
        config.write("\n")
    with pytest.raises(ValueError, match="artifact has changed since it was looked up"):
        loading._load(source, version)
    loading._load(source, loading._sources.version(source))


@in_loop
async def test_each_name_of_contents_that_cannot_be_loaded_has_its_fault(tmp_path: Path) -> None:
    broken = write_artifact(tmp_path / "a", system="twincap", config={"none": 1}, state_dict={"w": torch.zeros(2)})
    failing = replica(first=str(broken), second=str(shutil.copytree(broken, tmp_path / "b")))
    first, second = await failing._refresh()
    assert (first[:14], second[:15]) == ("models.first: ", "models.second: ")
    for name in ("first", "second"):
        with pytest.raises(Overloaded, match=r"^sha256:\w+ cannot be served; see the server log"):
            await failing.caption_pair(name, EncodedPair(b"", b""), Options())
    assert await failing._refresh() == [], "they are not tried again at once"
