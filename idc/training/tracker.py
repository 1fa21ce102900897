"""What an experiment tracker does; ``cluster/tracking.py`` has that of MLflow. Does not import torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

Watch = Callable[[dict[str, float], int], None]


class Tracker:
    """A tracker beside the loop's own log.jsonl, called on rank 0 only. This one tracks nothing.

    Attributes:
        watch: called with the metrics and the step of each validation.
    """

    watch: Watch | None = None

    def params(self, values: dict[str, Any]) -> None:
        """Settings, flat dotted keys."""

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Scalars of a step; returns at once."""

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        """A picture: uint8 array (H, W, 3) or a PIL image; ``name`` without suffix."""

    def text(self, name: str, text: str) -> None:
        """A text file."""

    def artifacts(self, folder: Path, name: str) -> None:
        """A folder of files under ``name``."""

    def flush(self) -> None:
        """Wait until all is written."""

    def end_children(self) -> None:
        """Mark runs below this one that have not ended as killed."""

    def end(self, finished: bool) -> None:
        """Mark the run as ended, and flush."""


def tracked_runs(tracking_uri: str, experiment_id: str) -> str:
    """Where a browser shows the runs of an MLflow experiment. By default MLflow's pages are those for language models,
    whose traces a training has none of."""
    page = f"/#/experiments/{experiment_id}/runs?workflowType=machine_learning"
    if tracking_uri.startswith("http"):
        return tracking_uri.rstrip("/") + page
    return f"mlflow ui --backend-store-uri {shlex.quote(tracking_uri)}, then http://127.0.0.1:5000{page}"
