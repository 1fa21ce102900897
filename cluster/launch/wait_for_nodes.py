"""Waits until a Ray cluster has a number of nodes.

    python cluster/launch/wait_for_nodes.py ADDRESS NODES

ADDRESS is the host:port of the head. Ends with status 1 if the nodes are not there within 10 minutes.
"""

from __future__ import annotations

import sys
import time

PATIENCE_S = 600.0
"""Starting Ray from cold shared storage takes minutes on some machines."""


def wait_for_nodes(address: str, wanted: int) -> int:
    """The number of live nodes, once it is ``wanted``, or after :data:`PATIENCE_S`.

    Args:
        address: host:port of the head.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without a stub

    last = time.monotonic() + PATIENCE_S
    alive = 0
    while True:
        try:
            nodes = GcsClient(address=address).get_all_node_info(timeout=5)
            alive = sum(node.state == 0 for node in nodes.values())  # GcsNodeInfo.ALIVE
        except Exception:  # Ray's own error: no head listens yet
            alive = 0
        if alive >= wanted or time.monotonic() > last:
            return alive
        time.sleep(0.5)


def main() -> None:
    address, wanted = sys.argv[1], int(sys.argv[2])
    alive = wait_for_nodes(address, wanted)
    if alive < wanted:
        raise SystemExit(f"{alive} of {wanted} nodes joined {address} within {PATIENCE_S:.0f} s; their logs are above")


if __name__ == "__main__":
    main()
