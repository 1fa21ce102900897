"""Who may send requests: callers with a token or of this machine, and of web pages the served one and those of
``auth.origins``.

A browser sends requests of any page to this machine, without a token and without asking the user. It marks them by
``Sec-Fetch-Site`` (relation of the page to this server) and ``Origin`` (address of the page), which no script can
change; other programs send neither.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from starlette.datastructures import Headers

from idc.util.loopback import is_loopback
from serve.config import AuthConfig
from serve.errors import ApiError

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


class Authenticator:
    """Identifies the caller of a request by the configured mode."""

    def __init__(self, config: AuthConfig):
        self._mode = config.mode
        self._tokens = [(token.name, bytes.fromhex(token.sha256)) for token in config.tokens]

    def authenticate(self, address: str | None, headers: Headers, open_path: bool = False) -> str:
        """The caller for logs and limits: the name of its token, or its address.

        Args:
            address: address of the connection's peer.
            open_path: whether the requested path needs no token.

        Raises:
            ApiError: 401 or 403.
        """
        if self._mode == "loopback":
            # Behind a proxy the peer is the proxy, and its headers about the client can be forged.
            if not is_loopback(address) or any(name in headers for name in _FORWARDED):
                message = "only requests from localhost are accepted (auth.mode=loopback)"
                raise ApiError(403, "not_local", message)
            if not _is_local_name(headers.get("host", "")):
                # A page of another site can make a browser send requests to a name of its own that resolves to
                # 127.0.0.1 (DNS rebinding).
                message = "with auth.mode=loopback the Host header must be localhost or 127.0.0.1"
                raise ApiError(403, "host_not_local", message)
            return address or "local"
        return (address or "unknown") if open_path else self._by_token(headers.get("authorization"))

    def _by_token(self, authorization: str | None) -> str:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise ApiError(401, "token_missing", "no access token; send the header Authorization: Bearer TOKEN")
        digest_given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        client = None
        for name, digest in self._tokens:  # compare with all: the time must not reveal a near match
            if hmac.compare_digest(digest, digest_given):
                client = name
        if client is None:
            raise ApiError(401, "token_unknown", "unknown access token")
        return client


def check_origin(headers: Headers, allowed: Collection[str]) -> None:
    """Check that a request does not come from a foreign page.

    Args:
        allowed: origins other than this server's own, as browsers write them: ``https://tools.example.org``.

    Raises:
        ApiError: 403, it does.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "").lower()
    host = headers.get("host", "").lower()
    if origin in allowed:
        return
    foreign = site in ("cross-site", "same-site")
    # With same-origin, the browser compared with the address that it uses, which a proxy may have rewritten. The
    # origin "null" is no host.
    if not foreign and origin is not None and site != "same-origin":
        foreign = origin.partition("://")[2].lower() != host
    if foreign:
        page = f"web page of {origin[:100]!r}" if origin is not None else "web page of another origin"
        message = f"requests from a {page} are not accepted; the operator can allow its origin in auth.origins"
        raise ApiError(403, "foreign_origin", message)


def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    return is_loopback(name)
