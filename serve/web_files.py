"""Routes of the web page: ``web/index.html`` at ``/``, every file of the folder at ``/web/<its path>``.

The files are read once, at the start: no request can reach any other file of the machine.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

WEB = Path(__file__).parent / "web"
Route = Callable[[Request], Awaitable[Response]]


def web_files() -> dict[str, Route]:
    """The routes by path."""
    routes = {}
    for file in sorted(path for path in WEB.rglob("*") if path.is_file()):
        media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        routes[f"/web/{file.relative_to(WEB).as_posix()}"] = _route(file.read_bytes(), media_type)
    if "/web/index.html" in routes:
        routes["/"] = routes["/web/index.html"]
    return routes


def _route(data: bytes, media_type: str) -> Route:
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'

    async def file(request: Request) -> Response:
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=media_type, headers=headers)

    return file
