"""Captions of one pair from a running server of this project, instead of loading a model."""

from __future__ import annotations

import base64
import json
import os
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from idc.data.textfiles import parse_json
from idc.loopback import is_loopback

if TYPE_CHECKING:
    import httpx2

DEFAULT_SERVER = "http://127.0.0.1:8000"
"""Address of `make serve`; the only server that is used without being named."""
TOKEN_VARIABLE = "IDC_TOKEN"
"""Environment variable with the bearer token, for servers that require one."""
_LOOK_S = 1.0
"""Time in which a server that was not named must respond."""
_ANSWER_S = 120.0
_MOST_MIB = 512
"""Of an answer, which may hold generated frames as PNG."""


class NoServer(ValueError):
    """No server of this project responds at a URL."""


def models(url: str, timeout_s: float = _ANSWER_S) -> list[dict[str, Any]]:
    """The models of a server, its default first.

    Raises:
        NoServer: nothing responds there, or something other than a server of this project.
        ValueError: the URL is invalid, or the server refuses the request (missing token).
    """
    reply = _request(url, "/v1/models", None, timeout_s)
    entries = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(entries, list) or not entries or any(entry.get("owned_by") != "idc" for entry in entries):
        raise NoServer(f"{url} responds, but is not a server of this project; check the address")
    return entries


def running_server() -> str | None:
    """:data:`DEFAULT_SERVER` if it runs and has a model that it can serve; else None."""
    address = urlsplit(DEFAULT_SERVER)
    try:  # Most often nothing listens there; the HTTP client takes longer to import than to find that out.
        socket.create_connection((address.hostname, address.port), _LOOK_S).close()
    except OSError:
        return None
    try:
        return DEFAULT_SERVER if models(DEFAULT_SERVER, _LOOK_S)[0].get("error") is None else None
    except ValueError:
        return None


def ask(
    url: str,
    before: bytes,
    after: bytes,
    *,
    beams: int | None = None,
    candidates: int = 1,
    change_map: bool = False,
    imagine: bool = False,
) -> dict[str, Any]:
    """Send one pair to ``POST /v1/captions``. Returns a ``PairAnswer`` with ``model`` and ``version``.

    Args:
        url: address of the server; images are sent to no other address.
        before, after: encoded images.
        beams, candidates, change_map, imagine: as in :class:`idc.captioning.contract.Captioner` and the API.

    Raises:
        NoServer: nothing responds there.
        ValueError: the server refuses the request, with its message.
    """
    body: dict[str, Any] = {
        "before": base64.b64encode(before).decode(),
        "after": base64.b64encode(after).decode(),
        "candidates": candidates,
        "change_map": change_map,
        "imagine": imagine,
        "regions": "unfamiliar",  # as a captioner that is loaded here
    }
    if beams is not None:
        body["beams"] = beams
    answer = _request(url, "/v1/captions", body, _ANSWER_S)
    return {**answer["results"][0], "model": answer["model"], "version": answer["version"]}


def _request(url: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"server: {url!r} is not a URL like {DEFAULT_SERVER}")
    import httpx2

    from idc.bounded_client import BoundedClient, wait_for

    local = is_loopback(urlsplit(url).hostname)
    headers = {"Content-Type": "application/json"}
    token = os.environ.get(TOKEN_VARIABLE)
    if token and (local or url.startswith("https://")):  # never in the clear over a network
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()

    async def response() -> httpx2.Response:
        # Requests to this machine bypass proxies.
        async with BoundedClient(_MOST_MIB, trust_env=not local, timeout=timeout_s) as client:
            method = "GET" if data is None else "POST"
            return await client.request(method, url.rstrip("/") + path, content=data, headers=headers)

    try:
        answer = wait_for(response())
        if answer.is_success:
            return parse_json(answer.content.decode())
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:  # also another protocol, or not JSON
        raise NoServer(f"no server responds at {url}: {error}") from None
    raise ValueError(f"{url} refuses the request ({answer.status_code}): {_message(answer)}")


def _message(answer: httpx2.Response) -> str:
    try:
        return str(parse_json(answer.content.decode())["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return answer.reason_phrase
