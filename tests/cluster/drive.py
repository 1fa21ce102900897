"""Trains on a running cluster, as jobs do: ``python -m tests.cluster.drive ADDRESS RUNS``, the runs as a JSON list of
``{"entry": ..., "folder": ..., "payload": {"train": ..., ...}}``, one after another."""

from __future__ import annotations

import json
import sys

from cluster.config import ClusterConfig
from cluster.session import session
from cluster.train import TrainingRun, launch
from idc.training.config import TrainConfig


def main(address: str, runs: str) -> None:
    with session(ClusterConfig(address=address)):
        for run in json.loads(runs):
            payload = {key: value for key, value in run["payload"].items() if key != "train"}
            train = TrainConfig.model_validate(run["payload"]["train"])
            launch(TrainingRun.in_folder(run["entry"], payload, train, run["folder"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
