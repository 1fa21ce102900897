"""A registry of captioners for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from idc.captioning.objects_config import ObjectsConfig
from idc.captioning.sources import artifact_folder
from idc.training.artifact import IDENTITY_TAG, artifact_identity

NAME = "models:/captioner@champion"

VERSIONS = {"1": ObjectsConfig(), "2": ObjectsConfig(mode="exact")}
"""Version of the model ``captioner`` -> its settings of ``regions``."""


def version_folder(version: str) -> str:
    return artifact_folder("regions", VERSIONS[version])


def register_versions(tracking_uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Registers :data:`VERSIONS`, the first as ``champion``; files in ``folder``. Returns what moves the alias."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    client = MlflowClient(tracking_uri=tracking_uri)
    run = client.create_run(client.create_experiment("idc", (folder / "mlartifacts").as_uri())).info.run_id
    client.create_registered_model("captioner")
    for version in VERSIONS:
        source = version_folder(version)
        client.log_artifacts(run, source, version)
        tags = {IDENTITY_TAG: artifact_identity(source)}
        client.create_model_version("captioner", f"runs:/{run}/{version}", run, tags)

    def promote(version: str) -> None:
        client.set_registered_model_alias("captioner", "champion", version)

    promote("1")
    return promote
