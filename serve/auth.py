"""Who asks: bearer tokens by their hashes, or this machine alone."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers

from serve.config import AuthConfig, is_loopback
from serve.schema import ApiError

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


class Doorkeeper:
    """Tells who sends a request, by the config's way of asking."""

    def __init__(self, config: AuthConfig):
        self._mode = config.mode
        self._tokens = [(token.name, bytes.fromhex(token.sha256)) for token in config.tokens]

    def caller(self, address: str | None, headers: Headers, open_path: bool = False) -> str:
        """The name of a token, or the address, for the logs and the limits.

        Args:
            address: of the peer of the connection.
            open_path: what is asked for needs no token.

        Raises:
            ApiError: 401 or 403.
        """
        if self._mode == "loopback":
            # Behind a proxy the peer is the proxy, and what its headers say of others can be made up.
            if not is_loopback(address) or any(name in headers for name in _FORWARDED):
                raise ApiError(403, "not_local", "this server answers its own machine alone (auth.mode=loopback)")
            if not _is_local_name(headers.get("host", "")):
                # A page of another site can make a browser ask us by a name of its own that resolves to 127.0.0.1.
                raise ApiError(403, "host_not_local", "with auth.mode=loopback the Host must be localhost or 127.0.0.1")
            return address or "local"
        return (address or "unknown") if open_path else self._by_token(headers.get("authorization"))

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


def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    return is_loopback(name)
