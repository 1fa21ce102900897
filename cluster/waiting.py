"""One line about a training run that waits for nodes."""

from __future__ import annotations

import threading
from typing import Any

from cluster.ray_internals import controller_callback
from idc import logs
from idc.training.config import TrainConfig

FIRST_S = 60.0
"""A run says what it waits for after so many seconds, then after twice as many, and so on."""


def waiting_notice(train: TrainConfig) -> Any:
    """A callback of Ray Train's controller that prints what a run without workers waits for."""

    class WaitingNotice(controller_callback()):  # type: ignore[misc]
        """Lives in the controller, whose output the driver shows."""

        def __init__(self) -> None:
            self._timer: threading.Timer | None = None

        def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
            without = type(current_state).__name__ in ("SchedulingState", "ReschedulingState", "RestartingState")
            if without and self._timer is None:
                self._wait(FIRST_S, FIRST_S)
            elif not without and self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _wait(self, seconds: float, waited: float) -> None:
            def fire() -> None:
                if self._timer is None:  # the run started in this moment
                    return
                logs.event("waiting", f"{waiting_for(train)} ({waited:.0f} s)")
                self._wait(2 * seconds, waited + 2 * seconds)

            self._timer = threading.Timer(seconds, fire)
            self._timer.daemon = True
            self._timer.start()

    return WaitingNotice()


def waiting_for(train: TrainConfig) -> str:
    """Sentence about the resources that a run without workers waits for, and those that the cluster has."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    number = train.num_workers if train.min_workers is None else train.min_workers
    each = f"{train.cpus_per_worker} CPU" + (f" and {train.gpus_per_worker:g} GPU" if train.gpus_per_worker else "")
    has = f"{free.get('CPU', 0):g} CPU" + (f" and {free.get('GPU', 0):g} GPU" if train.gpus_per_worker else "")
    text = f"the run waits for {number} worker{'s' * (number > 1)} of {each} each; {len(nodes)} nodes have {has} free"
    if train.min_workers is None and number > 1:
        text += "; start a node, or run the command again with train.min_workers to go on with fewer workers"
    return text
