"""How the served page presents a result: warning, verdict, both readings, scrolling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from idc.captioning.contract import Assessment
from tests.browser.driving import CONTRASTS, drop, too_wide, unnamed
from tests.browser.served import SURE, Backend, Visit, caption_of

pytestmark = pytest.mark.slow

SEEN = "small rendered scenes"
REASON = "the caption names a change, but the calibrated probability that anything changed is 12 %"
UNSURE = Assessment(0.12, 0.4, True, "unsure", REASON, None)
UNLIKE = "the images are unlike those that the model was trained on"
UNFAMILIAR = Assessment(0.98, 0.002, False, "unsure", UNLIKE, f"This model has only seen {SEEN}. Do not trust it here.")


@pytest.fixture(autouse=True)
def own_assessments(backend: Backend) -> Iterator[None]:
    """Restore the captioners' own assessments after each test."""
    yield
    backend.assessment = backend.abilities = None


def test_a_pair_unlike_the_training_images_gets_the_warning_before_the_caption(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        warning = page.locator("#warning")
        backend.assessment = UNFAMILIAR
        drop(page, page.locator("main"), *pair)
        expect(warning).to_be_visible()
        expect(warning).to_contain_text(f"This model has only seen {SEEN}. Do not trust it here.")
        sentence = page.locator("#objects-text")
        expect(sentence).to_be_visible()
        expect(page.locator("#said")).to_contain_text(f"{sentence.inner_text()} Caption: {caption_of(backend, pair)}")
        expect(page.locator("#verdict")).to_contain_text("Unsure whether anything changed")
        ends = "document.querySelector('#objects-text').getBoundingClientRect().bottom"
        begins = "document.querySelector('#caption').getBoundingClientRect().top"
        assert page.evaluate(f"{ends} <= {begins}")  # in one layout: the pictures above may still be loading
        sizes = "(ids) => ids.map((id) => parseFloat(getComputedStyle(document.getElementById(id)).fontSize))"
        *told_sizes, caption_size = page.evaluate(sizes, ["warning-text", "objects-text", "caption"])
        assert min(told_sizes) >= caption_size
        expect(page.locator("#past")).to_contain_text("unfamiliar images")
        colours = "(ids) => ids.map((id) => getComputedStyle(document.querySelector(id)).backgroundColor)"
        bars = ["#confidence-track i", "#changed-track i"]
        doubtful = page.evaluate(colours, bars)
        backend.assessment = SURE
        page.locator("#ask").click()
        expect(warning).to_be_hidden()
        expect(sentence).to_be_hidden()
        expect(page.locator("#verdict-name")).to_have_text("Changed")
        assert not set(doubtful) & set(page.evaluate(colours, bars)), "grey where it is not to be trusted"
        backend.assessment = Assessment(0.02, 0.4, True, "unchanged", None, None)
        page.locator("#ask").click()
        expect(page.locator("#verdict-name")).to_have_text("Unchanged")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_where_caption_and_probability_disagree_there_is_one_verdict_and_both_readings(
    width: int, scheme: str, backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    backend.assessment = UNSURE
    with visit(color_scheme=scheme, viewport={"width": width, "height": 740}) as seen:
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#verdict-name")).to_have_text("Unsure whether anything changed")
        expect(page.locator("#verdict-text")).to_have_text(f"The{REASON[3:]}.")
        expect(page.locator(".reading:visible h3")).to_have_text(
            ["Reading 1: the caption", "Reading 2: the calibrated probability"]
        )
        expect(page.locator(".reading").nth(0)).to_contain_text(caption_of(backend, pair))
        expect(page.locator(".reading").nth(1)).to_contain_text("probably not, 12 %")
        expect(page.locator("#past")).to_contain_text("unsure")
        expect(page.locator("#said")).to_contain_text(REASON)
        assert too_wide(page) == []
        assert [found for found in page.evaluate(CONTRASTS) if found[0] < 4.5] == []
        assert unnamed(page) == []
        backend.assessment = SURE
        page.locator("#ask").click()
        expect(page.locator("#verdict-name")).to_have_text("Changed")
        expect(page.locator(".apart:visible")).to_have_count(0)
        assert seen.errors == []


@pytest.mark.parametrize(("width", "motion"), [(360, "reduce"), (1280, "no-preference")])
def test_the_answer_is_scrolled_to(width: int, motion: str, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit(viewport={"width": width, "height": 640}, reduced_motion=motion) as seen:
        page = seen.open()
        drop(page, page.locator("[data-side=before]"), pair[0])
        page.locator("#after").set_input_files(pair[1])
        expect(page.locator("#ask")).to_be_enabled()
        assert page.evaluate("scrollY") < 200
        page.locator("#ask").click()
        page.wait_for_function(
            """() => {
              const top = document.getElementById("result").getBoundingClientRect().top;
              return scrollY > 0 && top >= 0 && top < 40;
            }"""
        )
        expect(page.locator("#caption")).to_be_in_viewport()
