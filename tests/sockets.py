"""What processes listen on, from the kernel's tables."""

from __future__ import annotations

import ipaddress

import psutil


def open_to_others(root: psutil.Process) -> list[str]:
    """Sockets of a process and its descendants that machines other than this one can connect to."""
    found = []
    for process in [root, *root.children(recursive=True)]:
        try:
            name, sockets = process.name(), process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue  # ended meanwhile
        for one in sockets:
            if one.status == psutil.CONN_LISTEN and not _is_loopback(one.laddr.ip):
                found.append(f"{name} {one.laddr.ip}:{one.laddr.port}")
    return found


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
