"""First code of every Ray worker process. It imports next to nothing: a training on Ray starts several of them."""

from __future__ import annotations

import logging
import os


def set_up_ray_worker() -> None:
    """Set-up hook of every worker: relative paths resolve as in the driver, events are written for it to show, Ray
    Train is quiet, and one that asks for Ray's state asks the Ray that it belongs to."""
    import ray

    from idc.util import logs

    # Ray Train's cleaner of placement groups names no address, and ends if it sees two Rays on the machine.
    os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    logs.set_up_worker()
    if os.environ.get("IDC_ROOT"):
        from idc.config import enter_root

        enter_root()
    # Ray Train names the report of every rank, and its helpers what is "safe to ignore" or asks a dashboard that is not
    # there, every second.
    logging.disable(logging.INFO)
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)
