"""The socket that a command shares with its fronts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from serve.port import SharedPort, receive_socket
from tests.serve.command import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_that_arrive_between_two_fronts_wait_for_the_next(host: str) -> None:
    address = (host, free_port())
    port = SharedPort(*address)
    with pytest.raises(ConnectionRefusedError):  # nothing listens before the first front
        socket.create_connection(address, timeout=10)
    with receive_socket(port.path) as first:
        first.listen()
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(b"waiting")
        with receive_socket(port.path) as second:
            second.settimeout(10)
            accepted, _ = second.accept()
            with accepted:
                assert accepted.recv(7) == b"waiting"
            port.close()
            socket.create_connection(address, timeout=10).close()  # a front still listens
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=10)


def test_a_closed_port_leaves_nothing_and_is_passed_to_nobody() -> None:
    port = SharedPort("127.0.0.1", free_port())
    assert Path(port.path).parent.stat().st_mode & 0o077 == 0
    port.close()
    port.close()
    assert not Path(port.path).parent.exists()
    with pytest.raises(OSError, match="No such file"):
        receive_socket(port.path)
