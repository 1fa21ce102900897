"""Versions of a model source: ``models:/captioner@champion``, a folder or its URI (``s3://...``), a model of the hub
(``hf:ORG/NAME``), ``shipped``, the captioner that comes with the program, or ``auto`` -> its current version -> a local
artifact. That of ``auto`` has a hash of the trained captioner and of ``objects`` with its settings.

MLflow is imported when the first ``models:/`` source is used; folders do not need it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from idc.captioning.loading import AUTO, artifact_folder, newest_or_shipped
from idc.captioning.objects_config import ObjectsConfig
from idc.config import missing_database
from idc.data.remote_copies import is_uri, local_folder
from idc.systems import HUB, untrained_name
from idc.training.artifact import CONFIG, IDENTITY_TAG, Artifact, artifact_identity, check_weights, read_artifact
from idc.util.redaction import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

SCHEME = "models:/"
NO_REGISTRY = "models:/ sources need registry.tracking_uri (or MLFLOW_TRACKING_URI)"
"""Fault of a source without a registry."""
_SOURCE = re.compile(r"models:/([^/@:]+)(?:@([^/@:]+)|/([0-9]+))")
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a missing model or version, and for a missing alias."""


class Resolver:
    """Looks up versions in an MLflow registry and fetches their artifacts. Thread-safe.

    Args:
        tracking_uri: tracking URI of MLflow; by default the environment variable MLFLOW_TRACKING_URI.
        objects: settings of ``objects``.
    """

    def __init__(self, tracking_uri: str | None = None, objects: ObjectsConfig | None = None):
        self._objects = objects or ObjectsConfig()
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._shown = redacted(str(self._uri))
        self._hashes: dict[Path, tuple[object, str]] = {}
        """Folder -> (state of its files, hash of their contents)."""
        self._of_hub: dict[str, str] = {}
        """``hf:...`` source -> the folder of its artifact, the same as long as this object lives."""

    def resolve(self, source: str) -> str:
        """The current version of ``source``, for :meth:`fetch`.

        ``models:/captioner@champion`` -> ``models:/captioner/7``. The version of a folder has a hash of its contents,
        ``runs/a/artifact@1f2e3d4c5b6a``: other contents are another version.

        Raises:
            ValueError: the registry cannot be reached or has no such model, alias or version; or the folder holds no
                artifact.
        """
        if not source.startswith(SCHEME):
            return f"{source}@{self._contents(source)}"
        registered = self._version(source)
        return f"{SCHEME}{registered.name}/{registered.version}"

    def fetch(self, version: str, cache: str | Path | None = None) -> Path:
        """A local folder with the artifact of a version from :meth:`resolve`; ``auto`` itself.

        It is downloaded once: other processes wait for the first one, and an interrupted download is discarded.

        Args:
            cache: folder for downloaded artifacts; by default one in the system's folder for temporary files.

        Raises:
            ValueError: as :meth:`resolve`, or the artifact cannot be downloaded or differs from the registered one.
        """
        if not version.startswith(SCHEME):
            source, _, digest = version.rpartition("@")
            folder = str(local_folder(source, stale=True)) if is_uri(source) else source
            if self._contents(folder) != digest:
                raise ValueError(f"{source} has changed since it was looked up; the next look-up uses the new contents")
            return Path(AUTO) if source == AUTO else _checked(self._folder(folder)).path
        root = Path(cache) if cache is not None else Path(tempfile.gettempdir()) / f"idc-artifacts-{os.getuid()}"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if cache is None and root.stat().st_uid != os.getuid():
            raise ValueError(f"{root} belongs to another user; set registry.cache to a folder of your own")
        registered = self._version(version)
        # Two registries may both have a captioner/1, and so may one that was deleted and created again.
        origin = _short(f"{self._uri} {registered.source}")
        target = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', registered.name)}-{registered.version}-{origin}"
        if not target.exists():  # a full cache may be read-only
            with FileLock(root / f".{target.name}.lock"):
                if not target.exists():
                    self._download(version, registered, target)
        return _checked(target).path

    def _folder(self, source: str) -> str:
        """The folder of a source; for a model of the hub that of its artifact, which takes seconds to look up."""
        if not source.startswith(HUB):
            return artifact_folder(source, self._objects)
        if source not in self._of_hub:
            self._of_hub[source] = artifact_folder(source)
        return self._of_hub[source]

    def _contents(self, source: str) -> str:
        """Hash of the contents of a source that is not in a registry."""
        if source != AUTO:
            return self._hash(_checked(self._folder(source)))
        return _short(self._contents(newest_or_shipped()) + self._contents(untrained_name(self._objects)))

    def _hash(self, artifact: Artifact) -> str:
        """Hash of the contents of a folder; they are read again when the files have changed."""
        stats = [(artifact.path / name).stat() for name in (CONFIG, *artifact.files)]
        state = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
        if self._hashes.get(artifact.path, (None, ""))[0] != state:
            self._hashes[artifact.path] = (state, artifact_identity(artifact.path)[:12])
        return self._hashes[artifact.path][1]

    def _version(self, source: str) -> Any:
        """MLflow's entity of the version of a ``models:/`` source."""
        from mlflow.exceptions import MlflowException

        match = _SOURCE.fullmatch(source)
        if match is None:
            raise ValueError(f"{source!r} does not have the form models:/NAME@ALIAS or models:/NAME/VERSION")
        name, alias, version = match.groups()
        what = f"alias {alias!r}" if alias is not None else f"version {version}"
        of = f"of the model {name!r} in the MLflow registry {self._shown}"
        try:
            client = self._client()
            if alias is not None:
                return client.get_model_version_by_alias(name, alias)
            return client.get_model_version(name, version)
        except MlflowException as error:
            if error.error_code in _ABSENT:
                raise ValueError(
                    f"no {what} {of}: `python jobs/promote.py status=true tracking_uri={self._shown}` lists all "
                    "versions and aliases, jobs/register.py adds a version, jobs/promote.py moves an alias to it"
                ) from None
            raise ValueError(
                f"{what} {of} cannot be looked up ({_line(error)}); check the address and whether the server runs"
            ) from None

    def _client(self) -> MlflowClient:
        if self._uri is None:
            raise ValueError(NO_REGISTRY)
        if faults := list(missing_database(self._uri, "registry.tracking_uri")):
            raise ValueError(faults[0])  # MLflow would create an empty one
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
        except (MlflowException, OSError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise ValueError(
                f"{version} of the MLflow registry {self._shown} cannot be downloaded from {registered.source} "
                f"({_line(error)}); check that this location is reachable from here"
            ) from None
        artifact = _checked(folder)
        if (expected := registered.tags.get(IDENTITY_TAG)) is not None and artifact_identity(artifact.path) != expected:
            shutil.rmtree(partial, ignore_errors=True)
            raise ValueError(
                f"{version} of the MLflow registry {self._shown}: {registered.source} differs from the registered "
                "artifact; register it again (python jobs/register.py) and promote that version"
            )
        Path(folder).rename(target)
        shutil.rmtree(partial, ignore_errors=True)


def absolute_uri(uri: str | None) -> str | None:
    """A tracking URI (by default MLFLOW_TRACKING_URI) that is valid in other folders: SQLite by its absolute path."""
    uri, start = uri or os.environ.get("MLFLOW_TRACKING_URI"), "sqlite:///"
    return f"{start}{Path(uri.removeprefix(start)).resolve()}" if uri is not None and uri.startswith(start) else uri


def public_name(version: str) -> str:
    """A version of :meth:`Resolver.resolve` for clients: its name in the registry, or a hash of a folder's contents, so
    that no path of this machine is revealed."""
    return version if version.startswith(SCHEME) else f"sha256:{version.rpartition('@')[2]}"


def _checked(folder: str | Path) -> Artifact:
    artifact = read_artifact(artifact_folder(str(folder)))
    check_weights(artifact)
    return artifact


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _line(error: BaseException) -> str:
    """An error as one line of limited length."""
    return redacted(" ".join(str(error).split()))[:300]
