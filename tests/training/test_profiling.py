"""A profile on request: a trace and a table of operators in the run's folder, and the same losses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from mlflow import MlflowClient

from cluster.tracking import MlflowTracker
from idc.training.config import TrackingConfig, TrainConfig
from idc.training.context import LocalContext
from idc.training.profiling import FOLDER
from tests.training import toy
from tests.training.test_loop import TRAIN, curve, run


def test_the_profile_is_in_the_runs_folder(tmp_path: Path) -> None:
    run(tmp_path / "plain")
    run(tmp_path / "profiled", {**TRAIN, "profile_steps": 3})
    assert curve(tmp_path / "plain") == curve(tmp_path / "profiled")
    assert not (tmp_path / "plain" / FOLDER).exists()
    folder = tmp_path / "profiled" / FOLDER
    with gzip.open(folder / "trace-00000003-00000005.json.gz", "rt") as file:
        operators = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::addmm", "aten::linear"} <= operators
    table = (folder / "operators-00000003-00000005.txt").read_text()
    assert "aten::linear" in table


def test_a_short_run_is_profiled_to_its_end_and_the_tracker_gets_it(tmp_path: Path, tracking_uri: str) -> None:
    config = TrainConfig.model_validate({**TRAIN, "steps": 2, "profile_steps": 50})
    tracker = MlflowTracker(TrackingConfig(uri=tracking_uri), tmp_path / "run", "run")
    toy.entry({"train": config.model_dump(mode="json")}, LocalContext(tmp_path / "run", tracker=tracker))
    tracker.end(True)
    found = {file.path for file in MlflowClient(tracking_uri).list_artifacts(tracker.run_id, FOLDER)}
    assert found == {f"{FOLDER}/trace-00000001-00000002.json.gz", f"{FOLDER}/operators-00000001-00000002.txt"}
