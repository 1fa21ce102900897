"""Sources of captioners (a folder or its URI, ``shipped``, ``objects``, ``auto``, ``hf:ORG/NAME``,
``models:/captioner@champion``): the version that each has now, and the folder of its artifact.

MLflow is imported when the first ``models:/`` source is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.captioning.objects_config import OBJECTS, REGIONS, ObjectsConfig
from idc.config import missing
from idc.systems import SYSTEMS, artifact_of_hub, artifact_of_objects, system_config, untrained_name
from idc.training.artifact import (
    CONFIG,
    FAMILIARITY,
    IDENTITY_TAG,
    Artifact,
    artifact_identity,
    check_weights,
    read_artifact,
)
from idc.training.base import HUB
from idc.training.config import unusable_tracking
from idc.util.cache import cache_root, make_once
from idc.util.redaction import redacted
from idc.util.shipped_weights import CAPTIONER, SATELLITE, shipped_weights

if TYPE_CHECKING:
    from mlflow import MlflowClient

AUTO = "auto"
"""Names the captioner that chooses for each pair: the one of :func:`newest_or_shipped` where it is familiar with both
images and ``objects`` does not contradict it, else ``objects``."""
SHIPPED = "shipped"
"""Names the captioner that comes with the program."""
SHIPPED_SATELLITE = "shipped-satellite"
"""Names the captioner of satellite images that comes with the program."""
SHIPPED_FOLDERS = {SHIPPED: CAPTIONER, SHIPPED_SATELLITE: SATELLITE}
"""Names of the captioners that come with the program -> their folders."""
REGISTRY = "models:/"
"""A model of the MLflow registry: ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION``."""
NO_REGISTRY = "is in an MLflow registry; set the environment variable MLFLOW_TRACKING_URI, or a server's tracking_uri"
"""Error about a source of :data:`REGISTRY`, whose name it follows."""
_REGISTERED = re.compile(r"models:/([^/@:]+)(?:@([^/@:]+)|/([0-9]+))")
_NOT_ENTERED = frozenset({"artifact", "checkpoints", "best", "mlartifacts"})
"""Folders of runs that are not searched for runs; MLflow's are copies."""


class ModelSources:
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
        self._folder_of_hub = cache(artifact_of_hub)  # the hub takes seconds

    def version(self, source: str) -> str:
        """The current version of ``source``, without paths and addresses of this machine: ``models:/captioner/7``, or
        for files ``sha256:1f2e3d4c5b6a``; for ``auto`` of the trained captioner and of ``objects`` with its settings.

        Raises:
            ValueError: the registry cannot be reached or has no such model, alias or version; or it is no artifact.
        """
        if source.startswith(REGISTRY):
            registered = self._registered(source)
            return f"{REGISTRY}{registered.name}/{registered.version}"
        if source == AUTO:
            return f"sha256:{_short(self._hash(newest_or_shipped()) + self._hash(untrained_name(self._objects)))}"
        return f"sha256:{self._hash(source)}"

    def folder(self, source: str) -> str:
        """The folder of the artifact: a folder or URI itself, for ``auto`` that of its trained captioner, for a model
        of the hub the one that :meth:`version` has read, and for a version in the registry a local copy.

        A model of the hub is downloaded without its weights. A version is downloaded once: other processes wait for the
        first one.

        Raises:
            ValueError: as :meth:`version`, or the artifact is not on this machine and cannot be had, or differs from
                the registered one.
        """
        if source == AUTO:
            source = newest_or_shipped()
        if source.startswith(HUB):
            return self._folder_of_hub(source)
        if source in (OBJECTS, REGIONS):
            return artifact_of_objects(source, self._objects)
        if source in SHIPPED_FOLDERS:
            return str(shipped_weights(SHIPPED_FOLDERS[source], "the captioner", "name an artifact"))
        if not source.startswith(REGISTRY):
            return source
        registered = self._registered(source)
        # Two registries may both have a captioner/1, and so may one that was deleted and created again.
        origin = _short(f"{self._uri} {registered.source}")
        name = f"{re.sub(r'[^A-Za-z0-9._-]', '_', registered.name)}-{registered.version}-{origin}"
        return str(make_once(cache_root() / name, partial(self._download, source, registered)))

    def fetch(self, source: str) -> str:
        """The :meth:`folder`, on this machine; of a URI whose store does not answer the copy that was used last. For
        ``auto``, which loads two captioners, ``auto``."""
        if source == AUTO:
            return source
        from idc.data.remote_copies import is_uri, local_folder  # imports pyarrow, which local artifacts do not need

        folder = self.folder(source)
        return str(local_folder(folder, stale=True)) if is_uri(folder) else folder

    def _hash(self, source: str) -> str:
        """Hash of the contents of an artifact; they are read again when its files have changed."""
        artifact = _checked(self.folder(source))
        stats = [(artifact.path / name).stat() for name in (CONFIG, *artifact.files)]
        state = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
        if self._hashes.get(artifact.path, (None, ""))[0] != state:
            self._hashes[artifact.path] = (state, artifact_identity(artifact.path)[:12])
        return self._hashes[artifact.path][1]

    def _registered(self, source: str) -> Any:
        """MLflow's entity of the version of a ``models:/`` source."""
        match = _REGISTERED.fullmatch(source)
        if match is None:
            raise ValueError(f"{source!r} does not have the form models:/NAME@ALIAS or models:/NAME/VERSION")
        if self._uri is None:
            raise ValueError(f"{source} {NO_REGISTRY}")
        from mlflow.exceptions import MlflowException

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
        for fault in unusable_tracking(self._setting, "tracking_uri"):
            raise ValueError(fault)
        # Report an unreachable server soon: MLflow's default of seven retries takes minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)

    def _download(self, source: str, registered: Any, folder: Path) -> Path:
        """Download a version to below ``folder``. Returns its folder, verified."""
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        try:
            uri = self._client().get_model_version_download_uri(registered.name, registered.version)
            artifact = _checked(download_artifacts(artifact_uri=uri, dst_path=str(folder), tracking_uri=self._uri)).path
            identity = artifact_identity(artifact)
        except (MlflowException, OSError) as error:
            raise ValueError(
                f"{source} of the MLflow registry {self._shown} cannot be downloaded from {registered.source} "
                f"({_line(error)}); check that this location is reachable from here"
            ) from None
        if registered.tags.get(IDENTITY_TAG, identity) != identity:
            raise ValueError(
                f"{source} of the MLflow registry {self._shown}: {registered.source} differs from the registered "
                "artifact; register it again (python jobs/register.py) and promote that version"
            )
        return artifact


def artifact_folder(source: str, objects: ObjectsConfig | None = None) -> str:
    """:meth:`ModelSources.folder` of one source."""
    return ModelSources(objects=objects).folder(source)


def missing_artifact(artifact: str | None, field: str) -> Iterator[str]:
    """Faults of an artifact that is not there, or is not one captioner. Neither hub nor registry is asked."""
    if artifact is None or artifact.startswith((HUB, REGISTRY)):
        yield from unusable_tracking(None, field) if artifact is not None and artifact.startswith(REGISTRY) else ()
        return
    if artifact == AUTO:
        yield f"{field}: {AUTO} chooses a captioner for each pair; name one, such as {SHIPPED} or {OBJECTS}"
        return
    try:
        yield from missing(artifact_folder(artifact), field)
    except ValueError as error:
        yield f"{field}: {error}"


def is_of_hub(artifact: Path) -> bool:
    """Whether a folder is one of :func:`idc.systems.artifact_of_hub`."""
    return artifact.parent == cache_root() and artifact.name.startswith("hf-")


def newest_or_shipped() -> str:
    """The trained captioner of :data:`AUTO`: the newest one below ``runs/`` whose familiarity was fitted, or if there
    is none :data:`SHIPPED`."""
    return newest_captioner() or SHIPPED


def newest_captioner(runs: str = "runs") -> str | None:
    """The most recently written captioner artifact in a folder of runs whose familiarity was fitted; None if there is
    none."""
    artifacts: list[tuple[float, str]] = []
    for folder, names, _ in os.walk(runs):
        path = Path(folder) / "artifact"
        if "artifact" in names and (path / FAMILIARITY).is_file() and (path / CONFIG).is_file():
            artifacts.append(((path / CONFIG).stat().st_mtime, str(path)))
        names[:] = [name for name in names if name not in _NOT_ENTERED and not name.startswith(".")]
    for _, artifact in sorted(artifacts, reverse=True):
        try:
            if is_captioner(artifact):
                return artifact
        except (ValueError, OSError):  # damaged or half copied; an older one may be whole
            continue
    return None


def is_captioner(artifact: str) -> bool:
    """Whether an artifact is a captioner of one of the systems: all of a system's are, unless its ``config`` module
    has an ``is_captioner(config)``. Loads no torch. ValueError if it is not a whole artifact."""
    record = read_artifact(artifact)
    if record.system not in SYSTEMS:
        return False
    decide = getattr(system_config(record.system), "is_captioner", None)
    return decide is None or bool(decide(record.config))


def supervision_of(system: str, config: dict[str, Any]) -> str | None:
    """What an artifact of this config was taught by besides images, in a few words for tables; None for a system
    that is not in the list. Captions alone, unless the system's ``config`` module has a ``supervision(config)``.
    Loads no torch."""
    if system not in SYSTEMS:
        return None
    words = getattr(system_config(system), "supervision", None)
    return "captions" if words is None else str(words(config))


def _checked(folder: str) -> Artifact:
    artifact = read_artifact(folder)
    check_weights(artifact)
    return artifact


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _line(error: BaseException) -> str:
    """An error as one line of limited length."""
    return redacted(" ".join(str(error).split()))[:300]
