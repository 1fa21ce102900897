"""From what a config names to a folder with an artifact: ``models:/captioner@champion`` -> version -> local copy.

MLflow is imported when a ``models:/`` source is used for the first time; folders need none of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.config import missing_database
from idc.training.artifact import CONFIG, IDENTITY_TAG, Artifact, check_weights, identity, read_artifact

if TYPE_CHECKING:
    from mlflow import MlflowClient

SCHEME = "models:/"
NO_REGISTRY = "models:/ sources need registry.tracking_uri (or MLFLOW_TRACKING_URI)"
"""The fault of a source whose registry is not named."""
_SOURCE = re.compile(r"models:/(?P<name>[^/@:]+)(?:@(?P<alias>[^/@:]+)|/(?P<version>[0-9]+))")
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a model, version or alias that is not there (an alias gives the second)."""


@dataclass(frozen=True)
class _Reference:
    """A ``models:/`` source in its parts; one of ``alias`` and ``version`` is given."""

    name: str
    alias: str | None
    version: str | None


class Resolver:
    """Looks up versions in an MLflow registry, and fetches their artifacts. Safe to use from several threads.

    Args:
        tracking_uri: MLflow's; by default the environment variable MLFLOW_TRACKING_URI.
    """

    def __init__(self, tracking_uri: str | None = None):
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._marks: dict[Path, tuple[object, str]] = {}
        """Folder -> (state of its files, mark of their contents)."""

    def resolve(self, source: str) -> str:
        """The version that ``source`` stands for now, as :meth:`fetch` takes it.

        ``models:/captioner@champion`` -> ``models:/captioner/7``. A folder gets a mark of its contents,
        ``runs/a/artifact@1f2e3d4c5b6a``: with other contents it is another version.

        Raises:
            ValueError: the registry cannot be reached, or has no such model, alias or version; the folder holds no
                artifact. The message says what to do.
        """
        if not source.startswith(SCHEME):
            return f"{source}@{self._mark(_checked(source))}"
        wanted = _parse(source)
        return f"{SCHEME}{wanted.name}/{self._version(wanted).version}"

    def fetch(self, version: str, cache: str | Path | None = None) -> Path:
        """A local folder with the artifact of a version, as :meth:`resolve` gives it.

        It is downloaded once; other processes wait for the one that does, and a download that was cut short leaves
        nothing that counts. What is in the cache is taken even if the registry does not answer.

        Args:
            cache: folder for downloaded artifacts; by default one in the system's folder for temporary files.

        Raises:
            ValueError: as :meth:`resolve`, or the artifact cannot be downloaded or is not what was registered.
        """
        if not version.startswith(SCHEME):
            folder, _, mark = version.rpartition("@")
            artifact = _checked(folder)
            if self._mark(artifact) != mark:
                raise ValueError(f"{folder} has changed since it was looked up; the next look takes the new contents")
            return artifact.path
        wanted = _parse(version)
        if wanted.version is None:
            raise ValueError(f"{version} is an alias, which may move: resolve it to a version first")
        root = Path(cache) if cache is not None else Path(tempfile.gettempdir()) / f"idc-artifacts-{os.getuid()}"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if cache is None and root.stat().st_uid != os.getuid():
            raise ValueError(f"{root} belongs to another user; set registry.cache to a folder of your own")
        # Two registries may both have a captioner/1, and so may one that was deleted and made anew: the name has
        # the registry and the place in it that the version was uploaded to.
        stem = f"{re.sub(r'[^A-Za-z0-9._-]', '_', wanted.name)}-{wanted.version}-{_short(str(self._uri))}"
        try:
            found = self._version(wanted)
        except ValueError:
            kept = sorted(root.glob(f"{stem}-*/config.json"), key=lambda path: path.stat().st_mtime)
            if not kept:
                raise
            return _checked(kept[-1].parent).path
        target = root / f"{stem}-{_short(found.source)}"
        if not target.exists():
            with (root / f".{target.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not target.exists():
                    self._download(version, found, target)
        return _checked(target).path

    def _mark(self, artifact: Artifact) -> str:
        """Of the contents of a folder; they are read again when the files have changed."""
        found = [(artifact.path / name).stat() for name in (CONFIG, *artifact.files)]
        state = [(one.st_ino, one.st_mtime_ns, one.st_size) for one in found]
        if self._marks.get(artifact.path, (None, ""))[0] != state:
            self._marks[artifact.path] = (state, identity(artifact.path)[:12])
        return self._marks[artifact.path][1]

    def _version(self, wanted: _Reference) -> Any:
        """MLflow's entity of the version."""
        from mlflow.exceptions import MlflowException

        what = f"alias {wanted.alias!r}" if wanted.alias is not None else f"version {wanted.version}"
        of = f"of the model {wanted.name!r} in the MLflow registry {self._uri}"
        try:
            client = self._client()
            if wanted.alias is not None:
                return client.get_model_version_by_alias(wanted.name, wanted.alias)
            return client.get_model_version(wanted.name, str(wanted.version))
        except MlflowException as error:
            if error.error_code in _ABSENT:
                raise ValueError(
                    f"there is no {what} {of}: `python jobs/promote.py status=true tracking_uri={self._uri}` lists "
                    "what there is, jobs/register.py adds a version, jobs/promote.py gives it the alias"
                ) from None
            raise ValueError(
                f"{what} {of} cannot be looked up ({_line(error)}); is the address right, and does the server run?"
            ) from None

    def _client(self) -> MlflowClient:
        if self._uri is None:
            raise ValueError(NO_REGISTRY)
        if faults := list(missing_database(self._uri, "registry.tracking_uri")):
            raise ValueError(faults[0])  # MLflow would make an empty one
        # A server that is away is to be told of soon: MLflow's own seven retries take minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)

    def _download(self, version: str, found: Any, target: Path) -> None:
        """Into ``target``, which is there only when it is complete and right."""
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed; the lock is ours
        try:
            uri = self._client().get_model_version_download_uri(found.name, found.version)
            got = download_artifacts(artifact_uri=uri, dst_path=str(partial), tracking_uri=self._uri)
        except (MlflowException, OSError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise ValueError(
                f"{version} of the MLflow registry {self._uri} cannot be downloaded from {found.source} "
                f"({_line(error)}); is that place reachable from here?"
            ) from None
        artifact = _checked(got)
        if (mark := found.tags.get(IDENTITY_TAG)) is not None and identity(artifact.path) != mark:
            shutil.rmtree(partial, ignore_errors=True)
            raise ValueError(
                f"{version} of the MLflow registry {self._uri}: {found.source} is not what was registered; "
                "register the artifact again (python jobs/register.py) and promote that version"
            )
        Path(got).rename(target)
        shutil.rmtree(partial, ignore_errors=True)


def absolute_uri(uri: str | None) -> str | None:
    """A tracking URI (by default MLFLOW_TRACKING_URI) as processes in other folders see it: a SQLite file by its whole
    path."""
    uri, start = uri or os.environ.get("MLFLOW_TRACKING_URI"), "sqlite:///"
    return f"{start}{Path(uri.removeprefix(start)).resolve()}" if uri is not None and uri.startswith(start) else uri


def public_name(version: str) -> str:
    """How clients see a version of :meth:`Resolver.resolve`: as the registry calls it, or as a hash of the contents.
    Folders of this machine are not named."""
    return version if version.startswith(SCHEME) else f"sha256:{version.rpartition('@')[2]}"


def _checked(folder: str | Path) -> Artifact:
    artifact = read_artifact(folder)
    check_weights(artifact)
    return artifact


def _parse(source: str) -> _Reference:
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ValueError(f"{source!r} is not of the form models:/NAME@ALIAS or models:/NAME/VERSION")
    return _Reference(**match.groupdict())


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _line(error: BaseException) -> str:
    """An error in one line that is not too long."""
    return " ".join(str(error).split())[:300]
