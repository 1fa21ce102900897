"""Requests over a bare socket: an HTTP client would repair or refuse half of those in ``hostile.py``."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, Literal

JSON = (("Content-Type", "application/json"),)
CAPTIONS, CHAT = "/v1/captions", "/v1/chat/completions"


@dataclass(frozen=True)
class Hostile:
    """A request.

    Attributes:
        name: what is wrong with the request.
        status: required status of the response.
        param: the field that the response must name; None if no field of the body is at fault.
        body: makes the body.
        headers: in addition to Host, Content-Length and, unless given, Authorization.
        plain: whether uvicorn itself may refuse it, in its own words or by closing the connection.
        only: the only authentication mode to which it applies.
    """

    name: str
    status: int
    param: str | None = None
    body: Callable[[], bytes] = lambda: b""
    method: str = "POST"
    path: str = CAPTIONS
    headers: tuple[tuple[str, str], ...] = JSON
    plain: bool = False
    only: Literal["token", "loopback"] | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Reply:
    """A response: status (0: the connection was closed without one), headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


def send(host: str, port: int, hostile: Hostile, token: str | None = None, timeout_s: float = 60.0) -> Reply:
    """Send a request unchanged, and read the response."""
    body = hostile.body()
    names = {name.lower() for name, _ in hostile.headers}
    headers = list(hostile.headers)
    if "host" not in names:
        headers.insert(0, ("Host", f"{host}:{port}"))
    if token is not None and "authorization" not in names:
        headers.append(("Authorization", f"Bearer {token}"))
    if "content-length" not in names and hostile.method in ("POST", "PUT"):
        headers.append(("Content-Length", str(len(body))))
    head = f"{hostile.method} {hostile.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers) + "\r\n"
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        try:
            connection.sendall(head.encode("latin-1"))
            connection.sendall(body)
        except OSError:
            pass  # refused while it was being sent: the response can still be read
        response = HTTPResponse(connection, method=hostile.method)
        try:
            response.begin()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, TimeoutError):
                raise
            return Reply(0, {}, b"")
