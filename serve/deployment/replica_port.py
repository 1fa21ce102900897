"""The port on which a replica receives calls of other deployments, kept off public addresses."""

from __future__ import annotations


def bind_to_node_address() -> None:
    """Bind this replica's port to its node's address, which is 127.0.0.1 in a local Ray.

    Serve binds it to all addresses, after the replica's constructor. The port requires no token and unpickles
    its input, so that whoever reaches it can run code here.
    """
    import ray.util
    from ray._common import tls_utils
    from ray._common.network_utils import build_address
    from ray.serve._private import replica

    bind = tls_utils.add_port_to_grpc_server
    local = build_address(ray.util.get_node_ip_address(), 0)
    replica.add_port_to_grpc_server = lambda server, address: bind(server, local if address == "[::]:0" else address)
