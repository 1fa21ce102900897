"""First code of every Ray worker process. It imports next to nothing: a training on Ray starts several of them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

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


def set_up_ray_worker() -> None:
    """Set-up hook of every worker: relative paths resolve as in the driver, events are written for it to show, Ray's
    helpers are quiet."""
    from idc import logs

    logs.set_up_worker()
    if os.environ.get("IDC_ROOT"):
        from idc.config import enter_root

        enter_root()
    import ray

    for name, text in _LEFT_OUT.items():
        file = Path(ray.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
        for logger in (name, str(file)):  # some of Ray's loggers are named by their file
            logging.getLogger(logger).addFilter(lambda record, text=text: text not in record.getMessage())  # type: ignore[misc]
