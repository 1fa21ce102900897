"""MLflow tracking of training runs. After a restart a run is found by its name."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.training.config import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_TAG = "idc.run_name"
PARENT_TAG = "mlflow.parentRunId"

_SQLITE = "sqlite:///"

_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""What MLflow refuses in a metric's name."""


class MlflowTracker:
    """Logs to the experiment's MLflow run of this name, or to a new one.

    Metrics are queued and written in the background: a write takes tens of milliseconds, a step may take less.

    Args:
        tracking: server and experiment.
        run_dir: the run's folder; without a URI, ``mlflow.db`` (SQLite) and ``mlartifacts`` are created next to it.
            None on object storage, where ``tracking`` must have a URI.
        name: of the run, stable across restarts.
        parent: MLflow id of the parent of a new run.
    """

    def __init__(self, tracking: TrackingConfig, run_dir: Path | None, name: str, parent: str | None = None):
        import mlflow
        from mlflow.entities import RunStatus

        for name in ("alembic", "mlflow.store.db.utils"):  # each table that they create
            logging.getLogger(name).setLevel(logging.WARNING)
        assert tracking.uri or run_dir is not None
        self.uri = tracking.uri or default_uri(Path(run_dir or ""))
        with opening(self.uri):
            self.client = mlflow.MlflowClient(tracking_uri=self.uri)
            experiment_id = open_experiment(self.client, self.uri, tracking.experiment)
        found = find_run(self.client, experiment_id, name)
        if found is not None:
            self.run_id = found
            self.client.update_run(self.run_id, status=RunStatus.to_string(RunStatus.RUNNING))
        else:
            tags = {RUN_TAG: name, **({PARENT_TAG: parent} if parent is not None else {})}
            self.run_id = self.client.create_run(experiment_id, tags=tags, run_name=name).info.run_id
        self._experiment_id = experiment_id
        self._pending: Any = None

    def params(self, values: dict[str, Any]) -> None:
        """Log settings; an existing value stays (MLflow's params are write-once)."""
        from mlflow.entities import Param

        known = self.client.get_run(self.run_id).data.params
        new = [Param(key, str(value)[:6000]) for key, value in values.items() if key not in known]
        for start in range(0, len(new), 100):
            self.client.log_batch(self.run_id, params=new[start : start + 100])

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Log points of curves. Characters that MLflow refuses in a name are removed (``S_m*`` becomes ``S_m``)."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [Metric(_FORBIDDEN.sub("", name), float(value), now, step) for name, value in values.items()]
        self._pending = self.client.log_batch(self.run_id, metrics=points, synchronous=False)

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        suffix = "" if step is None else f"_{step:08d}"
        self.client.log_image(self.run_id, image, artifact_file=f"images/{name}{suffix}.png")

    def text(self, name: str, text: str) -> None:
        self.client.log_text(self.run_id, text, name)

    def artifacts(self, folder: Path, name: str) -> None:
        self.client.log_artifacts(self.run_id, str(folder), name)

    def flush(self) -> None:
        """Wait until all metrics are written."""
        if self._pending is not None:
            self._pending.wait()

    def end(self, finished: bool) -> None:
        self.flush()
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "FAILED")

    def end_children(self) -> None:
        """Mark child runs that are still RUNNING as KILLED: their processes were ended from outside."""
        wanted = f"tags.`{PARENT_TAG}` = '{self.run_id}' and attributes.status = 'RUNNING'"
        for run in self.client.search_runs([self._experiment_id], wanted, max_results=1000):
            self.client.set_terminated(run.info.run_id, "KILLED")


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
    folder below the working directory); a server chooses the place itself.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    place = None
    if uri.startswith(_SQLITE):
        file = Path(uri.removeprefix(_SQLITE).partition("?")[0])
        place = (file.resolve().parent / "mlartifacts").as_uri()
    return str(client.create_experiment(name, artifact_location=place))


def find_run(client: MlflowClient, experiment_id: str, name: str) -> str | None:
    """Id of the run of this name, or None."""
    quoted = name.replace("'", "\\'")
    found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{quoted}'", max_results=1)
    return str(found[0].info.run_id) if found else None


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[prefix + key] = value
    return result
