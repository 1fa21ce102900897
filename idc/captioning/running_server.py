"""Captions of one pair from a server of this project that already runs, instead of loading a model again."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

DEFAULT_SERVER = "http://127.0.0.1:8000"
"""Where `make serve` listens; the only server that is asked without being named."""
TOKEN_VARIABLE = "IDC_TOKEN"
"""Environment variable with the bearer token of a server that needs one."""
_LOOK_S = 1.0
"""How long a server that was not named may take to answer whether it is there."""
_ANSWER_S = 120.0


class NoServer(ValueError):
    """There is no server of this project at a URL."""


def models(url: str, timeout_s: float = _ANSWER_S) -> list[dict[str, Any]]:
    """The models that a server offers, its default first.

    Raises:
        NoServer: nothing answers there, or something that is no server of this project.
        ValueError: the URL is not usable, or the server refuses (a missing token).
    """
    found = _request(url, "/v1/models", None, timeout_s)
    entries = found.get("data") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not entries or any(one.get("owned_by") != "idc" for one in entries):
        raise NoServer(f"{url} answers, but is no server of this project")
    return entries


def running_server() -> str | None:
    """:data:`DEFAULT_SERVER` if it runs and has a model that it can serve; else None."""
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
    """The answer of ``POST /v1/captions`` for one pair: a ``PairAnswer`` with ``model`` and ``version``.

    Args:
        url: of the server; images are sent to no other address.
        before, after: encoded images.
        beams, candidates, change_map, imagine: as in the served interface.

    Raises:
        NoServer: nothing answers there.
        ValueError: the server refuses the request; the message is the server's own.
    """
    body: dict[str, Any] = {
        "before": base64.b64encode(before).decode(),
        "after": base64.b64encode(after).decode(),
        "candidates": candidates,
        "change_map": change_map,
        "imagine": imagine,
    }
    if beams is not None:
        body["beams"] = beams
    answer = _request(url, "/v1/captions", body, _ANSWER_S)
    return {**answer["results"][0], "model": answer["model"], "version": answer["version"]}


def is_local(url: str) -> bool:
    """Whether a URL's host is this machine by its loopback address."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _request(url: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"server: {url!r} is no URL such as {DEFAULT_SERVER}")
    headers = {"Content-Type": "application/json"}
    token = os.environ.get(TOKEN_VARIABLE)
    if token and (is_local(url) or url.startswith("https://")):  # never readable on the way
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url.rstrip("/") + path, data, headers)
    # A server on this machine is not asked through a proxy.
    proxies = [urllib.request.ProxyHandler({})] if is_local(url) else []
    try:
        with urllib.request.build_opener(*proxies).open(request, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} refuses ({error.code}): {_message(error)}") from None
    except (OSError, ValueError) as error:  # no connection, a time-out, another protocol, no JSON
        raise NoServer(f"no server answers at {url}: {error}") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, LookupError, TypeError):
        return str(error.reason)
