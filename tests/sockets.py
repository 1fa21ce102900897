"""What processes listen on, from the kernel's tables, and what answers on the machine's own addresses."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import psutil


def listening(root: psutil.Process) -> list[tuple[str, str, int]]:
    """Process name, address and port of each socket on which a process or a descendant listens."""
    return [(name, one.laddr.ip, one.laddr.port) for name, one in _sockets(root) if one.status == psutil.CONN_LISTEN]


def open_to_others(root: psutil.Process) -> list[str]:
    """Sockets of a process and its descendants that machines other than this one can connect to."""
    return [f"{name} {address}:{port}" for name, address, port in listening(root) if not _is_loopback(address)]


def outward_addresses() -> list[str]:
    """Addresses of this machine by which others reach it."""
    found = [
        one.address.split("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [one for one in found if not _is_loopback(one) and not ipaddress.ip_address(one).is_link_local]


def answering_to_others(root: psutil.Process) -> list[str]:
    """Ports of a process and its descendants that accept a connection on an outward address of this machine."""
    ports = sorted({port for _, _, port in listening(root)})
    return [f"{address}:{port}" for address in outward_addresses() for port in ports if _answers(address, port)]


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def _sockets(root: psutil.Process) -> Iterator[tuple[str, Any]]:
    for process in [root, *root.children(recursive=True)]:
        try:
            name, sockets = process.name(), process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue  # ended meanwhile
        yield from ((name, one) for one in sockets)


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
