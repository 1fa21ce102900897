"""This machine alone: loopback addresses, and the environment of a local Ray that listens on nothing else, collects no
metrics and finds room for the paths of its sockets. Does not import Ray."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile

from idc.util import logs

RAY_FOLDER_CHARACTERS = 40
"""Maximal length of the folder of Ray's session files: the paths of its sockets, 64 to 67 characters longer, have room
for 107."""
_UNWATCHED = {
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "600000",  # statistics of the machine's processes, else every 5 s
}


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine: ``localhost``, 127.0.0.0/8, ::1, or an IPv4 loopback address written as IPv6."""
    try:
        ip = ipaddress.ip_address(host or "")
    except ValueError:
        return host == "localhost"
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def keep_ray_on_loopback() -> None:
    """Make a Ray that this process starts listen on 127.0.0.1 alone. Call it before Ray is imported.

    On Linux, Ray's default is the machine's address, so that other nodes can join; on macOS and Windows, where the
    variable's name comes from, it is 127.0.0.1.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    keep_gloo_on_loopback()
    bypass_proxies()


def bypass_proxies() -> None:
    """Make requests of this process and its children to this machine, such as those to Ray's dashboard, bypass the
    proxies of the environment."""
    hosts = [host for host in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",") if host]
    if "*" not in hosts:
        hosts += [host for host in ("localhost", "127.0.0.1", "::1") if host not in hosts]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def keep_gloo_on_loopback() -> None:
    """Make the gloo process groups of this process and its children listen on loopback alone; their default is the
    address that the machine's name resolves to."""
    names = [name for _, name in socket.if_nameindex()]
    interface = next((name for name in ("lo", "lo0") if name in names), None)  # Linux, macOS
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def collect_no_metrics() -> None:
    """Make a Ray that this process starts collect no metrics of its own, which nobody reads without its dashboard. Call
    it before Ray is imported; variables that are set already are kept."""
    for name, value in _UNWATCHED.items():
        os.environ.setdefault(name, value)


def keep_ray_paths_short() -> None:
    """Make a Ray that this process starts keep its session files in a new folder in /tmp, if its default (TMPDIR, which
    is long on many clusters) is too long. Call it before Ray is started; RAY_TMPDIR is kept.

    Raises:
        ValueError: there is no room in /tmp.
    """
    default = os.environ.get("TMPDIR", "/tmp")
    if "RAY_TMPDIR" in os.environ or len(f"{default}/ray") <= RAY_FOLDER_CHARACTERS:
        return
    fault = f"TMPDIR={default!r} is too long for the sockets of Ray"
    try:
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    except OSError as error:
        raise ValueError(
            f"{fault}, and /tmp cannot be used ({error.strerror}); set RAY_TMPDIR to a folder of at most "
            f"{RAY_FOLDER_CHARACTERS - 4} characters"
        ) from None
    os.environ["RAY_TMPDIR"] = folder
    logs.event("ray_folder", f"{fault}: its session files are in {folder} (RAY_TMPDIR sets another)", folder=folder)
