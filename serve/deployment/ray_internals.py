"""Private interfaces of Ray that serving uses, and what breaks without them. (Those of uvicorn are in
:mod:`serve.listener`.) Nothing of Ray is imported with the module: Ray reads its environment when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from idc.util.loopback import patient_start


def start_ray(**options: Any) -> None:
    """``ray.init`` in :func:`idc.util.loopback.patient_start`. Without: a busy machine ends it after 30 s.

    Raises:
        ValueError: Ray could not start.
    """
    import ray
    from ray._private import services

    with patient_start(services):
        ray.init("local", **options)


def forward_output(forward: Callable[[Mapping[str, Any]], None]) -> None:
    """Give the output of Ray's processes to ``forward`` in place of Ray's own printing. Call it before ``ray.init``.

    Without: lines of workers, and Ray's reports of dead ones, have a coloured prefix and are no JSON.
    """
    from ray._private import worker

    def print_line(data: Any, ignore_prefix: bool) -> None:
        forward(data)

    worker.print_to_stdstream = print_line


def bind_to_node_address() -> None:
    """Bind this replica's port for calls of other deployments to its node's address, which is 127.0.0.1 in a local Ray.

    Serve binds it to all addresses, after the replica's constructor. The port requires no token and unpickles its
    input. Without: whoever reaches it can run code here
    (``tests/serve/test_command.py``: ``test_no_path_of_the_machine_is_answered_and_nothing_listens_for_others``).
    """
    import ray.util
    from ray._common import tls_utils
    from ray._common.network_utils import build_address
    from ray.serve._private import replica

    bind = tls_utils.add_port_to_grpc_server
    local = build_address(ray.util.get_node_ip_address(), 0)
    replica.add_port_to_grpc_server = lambda server, address: bind(server, local if address == "[::]:0" else address)
