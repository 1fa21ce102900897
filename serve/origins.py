"""Protection from requests of foreign web pages: only the served page and pages of ``auth.origins`` may send any.

A browser sends requests of any page to this machine, without a token and without asking the user. It marks them by
``Sec-Fetch-Site`` (relation of the page to this server) and ``Origin`` (address of the page), which no script can
change; other programs send neither.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers

from serve.errors import ApiError

_METHODS, _HEADERS = "GET, POST", "Authorization, Content-Type, X-Request-ID"
_READABLE = "Retry-After, X-Request-ID"
"""Response headers that scripts of an allowed origin may read."""


class Origins:
    """Refuses requests of pages from foreign origins.

    Args:
        allowed: origins other than this server's own, as browsers write them: ``https://tools.example.org``.
    """

    def __init__(self, allowed: Collection[str] = ()):
        self._allowed = frozenset(allowed)

    def check(self, headers: Headers) -> None:
        """Check the origin of a request.

        Raises:
            ApiError: 403, it comes from a foreign page.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "").lower()
        if origin in self._allowed:
            return
        if site in ("cross-site", "same-site"):
            raise self._foreign(origin, f"Sec-Fetch-Site: {site}")
        # With same-origin, the browser compared with the address that it uses, which a proxy may have rewritten.
        if origin is not None and site != "same-origin" and _host(origin) != headers.get("host", "").lower():
            raise self._foreign(origin, f"Host: {headers.get('host', '')[:100]}")

    def _foreign(self, origin: str | None, why: str) -> ApiError:
        page = f"web page of {origin[:100]!r}" if origin is not None else "web page of another origin"
        message = f"requests from a {page} are not accepted ({why}); the operator can allow its origin in auth.origins"
        return ApiError(403, "foreign_origin", message)

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Whether a request is the CORS preflight of an allowed origin."""
        preflight = method == "OPTIONS" and "access-control-request-method" in headers
        return preflight and headers.get("origin") in self._allowed

    def answer_headers(self, headers: Headers) -> dict[str, str]:
        """Response headers that let scripts of an allowed origin read the response; ``headers`` are the request's."""
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
    """``host:port`` of an origin as in a Host header; for ``null`` it equals no host."""
    return origin.partition("://")[2].lower()
