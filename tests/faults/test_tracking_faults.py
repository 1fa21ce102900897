"""A tracking server that is away: at the start of a run, in the middle and at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.tracking import MlflowTracker
from idc.training.config import TrackingConfig
from tests.serve.command import free_port
from tests.serve.waiting import until


class TrackingServer:
    """``mlflow server`` on loopback, with a database that outlives it."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = f"sqlite:///{folder / 'mlflow.db'}"
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--backend-store-uri", self.database]
        with (self.folder / "server.log").open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options, "--workers", "1"],
                cwd=self.folder, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        until(self.answers, "the tracking server answers")

    def answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"mlflow server ended: {(self.folder / 'server.log').read_text()[-2000:]}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), opener.open(f"{self.uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> TrackingServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def test_a_server_that_is_away_at_the_start_is_named_with_the_remedy(tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ValueError, match=r"train\.tracking\.uri: the MLflow server at http://") as caught:
        MlflowTracker(TrackingConfig(uri=uri), tmp_path / "run", "run")
    assert "set train.tracking.enabled=false" in str(caught.value)
    assert uri in str(caught.value)


@pytest.mark.slow
def test_what_is_tracked_waits_for_a_server_that_is_away_and_the_end_of_a_run_for_a_bounded_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.tracking._RETRY_S", 0.1)
    with TrackingServer(tmp_path) as server:
        tracker = MlflowTracker(TrackingConfig(uri=server.uri, patience_s=1), tmp_path / "run", "run")
        tracker.metrics({"loss": 1.0}, step=1)
        tracker.flush()
        server.kill()
        attached = MlflowTracker(TrackingConfig(uri=server.uri), tmp_path / "run", "run", run_id=tracker.run_id)
        assert attached.run_id == tracker.run_id, "a restarted worker does not ask the server"
        tracker.metrics({"loss": 0.5}, step=2)
        attached.metrics({"loss": 0.4}, step=3)
        tracker.end(finished=True)
        server.start()
        attached.end(finished=True)
        points = attached.client.get_metric_history(tracker.run_id, "loss")
    assert [point.step for point in points] == [1, 3]
    said = capsys.readouterr().err
    assert ": the metrics of step 2 and 1 more not tracked; log.jsonl has all metrics" in said
