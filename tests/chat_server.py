"""A real local server of OpenAI's chat completions, whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "judge-2026"
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


class Server(ThreadingHTTPServer):
    """Answers by ``answer(number of the request, content of the message)``: a status and a text, or a status, a text
    and headers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = 0
        self.usage: dict[str, Any] | None = USAGE
        self.finish_reason = "stop"
        self.answer: Callable[[int, Any], tuple[Any, ...]] = lambda number, prompt: (200, "Score: 50\nHalf of it.")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error of the test."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.paths.append(self.path)
            number = len(self.server.requests)
            self.server.under_way += 1
            self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
        status, text, *headers = self.server.answer(number, body["messages"][0]["content"])
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": self.server.finish_reason}
        record = {"model": MODEL, "choices": [choice], "usage": self.server.usage}
        data = (json.dumps(record) if status == 200 else text).encode()
        with self.server.lock:
            self.server.under_way -= 1
        self.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[None]:
    """The server runs until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:  # a thread that still serves would keep the process of a failed test
            server.shutdown()
            thread.join()


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    with running(server):
        yield server
