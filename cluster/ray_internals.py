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
