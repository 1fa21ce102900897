"""Chromium, and one served page for all tests of this folder. The browser ends with each file, because Playwright's
event loop must not remain in the main thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from tests.browser.driving import chromium
from tests.browser.served import Visit, served_page
from tests.serve.command import Command


@pytest.fixture(scope="package")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with served_page(tmp_path_factory.mktemp("served")) as command:
        yield command


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=60_000)  # what a waiting expectation gives a page on a busy machine; 5 s by default
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, command: Command) -> Iterator[Visit]:
    """Opens the page and chooses a model, after ``prepare(page)``. The test fails if the console has an error, but for
    refusals of the interface, or if a request goes to another address."""
    problems: list[str] = []

    def check_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "/v1/" not in message.location.get("url", ""):
            problems.append(message.text)

    def check_request(request: Request) -> None:
        if not request.url.startswith((f"{command.url}/", "data:", f"blob:{command.url}/")):
            problems.append(request.url)

    def open_page(model: str = "auto", prepare: Callable[[Page], object] = lambda page: None, **context: Any) -> Page:
        page = browser.new_context(**context).new_page()
        page.on("console", check_message)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check_request)
        prepare(page)
        page.goto(f"{command.url}/")
        expect(page.locator("#examples button")).to_have_count(17)
        if model != "auto":
            page.locator("#model").select_option(model)
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert problems == []
