"""The process group of training workers, whose store listens on one address: the one by which nodes reach each other,
which is loopback for a local Ray. PyTorch's own listens on all addresses of the machine, and anyone may write to it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend

from idc.loopback import is_loopback

_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable of gloo: the network interface at which it listens."""


@dataclass
class NodeTorchConfig(TorchConfig):
    """Ray Train's config of PyTorch's process group, with :class:`NodeTorchBackend`."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return NodeTorchBackend


class NodeTorchBackend(_TorchBackend):
    """Sets up the process group as Ray Train does with ``init_method="env"``, but for the address of its store."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        import ray

        size = len(worker_group)
        address, port = worker_group.execute_single(0, _open_store, backend_config.timeout_s)
        worker_group.execute(_set_torch_distributed_env_vars)
        # All ranks at once: joining waits for the others.
        joining = [
            worker_group.execute_single_async(
                rank, _join, backend_config.backend, address, port, rank, size, backend_config.timeout_s
            )
            for rank in range(size)
        ]
        ray.get(joining)


_own_store: Any = None
"""The store that this process serves: it ends with the process."""


def _open_store(timeout_s: int) -> tuple[str, int]:
    """Serve a store from this process; its address and port."""
    import ray
    import torch.distributed as dist

    global _own_store
    address = ray.util.get_node_ip_address()
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = int(listener.getsockname()[1])
    timeout = timedelta(seconds=timeout_s)
    # It must not wait for the other ranks, which get the address only when this returns.
    _own_store = dist.TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach()
    )
    return address, port


def _join(backend: str, address: str, port: int, rank: int, size: int, timeout_s: int) -> None:
    """Make this process a rank of the group."""
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_s)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)
    if backend == "gloo":
        _use_interface_of_node()
    if backend == "nccl":
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # a lost rank is an error, not a wait for ever
    store = _own_store if rank == 0 else dist.TCPStore(address, port, timeout=timeout, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def _use_interface_of_node() -> None:
    """Make gloo listen where the other nodes reach this one. By default it listens at the address of the machine's
    name, which on many machines is a loopback address; an interface that was chosen otherwise is kept."""
    import psutil
    import ray

    address = ray.util.get_node_ip_address()
    if is_loopback(address) or os.environ.get(_INTERFACE, "lo") not in ("lo", "lo0"):
        return
    for name, addresses in psutil.net_if_addrs().items():
        if any(interface_address.address.partition("%")[0] == address for interface_address in addresses):
            os.environ[_INTERFACE] = name
