"""The served page in a real browser, over HTTP, with real captioners: its contents and its controls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.browser.driving import CONTRASTS, drop, paste, pixels, too_wide, unnamed
from tests.browser.served import Backend, Visit, caption_of, described

pytestmark = pytest.mark.slow

RENDERED = 12
"""Index of the first example that is no photograph."""


def flat(path: Path, colour: tuple[int, int, int]) -> Path:
    Image.new("RGB", (40, 30), colour).save(path)
    return path


def test_two_dropped_files_are_captioned_as_the_artifact_does(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(page.locator("#before-name")).to_contain_text("before.png, 32 × 32")
        expect(page.locator("#after-name")).to_contain_text("after.png")
        expect(page.locator("#said")).to_contain_text(f"Caption: {caption_of(backend, pair)}")
        found = described(backend, pair)
        assert found.changed is not None
        expect(page.locator("#changed")).to_contain_text(f", {100 * found.changed:.0f} %")
        expect(page.locator("#changed-track")).to_have_attribute("aria-valuenow", f"{100 * found.changed:.0f}")
        expect(page.locator("#confidence")).to_have_text(f"{100 * found.best.confidence:.0f} %")
        listed = [f"{one.caption} {100 * one.confidence:.0f} %" for one in found.candidates]
        assert page.locator("#candidates li").all_inner_texts() == listed
        expect(page.locator("#about")).to_contain_text(f"version {backend.models()[0].version} ")
        drop(page, page.locator("[data-side=before]"), pair[1])
        expect(page.locator("#result")).to_be_hidden()
        expect(page.locator("#before-name")).to_contain_text("after.png")
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, (pair[1], pair[1])))
        assert unnamed(page) == []
        assert (seen.errors, seen.elsewhere) == ([], [])


def test_slider_and_map_work_by_keyboard_and_mouse(tmp_path: Path, visit: Visit) -> None:
    files = flat(tmp_path / "1.png", (255, 0, 0)), flat(tmp_path / "2.png", (0, 0, 255))
    with visit() as seen:
        page = seen.open()
        page.locator("#before").set_input_files([files[1], files[0]])  # sorted by name: 1 is before
        stage, slider = page.locator("#compare"), page.locator("#slider")

        def share_before() -> float:
            shown = pixels(stage)
            red, blue = ((shown[..., one] > 200) & (shown[..., other] < 50) for one, other in ((0, 2), (2, 0)))
            return float(red.mean() / (red.mean() + blue.mean()))

        expect(page.locator("#result")).to_be_visible()
        slider.focus()
        assert share_before() == pytest.approx(0.5, abs=0.03)
        for _ in range(30):
            page.keyboard.press("ArrowRight")
        assert share_before() == pytest.approx(0.8, abs=0.03)
        box = stage.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60, steps=5)
        page.mouse.up()
        assert share_before() == pytest.approx(0.25, abs=0.03)

        mapped = page.locator("#map-figure .stage")
        page.locator("#map[data-drawn]").wait_for()
        shown = pixels(mapped)
        page.locator("#opacity").focus()
        page.keyboard.press("Home")
        hidden = pixels(mapped)
        assert (hidden == (0, 0, 255)).all(-1).mean() > 0.95, "the image after alone"
        assert np.abs(shown.astype(int) - hidden).max() > 40, "the map coloured it somewhere"
        assert seen.errors == []


def test_an_example_a_swap_and_a_paste(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    web = Path(__file__).parents[2] / "serve/web/examples"
    example = json.loads((web / "examples.json").read_text())[0]
    files = web / example["before"], web / example["after"]
    with visit() as seen:
        page = seen.open()
        page.locator("#examples button").nth(RENDERED).click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, files))
        expect(page.locator("#truth")).to_have_text(f"Truth: {example['truth']}")
        page.locator("#swap").click()
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, (files[1], files[0])))
        expect(page.locator("#truth")).to_be_hidden()
        page.locator("#before").focus()
        paste(page, pair[0])
        expect(page.locator("#before-name")).to_have_text("image.png, 32 × 32")
        page.locator("#after").focus()
        paste(page, pair[1])
        expect(page.locator("#after-name")).to_have_text("image.png, 32 × 32")
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        assert seen.errors == []


def test_a_model_without_a_calibration_shows_what_it_can(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        statuses: list[int] = []
        page.on("response", lambda response: statuses.append(response.status))
        page.locator("#model").select_option("plain")
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair, "plain"))
        expect(page.locator("#missing")).to_have_text("")
        expect(page.locator("#probability")).to_be_hidden()  # which is not calibrated
        expect(page.locator("#confidence-bar")).to_be_visible()
        page.locator("#model").select_option("calibrated")
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(page.locator("#probability")).to_be_visible()
        assert 422 not in statuses, "what a model cannot do is not asked for"


def test_copies_are_what_was_answered_and_the_command_works(
    backend: Backend, pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    awkward = tmp_path / 'it\'s 1, "before"; x.png', tmp_path / "2 $HOME.png"
    for source, target in zip(pair, awkward, strict=True):
        target.write_bytes(source.read_bytes())
    with visit() as seen:
        page = seen.open()

        def run() -> dict[str, Any]:
            page.locator("#copy-curl").click()
            expect(page.locator("#copied")).to_contain_text("Copied")
            command = page.evaluate("navigator.clipboard.readText()")
            done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer

        drop(page, page.locator("[data-side=before]"), awkward[0])
        drop(page, page.locator("[data-side=after]"), awkward[1])
        expect(page.locator("#ask")).to_be_enabled()
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        page.locator("#copy-json").click()
        expect(page.locator("#copied")).to_have_text("Copied, without the pictures.")
        copied = json.loads(page.evaluate("navigator.clipboard.readText()"))["results"][0]
        ran = run()["results"][0]
        assert copied["caption"] == ran["caption"] == caption_of(backend, pair)
        assert [one["caption"] for one in copied["candidates"]] == [one["caption"] for one in ran["candidates"]]
        page.locator("#examples button").nth(RENDERED + 1).click()
        expect(page.locator("#truth")).to_be_visible()
        assert run()["results"][0]["caption"] == page.locator("#caption").inner_text()


def test_a_format_that_the_server_reads_and_the_browser_does_not_show(
    backend: Backend, pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    files = tmp_path / "1.tif", tmp_path / "2.tif"
    for source, target in zip(pair, files, strict=True):
        Image.open(source).save(target)
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("main"), *files)
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(page.locator("#before-name")).to_have_text("1.tif, a format that this browser cannot show")
        expect(page.locator("#compare-figure")).to_be_hidden()
        expect(page.locator("#missing")).to_contain_text("This browser cannot show the format of the images")
        page.locator("#map[data-drawn]").wait_for()
        expect(page.locator("#past button")).to_contain_text(["no picture"])
        page.reload()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        assert too_wide(page) == []
        assert seen.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_it_fits_and_can_be_read(
    scheme: str, width: int, pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    (tmp_path / "words.png").write_text("no picture")
    with visit(color_scheme=scheme, viewport={"width": width, "height": 740}, reduced_motion="reduce") as seen:
        page = seen.open()
        assert too_wide(page) == []
        long = tmp_path / f"{'long' * 40}.png"
        long.write_bytes(pair[0].read_bytes())
        drop(page, page.locator("[data-side=before]"), long)
        page.locator("#after").set_input_files(pair[1])
        page.locator("#ask").click()
        expect(page.locator("#result")).to_be_visible()
        page.locator("#map[data-drawn]").wait_for()
        drop(page, page.locator("[data-side=before]"), tmp_path / "words.png")
        expect(page.locator("#before-fault")).to_be_visible()
        assert too_wide(page) == []
        for theme, dark in (("", scheme == "dark"), ("dark", True), ("light", False)):
            page.locator("#theme").select_option(theme)
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (int(paper.removeprefix("rgb(").split(",")[0]) < 60) == dark, f"{theme}: {paper}"
            contrasts = page.evaluate(CONTRASTS)
            assert len(contrasts) > 20
            assert [found for found in contrasts if found[0] < 4.5] == []
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "light", "the choice is kept"


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#result")).to_be_visible()
        page.locator("h1").click()  # where Tab starts from
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate(
                """() => {
                  const e = document.activeElement;
                  if (e === document.body) return null;
                  const shown = [e, e.closest(".slot"), e.closest("#compare")].filter(Boolean).map(getComputedStyle)
                  return [e.id || e.getAttribute("href") || e.closest("ul, ol, details").id,
                    shown.some((s) => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2)];
                }"""
            )
            if at is None:
                break
            assert at[1], f"{at[0]} has the focus and does not show it"
            reached.append(at[0])
        expected = ["model", "theme", *["examples"] * 17, "before", "after", "parts", "ask", "swap", "slider"]
        expected += ["flip", "blink", "smaller", "larger", "whole", "opacity", "find"]
        expected += ["details", "copy-json", "copy-curl"]
        expected += ["forget", "past", "docs", "v1/models"]
        assert reached == expected
