"""Model sources to local folders: versions of a real MLflow registry on SQLite, downloaded once."""

from __future__ import annotations

import shutil
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

from idc.captioning.loading import artifact_folder
from idc.captioning.objects_config import ObjectsConfig
from idc.training.artifact import CONFIG, IDENTITY_TAG, WEIGHTS, artifact_identity, read_artifact, write_artifact
from serve.deployment.command import absolute_folder
from serve.versions import Resolver, absolute_uri
from tests.vlm.hub import point_to, serving_hub
from tests.vlm.models import tiny_folder


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

    def weights(self, value: float) -> Path:
        """In MLflow's storage."""
        return self.folder / f"mlartifacts/{self.run_id}/artifacts/artifact-{value}/{WEIGHTS}"

    def fetch(self, version: int = 1) -> Path:
        return Path(Resolver(self.uri).fetch(f"models:/captioner/{version}"))


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
    resolver = Resolver("sqlite:////nowhere/mlflow.db")
    assert resolver.resolve(str(artifact)) == f"sha256:{artifact_identity(artifact)[:12]}"
    assert resolver.fetch(str(artifact)) == str(artifact)
    shutil.rmtree(artifact)
    make_artifact(artifact, 2.0)
    assert resolver.resolve(str(artifact)) == f"sha256:{artifact_identity(artifact)[:12]}"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match=r"no config\.json"):
        resolver.resolve(str(tmp_path / "lost"))


def test_concurrent_fetches_download_once(registry: Registry) -> None:
    with ThreadPool(4) as pool:
        first, *others = pool.map(registry.fetch, [1] * 4, chunksize=1)
    assert set(others) == {first}
    assert weight(first) == 1.0
    inode = first.stat().st_ino
    shutil.rmtree(registry.weights(1.0).parent)
    assert registry.fetch() == first
    assert first.stat().st_ino == inode, "nothing was downloaded again"
    assert [path for path in registry.cache.iterdir() if path.is_dir()] == [first], "nothing partial is left"


def test_an_artifact_that_was_exchanged_or_cut_short_is_not_the_registered_one(registry: Registry) -> None:
    """Whoever can write to the store of files, and not to the registry, cannot serve other weights."""
    weights = registry.weights(1.0)
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
    resolver = Resolver(registry.uri)
    for source, named in {
        "models:/captioner@champion": "models:/captioner@champion cannot be looked up.*jobs/promote.py",
        "models:/captioner/9": "models:/captioner/9 cannot be looked up",
        "models:/captioner": "does not have the form models:/NAME@ALIAS or models:/NAME/VERSION",
    }.items():
        with pytest.raises(ValueError, match=named):
            resolver.resolve(source)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ValueError, match=r"cannot be looked up .*check whether it runs"):
        Resolver("http://127.0.0.1:1").resolve("models:/captioner@champion")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match="need tracking_uri"):
        Resolver(None).resolve("models:/captioner/1")


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
        resolver = Resolver()
        version = resolver.resolve(source)
        assert asked
    assert resolver.resolve(source) == version == Resolver().resolve(source), "the hub is gone, and not asked again"
    folder = Path(resolver.fetch(source))  # what was hashed, not what the hub holds meanwhile
    assert version == f"sha256:{artifact_identity(folder)[:12]}"
    assert folder.is_relative_to(tmp_path / "artifacts")
    assert read_artifact(folder).system == "zeroshot"
    for name in (source, "regions", "objects", "auto"):
        assert absolute_folder(name) == name, "replicas resolve it themselves"


def test_the_version_of_auto_changes_with_its_trained_captioner_and_with_the_settings_of_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    without = Resolver(objects=ObjectsConfig(detector="none"))
    assert without.fetch("auto") == "auto"
    versions = [without.resolve("auto"), Resolver(objects=ObjectsConfig(detector="none", mode="exact")).resolve("auto")]
    newest = Path(shutil.copytree(artifact_folder("shipped"), tmp_path / "runs" / "mine" / "artifact"))
    with (newest / CONFIG).open("a") as config:
        config.write("\n")
    versions.append(without.resolve("auto"))
    assert len(set(versions)) == 3
