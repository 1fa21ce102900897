"""A training's figures for Prometheus, on clusters whose nodes export metrics: gauges of rank 0 with the label ``run``.

Ray exports them with the prefix ``ray_``: ray_idc_train_loss, ray_idc_train_step, ray_idc_train_steps,
ray_idc_train_samples_per_second, ray_idc_train_seconds_per_step, ray_idc_train_data_wait_share, and
ray_idc_train_validation with the label ``metric``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from idc.atomic import read_object
from idc.training.context import Tracker
from idc.training.loop import RANK_0

_GAUGES = {
    "loss": "Mean loss since the last line of the log.",
    "step": "Optimizer steps done.",
    "steps": "Optimizer steps of the whole run.",
    "samples_per_second": "Training samples per second.",
    "seconds_per_step": "Seconds per optimizer step.",
    "data_wait_share": "Share of the time that waited for data.",
}
_VALIDATION = "validation/"


class Exported:
    """Passes everything on to another tracker, and exports the metrics.

    Args:
        tracker: gets everything, too.
        run: the label.
        run_dir: of the run; None on object storage, where the number of steps is not known here.
    """

    def __init__(self, tracker: Tracker, run: str, run_dir: Path | None):
        from ray.util.metrics import Gauge

        self.inner = tracker
        self._tags, self._run_dir = {"run": run}, run_dir
        self._gauges = {name: Gauge(f"idc_train_{name}", text, ("run",)) for name, text in _GAUGES.items()}
        self._validation = Gauge("idc_train_validation", "The last validation, by metric.", ("run", "metric"))

    def params(self, values: dict[str, Any]) -> None:
        self.inner.params(values)

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.inner.metrics(values, step)
        counters = None if self._run_dir is None else read_object(self._run_dir / RANK_0)
        steps = {} if counters is None else {"steps": counters["steps"]}
        for name, value in {**values, "step": step, **steps}.items():
            if name in self._gauges:
                self._gauges[name].set(float(value), self._tags)
            elif name.startswith(_VALIDATION):
                self._validation.set(float(value), {**self._tags, "metric": name.removeprefix(_VALIDATION)})

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        self.inner.image(name, image, step)

    def text(self, name: str, text: str) -> None:
        self.inner.text(name, text)

    def artifacts(self, folder: Path, name: str) -> None:
        self.inner.artifacts(folder, name)
