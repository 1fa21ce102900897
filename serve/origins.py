"""Which web pages may call: the served page itself, pages of ``auth.origins``, and programs, which are no pages.

A browser sends requests of any page to this machine, without a token and without asking the user. It marks them with
``Sec-Fetch-Site`` (how the calling page relates to this server) and ``Origin`` (where that page is from), which no
script can change; programs send neither.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers

from serve.schema import ApiError

_METHODS, _HEADERS = "GET, POST", "Authorization, Content-Type, X-Request-ID"
_READABLE = "Retry-After, X-Request-ID"
"""Headers of an answer that scripts of an allowed origin may read."""


class Origins:
    """Refuses requests that pages of foreign origins make.

    Args:
        allowed: origins besides this server's own, as browsers write them: ``https://tools.example.org``.
    """

    def __init__(self, allowed: Collection[str] = ()):
        self._allowed = frozenset(allowed)

    def check(self, headers: Headers) -> None:
        """Refuse a request of a foreign page.

        Raises:
            ApiError: 403.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "").lower()
        if origin in self._allowed:
            return
        if site in ("cross-site", "same-site"):
            raise self._foreign(origin, f"Sec-Fetch-Site: {site}")
        # A browser that says same-origin compared with the address that it asked, which a proxy may have rewritten.
        if origin is not None and site != "same-origin" and _host(origin) != headers.get("host", "").lower():
            raise self._foreign(origin, f"Host: {headers.get('host', '')[:100]}")

    def _foreign(self, origin: str | None, why: str) -> ApiError:
        page = f"web page of {origin[:100]!r}" if origin is not None else "web page of another origin"
        message = f"this request comes from a {page} ({why}); the operator can allow its origin in auth.origins"
        return ApiError(403, "foreign_origin", message)

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Whether a browser asks on behalf of an allowed origin what it may send."""
        asks = method == "OPTIONS" and "access-control-request-method" in headers
        return asks and headers.get("origin") in self._allowed

    def answer_headers(self, headers: Headers) -> dict[str, str]:
        """Headers that let scripts of an allowed origin read the answer to a request with these ``headers``."""
        if not self._allowed:
            return {}
        origin = headers.get("origin")
        if origin not in self._allowed:
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Expose-Headers": _READABLE,
            "Access-Control-Max-Age": "600",
        }


def _host(origin: str) -> str:
    """``host:port`` of an origin as a Host header has it; that of ``null`` equals none."""
    return origin.partition("://")[2].lower()
