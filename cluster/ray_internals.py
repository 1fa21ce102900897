"""Private interfaces of Ray that this layer uses, all in this module. For each: what breaks without it, and the test
that says so.

Nothing here is imported with the module: Ray reads its environment when it is loaded (:mod:`cluster.session`).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

_TRAIN = "ray.train.v2._internal"
_LEFT_OUT = {
    # asks the dashboard every second, and there may be none
    f"{_TRAIN}.execution.controller.placement_group_cleaner": "Failed to query",
    # "safe to ignore", with a traceback, whenever the machine is busy
    f"{_TRAIN}.execution.scaling_policy.autoscaling_coordinator_client": "Failed to",
    # each report of a checkpoint, from every rank
    f"{_TRAIN}.execution.context": "Reporting training result",
    # cluster.train reports the error itself, once
    f"{_TRAIN}.util": "Error in training function",
}
"""Logger of one of Ray's helpers -> messages that nobody can act on."""


def quiet_helpers() -> None:
    """Drop the messages of Ray Train's helpers that nobody can act on, in this process. Without:
    tests/cluster/test_quiet.py."""
    import ray

    for name, text in _LEFT_OUT.items():
        file = Path(ray.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
        for logger in (name, str(file)):  # some of Ray's loggers are named by their file
            logging.getLogger(logger).addFilter(lambda record, text=text: text not in record.getMessage())  # type: ignore[misc]


def dashboard_url() -> str:
    """Of the connected Ray; empty without a dashboard. Without: metrics are exported where nobody reads them
    (tests/cluster/test_train_metrics.py)."""
    from ray._private.worker import get_dashboard_url

    return get_dashboard_url() or ""


def publish_address(temp_dir: str | None) -> None:
    """Write the address of the connected local Ray where its Jobs API looks for it. Without, a job's driver starts on
    any Ray of this machine, also another user's (tests/cluster/test_ports.py)."""
    import ray
    from ray._private.utils import write_ray_address

    write_ray_address(ray.get_runtime_context().gcs_address, temp_dir)


@contextmanager
def any_agent_port() -> Iterator[None]:
    """Let the agent that starts a Ray's jobs listen on a free port. Ray's own is 52365, for which ``ray.init`` has no
    argument, and a second Ray of a machine would start no jobs (tests/cluster/test_ports.py)."""
    module: Any = importlib.import_module("ray._private.parameter")
    params_class = module.RayParams
    module.RayParams = partial(params_class, dashboard_agent_listen_port=0)
    try:
        yield
    finally:
        module.RayParams = params_class


LineFilter = Callable[[list[str]], list[str]]


@contextmanager
def printing_with(change: Callable[[dict[str, Any], LineFilter], dict[str, Any] | None]) -> Iterator[None]:
    """Change what Ray prints of its workers' output, for which it has no setting (tests/cluster/test_quiet.py).

    Args:
        change: called with a batch of lines (``lines``, ``pid``, ...) and a filter of autoscaler's events; returns the
            batch to print, or None.
    """
    from ray._private import worker

    original = worker.print_to_stdstream

    def show(batch: dict[str, Any], ignore_prefix: bool) -> None:
        changed = change(batch, lambda lines: list(worker.filter_autoscaler_events(lines)))
        if changed is not None:
            original(changed, ignore_prefix)

    worker.print_to_stdstream = show  # type: ignore[assignment]
    try:
        yield
    finally:
        worker.print_to_stdstream = original


def torch_trainer() -> Any:
    """TorchTrainer without the two helper processes that have nothing to do here: the manager of Ray data sets, as
    batches come from our own loaders, and, if there is no dashboard to ask, the cleaner of placement groups. With them
    a start takes two processes more."""
    from ray.train.torch import TorchTrainer

    idle = {"DatasetsCallback"} if dashboard_url() else {"DatasetsCallback", "PlacementGroupCleanerCallback"}

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            every = super()._create_default_callbacks()  # type: ignore[misc]  # the stub is Train's first version
            return [each for each in every if type(each).__name__ not in idle]

    return Trainer
