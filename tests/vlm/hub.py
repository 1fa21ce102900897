"""A server with one model that speaks the API of the Hugging Face hub: what ``snapshot_download`` asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.chat_server import running

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def point_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask this hub, in this process."""
    from huggingface_hub import constants
    from huggingface_hub.hf_api import api

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(api, "endpoint", endpoint)


@contextmanager
def serving_hub(model: Path, name: str = "org/tiny") -> Iterator[tuple[str, list[str]]]:
    """Serve a model's folder as ``name``, whose only branch is ``main``.

    Yields:
        The endpoint, and what was asked for so far, ``GET /path``.
    """
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            head, _, rest = path.removeprefix("/").removeprefix("api/models/").partition(f"{name}/")
            what, _, rest = rest.partition("/")
            revision, _, file = rest.partition("/")
            if head or not what:
                self._refuse("RepoNotFound")
            elif revision not in ("main", COMMIT):
                self._refuse("RevisionNotFound")
            elif what == "revision":
                self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": [], "tags": []}).encode())
            elif what == "tree":
                listed = [
                    {"type": "file", "path": one.name, "size": one.stat().st_size, "oid": _etag(one)}
                    for one in sorted(model.iterdir())
                ]
                self._send(json.dumps(listed).encode())
            elif what == "resolve" and (model / file).is_file():
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_etag(model / file)}"'}
                self._send((model / file).read_bytes(), headers)
            else:
                self._refuse("EntryNotFound")

        def _send(self, content: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def _refuse(self, code: str) -> None:
            self._send(b"{}", {"X-Error-Code": code, "X-Error-Message": code}, status=404)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the paths are in ``asked``."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}", asked


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
