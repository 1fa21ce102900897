"""A tracking server that is away, at the start of a run and at its end. In between: test_training_faults.py."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cluster.tracking import MlflowTracker, _Outbox
from idc.training.config import TrackingConfig
from tests.faults.injection import TrackingServer
from tests.serve.command import free_port


def test_a_server_that_is_away_at_the_start_is_named_with_the_remedy(tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ValueError, match=r"train\.tracking\.uri: the MLflow server at http://") as caught:
        MlflowTracker(TrackingConfig(uri=uri), tmp_path / "run", "run")
    assert "set train.tracking.enabled=false" in str(caught.value)
    assert uri in str(caught.value)


def test_what_is_queued_while_a_server_is_away_is_sent_in_order_when_it_is_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.tracking._RETRY_S", 0.01)
    monkeypatch.setattr("cluster.tracking._HURRY_S", 0.01)
    back, tried, sent = threading.Event(), threading.Event(), list[int]()

    def send(number: int) -> None:
        tried.set()
        if not back.is_set():
            raise ConnectionRefusedError("nobody there")
        if number == 2:
            raise TypeError("not a number")
        sent.append(number)

    outbox = _Outbox("http://there", patience_s=60)
    for number in range(5):
        outbox.put(f"entry {number}", lambda number=number: send(number))
    assert tried.wait(60)
    back.set()
    outbox.flush()
    assert sent == [0, 1, 3, 4]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("MLflow at http://there does not answer (ConnectionRefusedError: nobody there)")
    assert said[1].startswith("MLflow at http://there is back after")
    assert said[2] == "MLflow at http://there refuses entry 2: TypeError: not a number"
    assert len(said) == 3


@pytest.mark.slow
def test_the_end_of_a_run_waits_for_a_server_for_a_bounded_time_and_says_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrackingServer(tmp_path) as server:
        tracker = MlflowTracker(TrackingConfig(uri=server.uri, patience_s=1), tmp_path / "run", "run")
        tracker.metrics({"loss": 1.0}, step=1)
        tracker.flush()
        server.kill()
        attached = MlflowTracker(TrackingConfig(uri=server.uri), tmp_path / "run", "run", run_id=tracker.run_id)
        assert attached.run_id == tracker.run_id, "a restarted worker does not ask the server"
        tracker.metrics({"loss": 0.5}, step=2)
        tracker.end(finished=True)
        server.start()
        points = tracker.client.get_metric_history(tracker.run_id, "loss")
    assert [point.step for point in points] == [1]
    said = capsys.readouterr().err
    assert "did not come back: the metrics of step 2 and 1 more entries not tracked; log.jsonl has all metrics" in said
