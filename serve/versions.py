"""Model sources (``models:/captioner@champion``, a folder or its URI, ``hf:ORG/NAME``, ``shipped``, ``auto``, ...): the
version that each has now, and its artifact on this machine.

MLflow is imported when the first ``models:/`` source is used; folders do not need it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from idc.captioning.loading import AUTO, artifact_folder, newest_or_shipped
from idc.captioning.objects_config import ObjectsConfig
from idc.data.remote_copies import cache_root, is_uri, local_folder
from idc.systems import HUB, untrained_name
from idc.training.artifact import CONFIG, IDENTITY_TAG, Artifact, artifact_identity, check_weights, read_artifact
from idc.training.config import unusable_tracking
from idc.util.redaction import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

SCHEME = "models:/"
NO_REGISTRY = "models:/ sources need tracking_uri (or MLFLOW_TRACKING_URI)"
_SOURCE = re.compile(r"models:/([^/@:]+)(?:@([^/@:]+)|/([0-9]+))")


class Resolver:
    """Looks up versions, in an MLflow registry or by the contents of files, and fetches artifacts. Thread-safe.

    Args:
        tracking_uri: of MLflow; by default the environment variable MLFLOW_TRACKING_URI.
        objects: settings of ``objects``.
    """

    def __init__(self, tracking_uri: str | None = None, objects: ObjectsConfig | None = None):
        self._objects = objects or ObjectsConfig()
        self._setting = tracking_uri
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._shown = redacted(str(self._uri))
        self._hashes: dict[Path, tuple[object, str]] = {}
        """Folder -> (state of its files, hash of their contents)."""
        self._folder_of_hub = cache(artifact_folder)  # the hub takes seconds

    def resolve(self, source: str) -> str:
        """The current version of ``source``, without paths and addresses of this machine: ``models:/captioner/7``, or
        for files ``sha256:1f2e3d4c5b6a``; for ``auto`` of the trained captioner and of ``objects`` with its settings.

        Raises:
            ValueError: the registry cannot be reached or has no such model, alias or version; or it is no artifact.
        """
        if source.startswith(SCHEME):
            registered = self._registered(source)
            return f"{SCHEME}{registered.name}/{registered.version}"
        if source == AUTO:
            return f"sha256:{_short(self._hash(newest_or_shipped()) + self._hash(untrained_name(self._objects)))}"
        return f"sha256:{self._hash(source)}"

    def fetch(self, source: str) -> str:
        """What a captioner is loaded from: the source itself, but of the hub the folder that :meth:`resolve` has read,
        and of a version in the registry or a URI a local copy; the last one of a URI whose store does not answer.

        A version is downloaded once: other processes wait for the first one, and an interrupted download is discarded.

        Raises:
            ValueError: as :meth:`resolve`, or the artifact cannot be downloaded or differs from the registered one.
        """
        if source.startswith(HUB):
            return self._folder_of_hub(source)
        if not source.startswith(SCHEME):
            return str(local_folder(source, stale=True)) if is_uri(source) else source
        registered, root = self._registered(source), cache_root()
        # Two registries may both have a captioner/1, and so may one that was deleted and created again.
        origin = _short(f"{self._uri} {registered.source}")
        target = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', registered.name)}-{registered.version}-{origin}"
        if not target.exists():  # a full cache may be read-only
            with FileLock(root / f".{target.name}.lock"):
                if not target.exists():
                    self._download(source, registered, target)
        return str(target)

    def _hash(self, source: str) -> str:
        """Hash of the contents of an artifact; they are read again when its files have changed."""
        folder = self._folder_of_hub(source) if source.startswith(HUB) else artifact_folder(source, self._objects)
        artifact = _checked(folder)
        stats = [(artifact.path / name).stat() for name in (CONFIG, *artifact.files)]
        state = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
        if self._hashes.get(artifact.path, (None, ""))[0] != state:
            self._hashes[artifact.path] = (state, artifact_identity(artifact.path)[:12])
        return self._hashes[artifact.path][1]

    def _registered(self, source: str) -> Any:
        """MLflow's entity of the version of a ``models:/`` source."""
        from mlflow.exceptions import MlflowException

        match = _SOURCE.fullmatch(source)
        if match is None:
            raise ValueError(f"{source!r} does not have the form models:/NAME@ALIAS or models:/NAME/VERSION")
        name, alias, version = match.groups()
        try:
            if alias is not None:
                return self._client().get_model_version_by_alias(name, alias)
            return self._client().get_model_version(name, version)
        except MlflowException as error:
            raise ValueError(
                f"{source} cannot be looked up in the MLflow registry {self._shown} ({_line(error)}): check whether it "
                f"runs there; `python jobs/promote.py status=true tracking_uri={self._shown}` lists versions and "
                "aliases, jobs/register.py adds a version, jobs/promote.py moves an alias to it"
            ) from None

    def _client(self) -> MlflowClient:
        if self._uri is None:
            raise ValueError(NO_REGISTRY)
        for fault in unusable_tracking(self._setting, "tracking_uri"):
            raise ValueError(fault)
        # Report an unreachable server soon: MLflow's default of seven retries takes minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)

    def _download(self, version: str, registered: Any, target: Path) -> None:
        """Download to ``target``, which exists only when it is complete and verified."""
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process; we hold the lock
        try:
            uri = self._client().get_model_version_download_uri(registered.name, registered.version)
            folder = download_artifacts(artifact_uri=uri, dst_path=str(partial), tracking_uri=self._uri)
            identity = artifact_identity(_checked(folder).path)
            if registered.tags.get(IDENTITY_TAG, identity) != identity:
                raise ValueError(
                    f"{version} of the MLflow registry {self._shown}: {registered.source} differs from the registered "
                    "artifact; register it again (python jobs/register.py) and promote that version"
                )
            Path(folder).rename(target)
        except (MlflowException, OSError) as error:
            raise ValueError(
                f"{version} of the MLflow registry {self._shown} cannot be downloaded from {registered.source} "
                f"({_line(error)}); check that this location is reachable from here"
            ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def absolute_uri(uri: str | None) -> str | None:
    """A tracking URI (by default MLFLOW_TRACKING_URI) that is valid in other folders: SQLite by its absolute path."""
    uri, start = uri or os.environ.get("MLFLOW_TRACKING_URI"), "sqlite:///"
    return f"{start}{Path(uri.removeprefix(start)).resolve()}" if uri is not None and uri.startswith(start) else uri


def _checked(folder: str) -> Artifact:
    artifact = read_artifact(folder)
    check_weights(artifact)
    return artifact


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _line(error: BaseException) -> str:
    """An error as one line of limited length."""
    return redacted(" ".join(str(error).split()))[:300]
