"""Pages of other origins in a real browser: the local server refuses their requests before any work is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from serve.api import create_api
from serve.backend import EncodedPair, Options, PairResult
from serve.config import ServeConfig
from serve.pieces import Hear
from tests.serve.local import LocalBackend, serving

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

SUBMIT = """(url) => {
  const form = Object.assign(document.createElement("form"),
    {method: "post", enctype: "multipart/form-data", action: `${url}/v1/captions`});
  for (const side of ["before", "after"]) {
    const input = Object.assign(document.createElement("input"), {type: "file", name: side});
    const files = new DataTransfer();
    files.items.add(new File(["no picture"], `${side}.png`));
    input.files = files.files;
    form.append(input);
  }
  document.body.append(form);
  form.submit();
}"""
"""A form submission that navigates away."""


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
def url(artifact: str, backend: CountingBackend, foreign_port: int) -> Iterator[str]:
    """A local server that accepts requests of pages from ``127.0.0.3``."""
    auth = {"mode": "loopback", "origins": [f"http://127.0.0.3:{foreign_port}"]}
    config = ServeConfig.model_validate({"models": {"demo": artifact}, "auth": auth})
    with serving(create_api(config, backend)) as address:
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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_foreign_page_has_nothing_captioned(
    page: Page, url: str, foreign_port: int, host: str, backend: CountingBackend
) -> None:
    before, pairs = refused(page, url), backend.pairs
    page.goto(f"http://{host}:{foreign_port}/")
    for mode in ("no-cors", "cors"):
        assert page.evaluate(FETCH, [url, mode]) == "TypeError", "the page reads nothing of the refusal"
    assert refused(page, url) == before + 2, "the browser sent both"
    with page.expect_navigation():
        page.evaluate(SUBMIT, url)
    expect(page.locator("body")).to_contain_text("foreign_origin")
    assert refused(page, url) == before + 3
    assert backend.pairs == pairs


def test_the_other_name_of_this_machine_is_another_origin(page: Page, url: str, backend: CountingBackend) -> None:
    pairs = backend.pairs
    page.goto(f"http://localhost:{urlsplit(url).port}/")
    assert page.evaluate(FETCH, [f"http://localhost:{urlsplit(url).port}", "same-origin"]) == 200
    assert backend.pairs == pairs + 4
    page.goto(f"http://localhost:{urlsplit(url).port}/healthz")  # without the page's policy, which forbids it, too
    page.evaluate(FETCH, [url, "no-cors"])
    assert backend.pairs == pairs + 4


def test_an_allowed_page_may_ask_and_read_the_answer(
    page: Page, url: str, foreign_port: int, backend: CountingBackend
) -> None:
    pairs = backend.pairs
    page.goto(f"http://127.0.0.3:{foreign_port}/")
    assert page.evaluate(FETCH, [url, "cors"]) == 200
    assert backend.pairs == pairs + 4


def test_a_link_on_a_foreign_page_leads_to_the_served_page(page: Page, url: str, foreign_port: int) -> None:
    page.goto(f"http://127.0.0.2:{foreign_port}/")
    page.evaluate(
        "(url) => document.body.append(Object.assign(document.createElement('a'), {href: url, text: 'go'}))", url
    )
    page.get_by_text("go").click()
    expect(page.locator("#examples button")).to_have_count(17)
