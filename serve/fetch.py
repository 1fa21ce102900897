"""Images that a request names by URL: from hosts that the settings allow, and from nowhere else."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from serve.config import LimitsConfig
from serve.schema import ApiError

if TYPE_CHECKING:
    import httpx2

_REDIRECTS = 3
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity"}


class Fetcher:
    """Fetches https URLs of allowed hosts; a redirect must lead to one of them as well.

    Args:
        trust: whose certificates are believed, by default those that the system believes.
    """

    def __init__(self, limits: LimitsConfig, trust: ssl.SSLContext | None = None):
        self._limits, self._trust = limits, trust
        self._hosts = frozenset(host.lower() for host in limits.fetch_hosts)

    async def get(self, url: str, param: str) -> bytes:
        """The bytes at the URL, or the first of them if they are more than an image may have.

        Raises:
            ApiError: 400 its host is not allowed, or it cannot be fetched in time.
        """
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_s):
                return await self._get(url, param)
        except TimeoutError:
            seconds = self._limits.fetch_timeout_s
            raise ApiError(400, "fetch_failed", f"{param}: nothing came within {seconds:g} s", param) from None

    async def _get(self, url: str, param: str) -> bytes:
        import httpx2

        for _ in range(1 + _REDIRECTS):
            self._check(url, param)
            try:
                # No proxy, no netrc, no cookies: nothing of this server's own goes along.
                async with (
                    httpx2.AsyncClient(verify=self._trust or True, trust_env=False, timeout=None) as client,
                    client.stream("GET", url, headers=_HEADERS) as response,
                ):
                    if response.is_redirect:
                        url = urljoin(url, response.headers.get("location", ""))
                        continue
                    if response.status_code != 200:
                        why = f"the host answers with status {response.status_code}"
                        raise ApiError(400, "fetch_failed", f"{param}: {why}", param)
                    return await self._read(response)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise ApiError(400, "fetch_failed", f"{param}: {type(error).__name__} at its host", param) from None
        raise ApiError(400, "fetch_failed", f"{param}: more than {_REDIRECTS} redirects", param)

    # An https URL of an allowed host, at the port that the settings give it, and nothing else.
    def _check(self, url: str, param: str) -> None:
        try:
            parts = urlsplit(url)
            place = (parts.hostname or "") + (f":{parts.port}" if parts.port not in (None, 443) else "")
        except ValueError:  # a broken port or IPv6 address
            parts, place = urlsplit(""), ""
        if parts.scheme.lower() != "https" or parts.username is not None or place not in self._hosts:
            message = f"{param}: URLs of this host are not fetched; send the image itself"
            raise ApiError(400, "url_not_allowed", message, param)

    async def _read(self, response: httpx2.Response) -> bytes:
        most, data = int(self._limits.image_mib * 2**20), bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > most:
                break
        return bytes(data)
