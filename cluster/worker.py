"""What every Ray worker process runs first. It imports next to nothing: a training on Ray starts several of them."""

from __future__ import annotations

import logging
import os


def set_up_worker() -> None:
    """Set-up hook of every worker: relative paths resolve as in the driver, events are written for it to show. Also
    silences Ray Train's placement group cleaner, which logs an error every second if the dashboard cannot be reached.
    """
    from idc import logs

    logs.set_up_worker()
    if os.environ.get("IDC_ROOT"):
        from idc.config import enter_root

        enter_root()
    name = "ray.train.v2._internal.execution.controller.placement_group_cleaner"
    logging.getLogger(name).addFilter(lambda record: "Failed to query" not in record.getMessage())
