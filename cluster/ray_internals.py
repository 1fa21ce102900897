"""Private interfaces of Ray that jobs use, and what breaks without them. Nothing of Ray is imported with the module:
Ray reads its environment when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idc.util.loopback import patient_start


def start_local_ray(**options: Any) -> None:
    """``ray.init`` in :func:`idc.util.loopback.patient_start`. Without: a busy machine ends it after 30 s."""
    import ray
    from ray._private import services

    with patient_start(services):
        ray.init(address="local", **options)


def checked_by(check: Callable[[], None]) -> type:
    """A callback of Ray Data that calls ``check`` in every step of an execution, whose error ends it. Without: a job
    that writes nothing never ends, because Ray Data's own guard is content with any block that moves."""
    from ray.data._internal.execution.execution_callback import ExecutionCallback

    class Checked(ExecutionCallback):
        def on_execution_step(self, executor: object) -> None:
            check()

    return Checked
