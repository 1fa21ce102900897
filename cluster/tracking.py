"""MLflow tracking of training runs. After a restart a run is found by its name.

A server must answer when a run starts; while it is away later, training continues and metrics wait.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from idc.training.config import TrackingConfig
from idc.training.tracker import Tracker, tracked_runs
from idc.util import logs
from idc.util.redaction import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_TAG = "idc.run_name"
PARENT_TAG = "mlflow.parentRunId"

_SQLITE = "sqlite:///"
_PATHS = {
    "experiments": "artifact_location", "runs": "artifact_uri", "model_versions": "storage_location",
    "logged_models": "artifact_location",
}  # fmt: skip
"""Tables of MLflow's database -> their column with absolute paths."""

_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow refuses in a metric's name."""
_RETRY_S = 1.0
"""Seconds between two tries while a server is away."""


class MlflowTracker(Tracker):
    """Logs to the experiment's MLflow run of this name, or to a new one.

    All that is logged is queued and written in the background, in order: a write takes tens of milliseconds, a step may
    take less. While a server is away a call is repeated, and the later ones wait, until :meth:`flush` has waited for
    ``patience_s``; MLflow's own asynchronous logging drops them. What MLflow refuses or did not get is reported.

    Args:
        tracking: server and experiment.
        run_dir: the run's folder; without a URI, ``mlflow.db`` (SQLite) and ``mlartifacts`` are created next to it.
            None on object storage, where ``tracking`` must have a URI.
        name: of the run, stable across restarts.
        parent: MLflow id of the parent of a new run. Part of something larger, it waits up to ``patience_s`` for a
            server that is away.
        run_id: of a run that exists: nothing is asked of the server.

    Raises:
        ValueError: no server answers, or it refuses.
    """

    def __init__(
        self,
        tracking: TrackingConfig,
        run_dir: Path | None,
        name: str,
        parent: str | None = None,
        run_id: str | None = None,
    ):
        # Calls are repeated here; MLflow's own 7 retries would keep the start of a run for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow

        for logger in ("alembic", "mlflow.store.db.utils"):  # each table that they create
            logging.getLogger(logger).setLevel(logging.WARNING)
        self.uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(Path(run_dir or ""))
        with opening(self.uri):
            self.client = mlflow.MlflowClient(tracking_uri=self.uri)
        self._patience_s = tracking.patience_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._last = math.inf  # until when calls are repeated
        self._lost: list[str] = []
        last = time.monotonic() + (0 if parent is None else tracking.patience_s)
        try:
            self.run_id = run_id or _patiently(
                lambda: self._open(tracking.experiment, name, parent), lambda: time.monotonic() < last
            )
        except Exception as error:
            if self.uri.startswith(_SQLITE):
                raise
            raise ValueError(
                f"train.tracking.uri: the MLflow server at {redacted(self.uri)} cannot be used "
                f"({_reason(error)}); start it, correct the URI, or set train.tracking.enabled=false"
            ) from error

    def _open(self, experiment: str, name: str, parent: str | None) -> str:
        """Id of the run, which is then RUNNING."""
        from mlflow.entities import RunStatus

        with opening(self.uri):
            experiment_id = open_experiment(self.client, self.uri, experiment)
        if parent is None and (moved := moved_files(self.client, self.uri, experiment_id)) is not None:
            logs.event("tracking", moved, "warning")
        if parent is None:
            logs.event("tracked", f"tracked in MLflow: {tracked_runs(redacted(self.uri), experiment_id)}")
        run_id = find_run(self.client, experiment_id, name)
        if run_id is not None:
            self.client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
            return run_id
        tags = {RUN_TAG: name, **({PARENT_TAG: parent} if parent is not None else {})}
        return str(self.client.create_run(experiment_id, tags=tags, run_name=name).info.run_id)

    def params(self, values: dict[str, Any]) -> None:
        """Log settings; an existing value stays (MLflow's params are write-once)."""
        from mlflow.entities import Param

        def send() -> None:
            logged = self.client.get_run(self.run_id).data.params
            new = [Param(key, str(value)[:6000]) for key, value in values.items() if key not in logged]
            for start in range(0, len(new), 100):
                self.client.log_batch(self.run_id, params=new[start : start + 100])

        self._put(f"{len(values)} settings", send)

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Log points of curves. Characters that MLflow refuses in a name are removed (``S_m*`` becomes ``S_m``)."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [Metric(_FORBIDDEN.sub("", name), float(value), now, step) for name, value in values.items()]
        self._put(f"the metrics of step {step}", lambda: self.client.log_batch(self.run_id, metrics=points))

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        suffix = "" if step is None else f"_{step:08d}"
        file = f"images/{name}{suffix}.png"
        self._put(file, lambda: self.client.log_image(self.run_id, image, artifact_file=file))

    def text(self, name: str, text: str) -> None:
        self._put(name, lambda: self.client.log_text(self.run_id, text, name))

    def artifacts(self, folder: Path, name: str) -> None:
        self._put(f"the files of {name}", lambda: self.client.log_artifacts(self.run_id, str(folder), name))

    def flush(self) -> None:
        """Wait until all is written, at most ``patience_s`` if the server does not answer."""
        self._last = time.monotonic() + self._patience_s
        self._thread.submit(lambda: None).result()
        self._last = math.inf
        if self._lost:
            more = f" and {len(self._lost) - 1} more" if len(self._lost) > 1 else ""
            logs.event("tracking", f"{self._server}: {self._lost[0]}{more} not tracked; log.jsonl has all metrics")
            self._lost = []

    def end(self, finished: bool) -> None:
        status = "FINISHED" if finished else "FAILED"
        self._put(f"the status {status}", lambda: self.client.set_terminated(self.run_id, status))
        self.flush()

    def end_children(self) -> None:
        def send() -> None:
            experiment_id = self.client.get_run(self.run_id).info.experiment_id
            wanted = f"tags.`{PARENT_TAG}` = '{self.run_id}' and attributes.status = 'RUNNING'"
            for run in self.client.search_runs([experiment_id], wanted, max_results=1000):
                self.client.set_terminated(run.info.run_id, "KILLED")

        self._put("the status of killed runs", send)

    @property
    def _server(self) -> str:
        return f"MLflow at {redacted(self.uri)}"

    def _put(self, what: str, send: Callable[[], Any]) -> None:
        """Queue a call; ``what`` is how a message names it."""
        self._thread.submit(self._deliver, what, send)

    def _deliver(self, what: str, send: Callable[[], Any]) -> None:
        if time.monotonic() > self._last:  # an earlier call has used up the time
            self._lost.append(what)
            return
        try:
            _patiently(send, lambda: time.monotonic() < self._last)
        except Exception as error:
            if not self._lost:
                logs.event("tracking", f"{self._server} does not take {what}: {_reason(error)}")
            self._lost.append(what)


def _patiently(call: Callable[[], Any], goes_on: Callable[[], bool]) -> Any:
    """What the call returns, which is repeated while MLflow is away and ``goes_on()``."""
    while True:
        try:
            return call()
        except Exception as error:
            if not _is_away(error) or not goes_on():
                raise
        time.sleep(_RETRY_S)


def _is_away(error: Exception) -> bool:
    """Whether the same call may succeed later: no connection, an overloaded or failing server, a locked database."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import OperationalError

    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())
    elif isinstance(error, RequestException) and error.response is not None:
        status = error.response.status_code
    else:
        status = 503 if isinstance(error, OSError | OperationalError) else 400
    return (status >= 500 or status == 429) and "database or disk is full" not in str(error)  # SQLite's


def _reason(error: Exception) -> str:
    """The innermost cause of an error, in one line; MLflow's own message names the whole URL."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return redacted(" ".join(f"{type(cause).__name__}: {cause}".split())[:200])


def default_uri(run_dir: Path) -> str:
    """Default tracking URI: the SQLite file ``mlflow.db`` next to the run's folder."""
    return f"{_SQLITE}{run_dir.resolve().parent / 'mlflow.db'}"


@contextmanager
def opening(uri: str) -> Iterator[None]:
    """Context in which no other process here opens the same SQLite file: MLflow makes its tables without a lock, and of
    two runs that start side by side one would fail. Nothing to wait for with a server."""
    if not uri.startswith(_SQLITE):
        yield
        return
    from filelock import FileLock

    file = Path(uri.removeprefix(_SQLITE).partition("?")[0]).resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        yield


def open_experiment(client: MlflowClient, uri: str, name: str) -> str:
    """Id of the experiment of this name, created if it does not exist.

    With a SQLite file its artifacts then lie in ``mlartifacts`` next to that file (MLflow's own default is a
    folder below the working directory); a server chooses the location itself.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    return str(client.create_experiment(name, artifact_location=_location_of_files(uri)))


def _location_of_files(uri: str) -> str | None:
    if not uri.startswith(_SQLITE):
        return None
    return (Path(uri.removeprefix(_SQLITE).partition("?")[0]).resolve().parent / "mlartifacts").as_uri()


def moved_files(client: MlflowClient, uri: str, experiment_id: str) -> str | None:
    """A warning if MLflow, which has absolute paths, would write files to where its folder was before it was moved."""
    stored, now = client.get_experiment(experiment_id).artifact_location, _location_of_files(uri)
    folder = Path(unquote(urlparse(stored).path))
    was_ours = now is not None and stored != now and folder.name == "mlartifacts"
    if urlparse(stored).scheme != "file" or not (was_ours or not folder.parent.exists()):
        return None
    warning = f"MLflow at {redacted(uri)} writes files to {folder}, where its folder was before it was moved or copied"
    if now is None:
        return f"{warning}; make that folder on this machine"
    sql = "; ".join(
        f"UPDATE {table} SET {column} = replace({column}, '{stored}', '{now}')" for table, column in _PATHS.items()
    )
    return f"{warning}; move it back, or run: sqlite3 {shlex.quote(uri.removeprefix(_SQLITE))} {shlex.quote(sql)}"


def find_run(client: MlflowClient, experiment_id: str, name: str) -> str | None:
    """Id of the run of this name, or None."""
    quoted = name.replace("'", "\\'")
    runs = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{quoted}'", max_results=1)
    return str(runs[0].info.run_id) if runs else None


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[prefix + key] = value
    return result
