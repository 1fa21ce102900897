"""Requests over a bare socket, because an HTTP client would mend or refuse half of those of ``hostile.py``."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, Literal

JSON = (("Content-Type", "application/json"),)
CAPTIONS, CHAT = "/v1/captions", "/v1/chat/completions"


@dataclass(frozen=True)
class Hostile:
    """A request.

    Attributes:
        name: what is wrong with it.
        status: what it must be answered with.
        param: the field that the answer must name; None where nothing of the body is at fault.
        body: makes its body.
        headers: besides Host, Content-Length and (unless it has its own) Authorization.
        chunked: sent in chunks, without Content-Length.
        plain: the HTTP server itself refuses it, in words of its own or by hanging up, before any of our code runs.
        only: makes sense only where the server asks for tokens, or only where it serves its own machine.
    """

    name: str
    status: int
    param: str | None = None
    body: Callable[[], bytes] = lambda: b""
    method: str = "POST"
    path: str = CAPTIONS
    headers: tuple[tuple[str, str], ...] = JSON
    chunked: bool = False
    plain: bool = False
    only: Literal["token", "loopback"] | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Reply:
    """An answer: status (0: the server hung up without one), headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def send(host: str, port: int, hostile: Hostile, token: str | None = None, timeout_s: float = 60.0) -> Reply:
    """Send it as it is, and read the answer."""
    body = hostile.body()
    names = {name.lower() for name, _ in hostile.headers}
    headers = list(hostile.headers)
    if "host" not in names:
        headers.insert(0, ("Host", f"{host}:{port}"))
    if token is not None and "authorization" not in names:
        headers.append(("Authorization", f"Bearer {token}"))
    if hostile.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
    elif "content-length" not in names and hostile.method in ("POST", "PUT"):
        headers.append(("Content-Length", str(len(body))))
    head = f"{hostile.method} {hostile.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers) + "\r\n"
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        try:
            connection.sendall(head.encode("latin-1"))
            for part in _chunks(body) if hostile.chunked else [body]:
                connection.sendall(part)
        except OSError:
            pass  # refused while it was being sent: the answer is there to be read
        response = HTTPResponse(connection, method=hostile.method)
        try:
            response.begin()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, TimeoutError):
                raise
            return Reply(0, {}, b"")


def _chunks(body: bytes, size: int = 65536) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        part = body[start : start + size]
        yield f"{len(part):x}\r\n".encode() + part + b"\r\n"
    yield b"0\r\n\r\n"
