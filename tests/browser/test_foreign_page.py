"""Pages of other origins in a real browser: the local server refuses their requests before any work is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page

from serve.api import create_api
from serve.backend import EncodedPair, Options, PairResult
from serve.pieces import Hear
from tests.serve.local import LocalBackend, local_config, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

FETCH = """async ([url, mode]) => {
  const picture = () => new Promise((done) => {
    const canvas = Object.assign(document.createElement("canvas"), {width: 32, height: 32});
    canvas.getContext("2d").fillRect(4, 4, 9, 9);
    canvas.toBlob(done, "image/png");
  });
  const form = new FormData();
  for (let pair = 0; pair < 4; pair++)
    for (const side of ["before", "after"]) form.append(side, await picture(), `${side}.png`);
  try {
    const answer = await fetch(`${url}/v1/captions`, {method: "POST", mode, body: form});
    return answer.status;
  } catch (error) {
    return error.name;
  }
}"""
"""Four pairs as a form, sent without a preflight."""


class CountingBackend(LocalBackend):
    """Counts the requested pairs."""

    pairs = 0

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, hear: Hear | None = None
    ) -> list[PairResult]:
        self.pairs += len(pairs)
        return await super().caption(pairs, model, options, hear)


class ForeignPage(BaseHTTPRequestHandler):
    """An empty page at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>foreign</title><body></body>")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def backend(artifact: str) -> CountingBackend:
    return CountingBackend(artifact)


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    """Port of a foreign server at every address of this machine."""
    with ThreadingHTTPServer(("0.0.0.0", 0), ForeignPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(artifact: str, backend: CountingBackend) -> Iterator[str]:
    """A local server."""
    with serving(create_api(local_config(artifact), backend)) as address:
        yield address


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        yield context.new_page()


def refused(page: Page, url: str) -> int:
    """Number of caption requests that the server has refused with 403."""
    text = page.request.get(f"{url}/metrics").text()
    wanted = 'idc_requests_total{route="/v1/captions",status="403"} '
    return next((int(float(line.removeprefix(wanted))) for line in text.splitlines() if line.startswith(wanted)), 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_foreign_page_has_nothing_captioned(
    page: Page, url: str, foreign_port: int, host: str, backend: CountingBackend
) -> None:
    before, pairs = refused(page, url), backend.pairs
    page.goto(f"http://{host}:{foreign_port}/")
    for mode in ("no-cors", "cors"):
        assert page.evaluate(FETCH, [url, mode]) == "TypeError", "the page reads nothing of the refusal"
    assert refused(page, url) == before + 2, "the browser sent both"
    assert backend.pairs == pairs
