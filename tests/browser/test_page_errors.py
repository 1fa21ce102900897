"""What the served page says of images that cannot be read, of a server that is busy or absent, and without a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

from tests.browser.driving import drop
from tests.browser.served import RENDERED, Visit, describe

pytestmark = [pytest.mark.slow, pytest.mark.ray]
TOKEN = "the-token-of-a-test"


def refuse(status: int, message: str, **headers: str) -> Callable[[Route], None]:
    """A handler of requests that answers with an error of the interface."""
    error = {"message": message, "type": "server_error", "param": None, "code": "refused"}
    return lambda route: route.fulfill(status=status, json={"error": error, "request_id": "1"}, headers=headers)


def test_an_image_that_cannot_be_read_is_explained_at_its_slot(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("no picture")
    (tmp_path / "empty.png").touch()
    (tmp_path / "drawing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    Image.new("1", (6000, 5000)).save(tmp_path / "wide.png")
    page = visit()
    page.locator("#after").set_input_files(RENDERED[1])
    for name, message in (
        ("words.png", "words.png: "),
        ("empty.png", "empty.png: "),
        ("drawing.svg", "drawing.svg: "),
        ("wide.png", "wide.png: 6000 x 5000 pixels; the limit is 25,000,000"),
    ):
        drop(page, "[data-side=before]", tmp_path / name)
        expect(page.locator("#before-name")).to_contain_text(name)
        expect(page.locator("#before-error")).to_have_text("")
        page.locator("#ask").click()
        expect(page.locator("#before-error")).to_contain_text(message)
        expect(page.locator("#result")).to_be_hidden()
    drop(page, "main", *RENDERED, tmp_path / "wide.png")
    expect(page.locator("#error")).to_contain_text("3 files at once")
    drop(page, "[data-side=before]", RENDERED[0])
    page.locator("#ask").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator(".error").filter(visible=True)).to_have_count(0)


def test_a_busy_and_an_absent_server_are_explained(visit: Visit) -> None:
    page = visit()
    page.route("**/v1/captions", refuse(503, "too many requests are waiting", **{"Retry-After": "7"}))
    drop(page, "main", *RENDERED)
    expect(page.locator("#error")).to_have_text("too many requests are waiting. Try again in 7 s.")
    page.unroute_all()
    page.route("**/v1/captions", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    page.locator("#ask").click()
    expect(page.locator("#error")).to_contain_text("status 502")
    page.unroute_all()
    page.context.set_offline(True)
    page.locator("#ask").click()
    expect(page.locator("#error")).to_contain_text("The server cannot be reached.")
    page.context.set_offline(False)
    page.locator("#ask").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator("#error")).to_have_text("")


def test_another_pair_cancels_the_request_of_the_first(visit: Visit) -> None:
    page = visit()
    page.route("**/v1/captions", lambda route: None)  # never answered
    drop(page, "main", *RENDERED)
    expect(page.locator("#waiting")).to_contain_text("Captioning")
    with page.expect_event("requestfailed"):
        page.locator("#swap").click()
    expect(page.locator("#waiting")).to_have_text("")
    expect(page.locator("#error")).to_have_text("")
    page.unroute_all()
    page.locator("#ask").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED[::-1]).best.caption)


def test_a_token_is_asked_for_sent_with_each_request_and_stored_nowhere(visit: Visit) -> None:
    def require_token(route: Route) -> None:
        given = route.request.headers.get("authorization")
        route.continue_() if given == f"Bearer {TOKEN}" else refuse(401, "unknown access token")(route)

    page = visit(prepare=lambda page: page.route("**/v1/**", require_token))
    drop(page, "main", *RENDERED)
    expect(page.locator("#token-form")).to_be_visible()
    for token, error in (("wrong", "unknown access token"), (TOKEN, "")):
        page.locator("#token").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("#token-error")).to_have_text(error)
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator("#token-form")).to_be_hidden()
    stored = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
    assert TOKEN not in page.evaluate(stored)


def test_a_model_that_is_not_started_may_refuse_a_map_and_may_answer_questions(visit: Visit) -> None:
    def not_started(route: Route) -> None:
        models = route.fetch().json()
        for model in models["data"]:
            model["can_map"] = model["can_answer"] = None  # the server does not know yet
        route.fulfill(json=models)

    def without_maps(route: Route) -> None:
        asked = b'name="change_map"\r\n\r\ntrue' in (route.request.post_data_buffer or b"")
        refuse(400, "map: this captioner cannot draw a map")(route) if asked else route.continue_()

    def prepare(page: Page) -> None:
        page.route("**/v1/models", not_started, times=1)
        page.route("**/v1/captions", without_maps)

    page = visit("dialogue", prepare=prepare)
    drop(page, "main", *RENDERED)
    expect(page.locator("#dialogue")).to_be_visible()
    expect(page.locator("#map-figure")).to_be_hidden()
    expect(page.locator("#error")).to_have_text("")
