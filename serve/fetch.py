"""Images that a request gives as URLs: fetched by https from the hosts in ``limits.fetch_hosts`` only."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from serve.config import LimitsConfig
from serve.errors import ApiError

if TYPE_CHECKING:
    import httpx2

_REDIRECTS = 3
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity"}


class Fetcher:
    """Fetches https URLs of allowed hosts; redirects must lead to allowed hosts, too.

    Args:
        trust: trusted certificates; by default those of the system.
    """

    def __init__(self, limits: LimitsConfig, trust: ssl.SSLContext | None = None):
        self._limits, self._trust = limits, trust
        self._hosts = frozenset(host.lower() for host in limits.fetch_hosts)

    async def get(self, url: str, field: str) -> bytes:
        """The bytes at the URL; of an image above the size limit, slightly more than the limit.

        Raises:
            ApiError: 400, its host is not allowed, or it cannot be fetched in time.
        """
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_s):
                return await self._get(url, field)
        except TimeoutError:
            seconds = self._limits.fetch_timeout_s
            message = f"{field}: no response from the host within {seconds:g} s"
            raise ApiError(400, "fetch_failed", message, field) from None

    async def _get(self, url: str, field: str) -> bytes:
        import httpx2

        for _ in range(1 + _REDIRECTS):
            self._check(url, field)
            try:
                # No proxy, no netrc, no cookies: the request carries nothing of this server.
                async with (
                    httpx2.AsyncClient(verify=self._trust or True, trust_env=False, timeout=None) as client,
                    client.stream("GET", url, headers=_HEADERS) as response,
                ):
                    if response.is_redirect:
                        url = urljoin(url, response.headers.get("location", ""))
                        continue
                    if response.status_code != 200:
                        why = f"the host responds with status {response.status_code}"
                        raise ApiError(400, "fetch_failed", f"{field}: {why}", field)
                    return await self._read(response)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                message = f"{field}: the fetch from its host failed ({type(error).__name__})"
                raise ApiError(400, "fetch_failed", message, field) from None
        raise ApiError(400, "fetch_failed", f"{field}: more than {_REDIRECTS} redirects", field)

    # Only an https URL of an allowed host at the port in the settings.
    def _check(self, url: str, field: str) -> None:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "") + (f":{parts.port}" if parts.port not in (None, 443) else "")
        except ValueError:  # a broken port or IPv6 address
            parts, host = urlsplit(""), ""
        if parts.scheme.lower() != "https" or parts.username is not None or host not in self._hosts:
            message = f"{field}: URLs of this host are not allowed; send the image itself"
            raise ApiError(400, "url_not_allowed", message, field)

    async def _read(self, response: httpx2.Response) -> bytes:
        most, data = int(self._limits.image_mib * 2**20), bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > most:
                break
        return bytes(data)
