"""Who asks: bearer tokens by their hashes, or this machine alone."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from serve.config import AuthConfig
from serve.schema import ApiError


class Doorkeeper:
    """Tells who sends a request, by the config's way of asking."""

    def __init__(self, config: AuthConfig):
        self._mode = config.mode
        self._tokens = [(token.name, bytes.fromhex(token.sha256)) for token in config.tokens]

    def caller(self, address: str | None, host: str, authorization: str | None, open_path: bool = False) -> str:
        """The name of a token, or the address, for the logs and the limits.

        Args:
            address: of the peer of the connection; headers that claim another are never read.
            host: the Host header.
            open_path: what is asked for needs no token.

        Raises:
            ApiError: 401 or 403.
        """
        if self._mode == "loopback":
            if not is_loopback(address):
                raise ApiError(403, "not_local", "this server answers its own machine alone (auth.mode=loopback)")
            if not _is_local_name(host):
                # A page of another site can make a browser ask us by a name of its own that resolves to 127.0.0.1.
                raise ApiError(403, "host_not_local", "with auth.mode=loopback the Host must be localhost or 127.0.0.1")
            return address or "local"
        return (address or "unknown") if open_path else self._by_token(authorization)

    def _by_token(self, authorization: str | None) -> str:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise ApiError(401, "token_missing", "send a token: Authorization: Bearer TOKEN")
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for name, digest in self._tokens:  # all of them: the time must not tell which one was nearly right
            if hmac.compare_digest(digest, given):
                found = name
        if found is None:
            raise ApiError(401, "token_unknown", "this token is not known here")
        return found


def is_loopback(address: str | None) -> bool:
    """Whether an address is of this machine itself: 127.0.0.0/8, ::1, and the former written as IPv6."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    return name == "localhost" or is_loopback(name)
