"""A page of another origin in Chromium: the local server refuses its requests before any work is done."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.serve.command import Command
from tests.serve.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.ray]

SEND_FORM = """async ([url, mode]) => {
  const form = new FormData();
  for (const side of ["before", "after"]) form.append(side, new Blob(["picture"]), `${side}.png`);
  try {
    return (await fetch(`${url}/v1/captions`, {method: "POST", mode, body: form})).status;
  } catch (error) {
    return error.name;
  }
}"""
"""Browsers send a form without asking the server first."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_foreign_page_has_nothing_captioned(host: str, browser: Browser, command: Command, tmp_path: Path) -> None:
    def refusals() -> int:
        return sum('"status": 403' in line and "/v1/captions" in line for line in command.log.read_text().splitlines())

    before, page = refusals(), browser.new_page()
    (tmp_path / "index.html").write_text("<!doctype html><title>foreign</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever).start()
        page.goto(f"http://{host}:{other.server_port}/")
        other.shutdown()
    for mode in ("no-cors", "cors"):
        assert page.evaluate(SEND_FORM, [command.url, mode]) == "TypeError", "the page reads nothing of the refusal"
    until(lambda: refusals() == before + 2, "the browser sent both, and the server refused them")
    page.close()
