"""Error messages of the served page: bad files, a server that is busy or unreachable, a missing token."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from serve.api import create_api
from tests.browser.driving import drop
from tests.browser.served import Backend, Seen, Visit, caption_of
from tests.serve.local import TOKEN, local_config, serving, tokens_of

pytestmark = pytest.mark.slow


def noise(path: Path, side: int) -> Path:
    """A PNG of about 3 side^2 bytes."""
    data = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(data).save(path, compress_level=0)
    return path


def test_broken_and_oversized_files_are_explained_at_their_slot(
    pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    (tmp_path / "words.png").write_text("no picture")
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (tmp_path / "empty.png").touch()
    (tmp_path / "drawing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    big = noise(tmp_path / "large.png", 700)
    wide = tmp_path / "wide.png"
    Image.new("RGB", (1500, 1000)).save(wide)
    cut = tmp_path / "cut.png"
    cut.write_bytes(noise(tmp_path / "whole.png", 300).read_bytes()[:9000])
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("[data-side=after]"), pair[1])
        slot, fault = page.locator("[data-side=before]"), page.locator("#before-fault")
        for name, message in (
            ("words.png", "words.png cannot be read as an image: it is damaged or of another format"),
            ("photo.heic", "photo.heic has a format that is not accepted"),
            ("drawing.svg", "drawing.svg has a format that is not accepted (image/svg+xml). Accepted: PNG, JPEG,"),
            ("empty.png", "empty.png is empty."),
        ):
            drop(page, slot, tmp_path / name)
            expect(fault).to_contain_text(message)
            expect(fault).to_have_attribute("role", "alert")
            expect(page.locator("#ask")).to_be_disabled()
        assert seen.errors == []
        for path, message in (
            (big, "large.png: the image file exceeds the limit of 1 MiB"),
            (wide, "wide.png: 1500 x 1000 pixels; the limit is 1,000,000"),
        ):
            drop(page, slot, path)
            expect(page.locator("#before-name")).to_contain_text(path.name)
            page.locator("#ask").click()
            expect(fault).to_contain_text(message)
            expect(page.locator("#result")).to_be_hidden()
        drop(page, slot, noise(tmp_path / "huge.png", 2000))
        expect(page.locator("#before-name")).to_contain_text("huge.png")
        page.locator("#ask").click()
        expect(page.locator("#fault")).to_contain_text("the request body exceeds the limit of 4 MiB")
        drop(page, slot, cut)  # a browser shows it in part
        expect(page.locator("#before-name")).to_contain_text("cut.png")
        page.locator("#ask").click()
        expect(fault).to_contain_text("cut.png: ")
        drop(page, page.locator("main"), pair[0], pair[1], cut)
        expect(page.locator("#fault")).to_contain_text("3 files at once")
        drop(page, slot, pair[0])
        expect(page.locator("#before-name")).to_contain_text("before.png")
        page.locator("#ask").click()
        expect(page.locator("#result")).to_be_visible()
        expect(page.locator(".fault").filter(visible=True)).to_have_count(0)


def test_a_busy_or_absent_server_is_explained(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        page.clock.install()
        backend.full = True
        try:
            drop(page, page.locator("main"), *pair)
            expect(page.locator("#fault")).to_contain_text("Try again in 1 s.")
            page.clock.fast_forward(1500)
            expect(page.locator("#fault")).to_have_text("The server was busy. Try again now.")
        finally:
            backend.full = False
        page.context.set_offline(True)
        page.locator("#ask").click()
        expect(page.locator("#fault")).to_contain_text("You are offline.")
        page.context.set_offline(False)
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        assert "".join(page.locator(".fault").all_inner_texts()) == ""


def test_another_pair_cancels_the_current_request(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        backend.stuck = True
        try:
            drop(page, page.locator("main"), *pair)
            expect(page.locator("#waiting")).to_contain_text("Captioning")
            with page.expect_event("requestfailed"):
                page.locator("#swap").click()
            expect(page.locator("#waiting")).to_have_text("")
        finally:
            backend.stuck = False
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, (pair[1], pair[0])))


def test_a_token_is_asked_for_and_forgotten_with_the_tab(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    config = local_config("", models=backend.artifacts, auth={"mode": "token", "tokens": tokens_of(tester=TOKEN)})
    with serving(create_api(config, backend)) as url, visit(url) as seen:
        page = seen.open()
        form, token = page.locator("#token-form"), page.locator("#token")
        expect(form).to_be_visible()
        drop(page, page.locator("main"), *pair)
        token.fill("wrong")
        token.press("Enter")
        expect(page.locator("#token-fault")).not_to_be_empty()
        token.fill(TOKEN)
        token.press("Enter")
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(form).to_be_hidden()
        assert TOKEN not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
        page.locator("#copy-curl").click()
        expect(page.locator("#copied")).to_contain_text("Copied")
        command = page.evaluate("navigator.clipboard.readText()")
        assert TOKEN not in command
        run = ["bash", "-c", command]
        environment = {"IDC_TOKEN": TOKEN, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(run, cwd=pair[0].parent, env=environment, capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout)["results"][0]["caption"] == caption_of(backend, pair)
        page.reload()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        another = Seen(page.context.new_page(), url).open()
        expect(another.locator("#token-form")).to_be_visible()
