"""The listening socket of a command, which its fronts share: they are other processes, and come and go.

The command keeps the socket open. Connections that arrive while no front accepts them, because it was killed or is
being replaced, wait in the socket's queue; they would be reset if each front had a socket of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path


class SharedPort:
    """A TCP socket bound to an address, and a thread that passes it to processes that call :func:`receive_socket`.

    Attributes:
        path: the Unix socket on which it is passed, in a folder that only this user can enter.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int):
        self._shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._shared.bind((host, port))
        except OSError:
            self._shared.close()
            raise
        self._folder = tempfile.mkdtemp(prefix="idc-serve-", dir="/tmp")  # socket paths have at most 107 characters
        self.path = str(Path(self._folder) / "port")
        self._passing = socket.socket(socket.AF_UNIX)
        self._passing.bind(self.path)
        self._passing.listen()
        threading.Thread(target=self._pass, daemon=True).start()

    def _pass(self) -> None:
        while True:
            try:
                process, _ = self._passing.accept()
            except OSError:  # closed
                return
            with process, suppress(OSError):  # the other process has ended
                socket.send_fds(process, [b"."], [self._shared.fileno()])

    def close(self) -> None:
        """Close it here: it is closed for clients when the last front has closed it too."""
        self._shared.close()
        with suppress(OSError):
            self._passing.shutdown(socket.SHUT_RDWR)  # ends the thread's accept()
        self._passing.close()
        shutil.rmtree(self._folder, ignore_errors=True)


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
    return socket.socket(fileno=descriptors[0])
