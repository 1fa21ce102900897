"""First code of every Ray worker process. It imports next to nothing: a training on Ray starts several of them."""

from __future__ import annotations

import os

from cluster.ray_internals import quiet_helpers


def set_up_ray_worker() -> None:
    """Set-up hook of every worker: relative paths resolve as in the driver, events are written for it to show, Ray's
    helpers are quiet, and one that asks for Ray's state asks the Ray that it belongs to."""
    import ray

    from idc import logs

    # Ray Train's cleaner of placement groups names no address, and ends if it sees two Rays on the machine.
    os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    logs.set_up_worker()
    if os.environ.get("IDC_ROOT"):
        from idc.config import enter_root

        enter_root()
    quiet_helpers()
