"""Chromium, and one served page for all tests of this folder. The browser ends with each file, because Playwright's
event loop must not remain in the main thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from idc.captioning.contract import Captioner, Description, SearchOptions
from idc.captioning.loading import DEFAULTS, CaptionerLoader
from idc.captioning.sources import AUTO, SHIPPED, SHIPPED_SATELLITE
from idc.data.images import decode_image
from tests.browser.driving import chromium
from tests.serve.command import Command, serving
from tests.vlm.artifacts import wrapped

EXAMPLES = Path(__file__).parents[2] / "serve/web/examples"
RENDERED = EXAMPLES / "color-before.png", EXAMPLES / "color-after.png"
BOTTLES = tuple(EXAMPLES / "photographs" / f"bottle_{number}.jpg" for number in ("00100", "00260"))

Visit = Callable[..., Page]
"""``visit(model="auto", prepare=None, **settings of the browser's context)`` opens the page; see the fixture."""


@pytest.fixture(scope="package")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The page as ``python -m serve.app`` serves it, with four captioners."""
    folder = tmp_path_factory.mktemp("served")
    sources = {"auto": AUTO, "shipped": SHIPPED, "satellite": SHIPPED_SATELLITE, "dialogue": wrapped(folder / "vlm")}
    with serving(folder, *(f"models.{name}={source}" for name, source in sources.items())) as command:
        yield command


@cache
def captioner(source: str = AUTO) -> Captioner:
    with contextlib.chdir(EXAMPLES):  # where no training has left a captioner that `auto` would prefer
        return CaptionerLoader(source, DEFAULTS)()


def describe(files: tuple[Path, ...]) -> Description:
    """What ``auto`` itself says of a pair."""
    return captioner().describe(*([decode_image(file.read_bytes())] for file in files), SearchOptions(candidates=3))[0]


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
