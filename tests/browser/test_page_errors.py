"""What the served page says of images that cannot be read, of a server that is busy or absent, and without a token; and
a page of another origin, whose requests the server refuses before any work is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import BOTTLES, RENDERED, Visit, describe
from tests.browser.driving import drop
from tests.serve.command import Command
from tests.serve.waiting import until

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


def refuse(status: int, message: str, **headers: str) -> Callable[[Route], None]:
    """A handler of requests that answers with an error of the interface."""
    error = {"message": message, "type": "server_error", "param": None, "code": "refused"}
    return lambda route: route.fulfill(status=status, json={"error": error, "request_id": "1"}, headers=headers)


def test_an_image_that_cannot_be_read_is_explained_at_its_slot(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("no picture")
    (tmp_path / "empty.png").touch()
    Image.new("1", (6000, 5000)).save(tmp_path / "wide.png")
    page = visit()
    page.locator("#after").set_input_files(RENDERED[1])
    for name in ("words.png", "empty.png", "wide.png"):
        drop(page, "[data-side=before]", tmp_path / name)
        expect(page.locator("#before-name")).to_contain_text(name)
        expect(page.locator("#before-error")).to_have_text("")
        page.locator("#ask").click()
        expect(page.locator("#before-error")).to_contain_text(f"{name}: ")
        expect(page.locator("#result")).to_be_hidden()
    expect(page.locator("#before-error")).to_contain_text("6000 x 5000 pixels; the limit is 25,000,000")
    drop(page, "main", *RENDERED, tmp_path / "wide.png")
    expect(page.locator("#error")).to_contain_text("3 files at once")
    expect(page.locator("#retry")).to_be_hidden()
    drop(page, "[data-side=before]", RENDERED[0])
    page.locator("#ask").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator(".error").filter(visible=True)).to_have_count(0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuse(503, "too many requests are waiting", **{"Retry-After": "7"}), "are waiting. Try again in 7 s."),
        (lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"), "cannot be used (status 502)"),
        (refuse(504, "no caption was available within 60 s"), "no caption was available within 60 s"),
        (lambda route: route.abort(), "The server cannot be reached."),
    ],
    ids=["busy", "no JSON", "late", "absent"],
)
def test_a_server_that_does_not_caption_is_explained(
    answer: Callable[[Route], None], message: str, visit: Visit
) -> None:
    page = visit()
    page.route("**/v1/captions", answer, times=1)
    drop(page, "main", *RENDERED)
    expect(page.locator("#error")).to_contain_text(message)
    expect(page.locator("#before-name")).to_contain_text(RENDERED[0].name)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator("#error")).to_have_text("")
    expect(page.locator("#retry")).to_be_hidden()


def test_another_pair_cancels_the_request_of_the_first(visit: Visit) -> None:
    page = visit()
    page.route("**/v1/captions", lambda route: None, times=1)  # never answered
    drop(page, "main", *RENDERED)
    expect(page.locator("#waiting")).to_contain_text("Captioning")
    with page.expect_event("requestfailed"):
        page.locator("#swap").click()
    expect(page.locator("#waiting")).to_have_text("")
    expect(page.locator("#error")).to_have_text("")
    page.locator("#ask").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED[::-1]).best.caption)


HOLD_MAP = """() => {
  const decode = HTMLImageElement.prototype.decode;
  window.asked = new Promise((ask) => {
    window.drawn = new Promise((draw) => {
      HTMLImageElement.prototype.decode = async function () {
        if (!this.src.startsWith("data:")) return decode.call(this);
        await new Promise((release) => { window.release = release; ask(); });
        await decode.call(this);
        setTimeout(() => setTimeout(draw)); // after all that waits for the picture
      };
    });
  });
}"""
"""The map of an answer arrives when ``release`` is called; ``asked`` and ``drawn`` resolve before and after it."""


def test_an_answer_that_is_still_being_drawn_is_not_drawn_over_another_pair(visit: Visit) -> None:
    page = visit()
    page.evaluate(HOLD_MAP)
    drop(page, "main", *BOTTLES)
    page.evaluate("() => asked")
    page.locator("#swap").click()
    page.evaluate("() => { release(); return drawn; }")
    expect(page.locator(".boxes > div")).to_have_count(0)
    expect(page.locator("#map")).to_be_hidden()
    expect(page.locator("#result")).to_be_hidden()


def test_a_token_is_asked_for_sent_with_each_request_and_stored_nowhere(visit: Visit) -> None:
    def require_token(route: Route) -> None:
        accepted = route.request.headers.get("authorization") == "Bearer secret"
        route.continue_() if accepted else refuse(401, "unknown access token")(route)

    page = visit(prepare=lambda page: page.route("**/v1/**", require_token))
    drop(page, "main", *RENDERED)
    for token, error in (("wrong", "unknown access token"), ("secret", "")):
        page.locator("#token").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("#token-error")).to_have_text(error)
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator("#token-form")).to_be_hidden()
    stored = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
    assert "secret" not in page.evaluate(stored)


def test_a_model_that_is_not_started_may_refuse_a_map_and_may_answer_questions(visit: Visit) -> None:
    def hide_abilities(route: Route) -> None:
        models = route.fetch().json()
        for model in models["data"]:
            model["can_map"] = model["can_answer"] = None
        route.fulfill(json=models)

    def refuse_maps(route: Route) -> None:
        asked = b'name="change_map"\r\n\r\ntrue' in (route.request.post_data_buffer or b"")
        refuse(400, "map: this captioner cannot draw a map")(route) if asked else route.continue_()

    page = visit("dialogue", prepare=lambda page: page.route("**/v1/models", hide_abilities, times=1))
    page.route("**/v1/captions", refuse_maps)
    drop(page, "main", *RENDERED)
    expect(page.locator("#dialogue")).to_be_visible()
    expect(page.locator("#map")).to_be_hidden()
    expect(page.get_by_label("Change map", exact=True)).to_be_hidden()
    expect(page.locator("#error")).to_have_text("")


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
