"""The socket of ``python -m serve.app``, which its fronts share."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from tempfile import TemporaryDirectory


class SharedPort:
    """A TCP socket bound to an address, and a thread that passes it to processes that call :func:`receive_socket` with
    its ``path``. Connections that arrive while no front accepts them, because it was killed or is being replaced, wait
    in its queue.

    Raises:
        ValueError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int):
        self._shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # also soon after another server
        try:
            self._shared.bind((host, port))
        except OSError as error:
            self._shared.close()
            raise ValueError(f"cannot listen on {host}:{port} ({error.strerror}); try port={port + 1}") from None
        # Nobody else may bind the address during the seconds until a front listens.
        self._shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        self._folder = TemporaryDirectory(prefix="idc-serve-", dir="/tmp")  # socket paths have at most 107 characters
        self.path = f"{self._folder.name}/port"
        self._passing = socket.socket(socket.AF_UNIX)
        self._passing.bind(self.path)
        self._passing.listen()
        threading.Thread(target=self._pass, daemon=True).start()

    def _pass(self) -> None:
        with suppress(OSError):  # closed
            while True:
                process, _ = self._passing.accept()
                with process, suppress(OSError):  # the other process has ended
                    socket.send_fds(process, [b"."], [self._shared.fileno()])

    def close(self) -> None:
        """Close it here: it is closed for clients when the last front has closed it too."""
        self._shared.close()
        with suppress(OSError):
            self._passing.shutdown(socket.SHUT_RDWR)  # ends the thread's accept()
        self._passing.close()
        self._folder.cleanup()


def receive_socket(path: str) -> socket.socket:
    """The socket of the :class:`SharedPort` with this path, in another process of the same machine.

    Raises:
        OSError: the command that holds it has ended.
    """
    with socket.socket(socket.AF_UNIX) as command:
        command.connect(path)
        _, descriptors, _, _ = socket.recv_fds(command, 1, 1)
    if not descriptors:
        raise ConnectionError(f"{path}: the command has closed its port")
    os.set_inheritable(descriptors[0], False)
    shared = socket.socket(fileno=descriptors[0])
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else it cannot listen soon after another server
    return shared
