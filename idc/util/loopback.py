"""This machine alone: loopback addresses, and the environment of a local Ray that listens on nothing else, collects no
metrics and finds room for the paths of its sockets. Does not import Ray."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from idc.util import logs

RAY_FOLDER_CHARACTERS = 40
"""Maximal length of the folder of Ray's session files: the paths of its sockets, 64 to 67 characters longer, have room
for 107."""
_START_S, _NOTICE_S = 300.0, 20.0
"""How long a local Ray may take to start, and after how much of it that is reported."""
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


@contextmanager
def patient_start(services: Any) -> Iterator[None]:
    """Context manager: a local Ray that starts inside has :data:`_START_S`. Its own limits of 30 s are too short for a
    machine that is busy.

    Args:
        services: the module ``ray._private.services``; the limit of the function that asks for the node is fixed.

    Raises:
        ValueError: Ray could not start.
    """
    for name in ("RAY_gcs_server_port_wait_time_s", "RAY_raylet_start_wait_time_s"):
        os.environ.setdefault(name, f"{_START_S:.0f}")
    end, get_node = time.monotonic() + _START_S, services.get_node

    def asked_until_there(*arguments: Any) -> Any:
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                raylets = [child for child in psutil.Process().children() if child.name() == "raylet"]
                if time.monotonic() > end or any(raylet.status() == psutil.STATUS_ZOMBIE for raylet in raylets):
                    raise
                time.sleep(0.5)

    text = f"Ray has been starting for {_NOTICE_S:.0f} s: the machine is busy; it has {_START_S:.0f} s"
    notice = threading.Timer(_NOTICE_S, logs.event, ["ray_is_slow", text, "warning"])
    services.get_node, notice.daemon = asked_until_there, True
    notice.start()
    try:
        yield
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, RuntimeError):
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(f"Ray cannot start on this machine: {reason} (logs: /tmp/ray/session_latest/logs)") from None
    finally:
        notice.cancel()
        services.get_node = get_node
