"""Private interfaces of Ray that this layer uses, all in this module. For each: what breaks without it, and the test
that says so.

Nothing here is imported with the module: Ray reads its environment when it is loaded (:mod:`cluster.session`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


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
