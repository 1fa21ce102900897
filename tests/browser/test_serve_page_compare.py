"""The two images of a result in one frame: one alone, blinking, zoom, boxes of the regions that differ.

Where pixels and positions are compared, motion is reduced: the page would still be scrolling to its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from idc.captioning.contract import Assessment
from idc.captioning.loading import artifact_folder
from idc.systems import untrained_captioner
from serve.api import create_api
from tests.browser.driving import CONTRASTS, drop, pixels, too_wide, unnamed
from tests.browser.served import SURE, Backend, Visit
from tests.serve.local import LocalBackend, local_config, serving
from tests.systems.objects.test_regions import RED, ground, with_disk

pytestmark = pytest.mark.slow

UNFAMILIAR = Assessment(0.9, 0.002, False, "unsure", "unlike others", "This model has not seen such images.")


@pytest.fixture(autouse=True)
def own_assessments(backend: Backend) -> Iterator[None]:
    """Restore the captioners' own assessments after each test."""
    yield
    backend.assessment = None


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    """A pair of a textured ground without and with a red disk."""
    files = tmp_path / "before.png", tmp_path / "after.png"
    for file, image in zip(files, (ground(), with_disk(ground(), 60, 40, RED)), strict=True):
        Image.fromarray(image).save(file)
    return files


@pytest.fixture
def flats(tmp_path: Path) -> tuple[Path, Path]:
    """A red image before, and a blue one after whose upper left quarter is green."""
    after = Image.new("RGB", (40, 30), (0, 0, 255))
    after.paste((0, 255, 0), (0, 0, 20, 15))
    files = tmp_path / "before.png", tmp_path / "after.png"
    Image.new("RGB", (40, 30), (255, 0, 0)).save(files[0])
    after.save(files[1])
    return files


def shares(stage: Locator) -> dict[str, float]:
    """Share of the rendered pixels of each colour."""
    shown = pixels(stage).astype(int)
    strong = (shown.max(-1) > 200) & (shown.min(-1) < 60)
    return {name: float((strong & (shown.argmax(-1) == i)).mean()) for i, name in enumerate(("red", "green", "blue"))}


def asked(page: Page, files: tuple[Path, Path]) -> Locator:
    """The frame with both images of an answer."""
    drop(page, page.locator("main"), *files)
    expect(page.locator("#result")).to_be_visible()
    return page.locator("#compare")


def drag(page: Page, stage: Locator, share: float) -> None:
    """Drag from the middle of a picture by a share of its size."""
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + share * box["width"], y + share * box["height"], steps=4)
    page.mouse.up()


def test_one_image_alone_by_button_and_by_key(flats: tuple[Path, Path], visit: Visit) -> None:
    with visit(reduced_motion="reduce") as seen:
        page = seen.open()
        stage = asked(page, flats)
        page.locator("#flip").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#shown")).to_have_text("the image before")
        assert shares(stage)["red"] > 0.95
        page.keyboard.press("b")
        expect(page.locator("#shown")).to_have_text("the image after")
        assert shares(stage)["red"] == 0
        page.locator("#slider").press("ArrowLeft")
        expect(page.locator("#shown")).to_have_text("")
        assert 0.4 < shares(stage)["red"] < 0.55
        page.locator("#copy-json").focus()
        page.keyboard.press("b")
        expect(page.locator("#shown")).to_have_text("")
        assert seen.errors == []


def test_blinking_alternates_until_it_is_stopped(flats: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        asked(page, flats)
        blink, shown = page.locator("#blink"), page.locator("#shown")
        blink.press("Space")
        expect(blink).to_have_attribute("aria-pressed", "true")
        for side in ("before", "after", "before"):
            expect(shown).to_have_text(f"the image {side}")
        blink.press("Space")
        expect(blink).to_have_attribute("aria-pressed", "false")
        stopped = shown.inner_text()
        page.wait_for_timeout(1500)
        assert shown.inner_text() == stopped
        blink.click()
        drop(page, page.locator("[data-side=before]"), flats[1])
        expect(page.locator("#result")).to_be_hidden()
        expect(blink).to_have_attribute("aria-pressed", "false")


def test_nothing_blinks_for_readers_who_ask_for_reduced_motion(flats: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        asked(page, flats)
        page.locator("#blink").click()
        page.emulate_media(reduced_motion="reduce")
        expect(page.locator("#blink")).to_be_hidden()
        expect(page.locator("#blink")).to_have_attribute("aria-pressed", "false")
    with visit(reduced_motion="reduce") as seen:
        page = seen.open()
        stage = asked(page, flats)
        expect(page.locator("#blink")).to_be_hidden()
        page.locator("#flip").click()
        page.wait_for_timeout(1500)
        expect(page.locator("#shown")).to_have_text("the image before")
        assert shares(stage)["red"] > 0.95


def test_zoom_by_buttons_keys_and_dragging(flats: tuple[Path, Path], visit: Visit) -> None:
    with visit(reduced_motion="reduce") as seen:
        page = seen.open()
        stage, mapped = asked(page, flats), page.locator("#map-figure .stage")
        page.locator("#opacity").fill("0")
        flip, zoom = page.locator("#flip"), page.locator("#zoom")
        flip.click()
        flip.click()
        assert shares(stage)["green"] == pytest.approx(0.25, abs=0.03)
        page.locator("#larger").click()
        page.keyboard.press("+")
        expect(zoom).to_have_text("225 %")
        for _ in range(10):
            page.keyboard.press("ArrowLeft")
            page.keyboard.press("ArrowUp")
        assert shares(stage)["green"] > 0.95, "the corner fills the frame"
        assert shares(mapped)["green"] > 0.95, "the map follows"
        drag(page, mapped, -1)
        assert shares(stage)["green"] == pytest.approx(0.06, abs=0.06), "dragged to the other corner"
        drag(page, stage, 1)
        assert shares(stage)["green"] > 0.95, "and back, in the other picture"
        page.locator("#slider").press("ArrowRight")
        assert shares(stage)["red"] == pytest.approx(0.5, abs=0.06), "the slider divides the frame, not the image"
        page.locator("#whole").focus()
        page.keyboard.press("0")
        expect(zoom).to_have_text("100 %")
        expect(page.locator("#zoom-hint")).to_be_hidden()
        assert seen.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_an_unfamiliar_pair_shows_the_regions_that_differ(
    width: int, scheme: str, backend: Backend, disks: tuple[Path, Path], visit: Visit
) -> None:
    [expected] = untrained_captioner().describe(*([np.asarray(Image.open(file))] for file in disks))
    assert expected.regions is not None
    with visit(color_scheme=scheme, viewport={"width": width, "height": 740}, reduced_motion="reduce") as seen:
        page = seen.open()
        backend.assessment = UNFAMILIAR
        stage = asked(page, disks)
        sentence = f"Without a trained model: {expected.objects_text}"
        expect(page.locator("#regions-first")).to_have_text(sentence)
        expect(page.locator("#said")).to_contain_text(sentence)
        expect(page.locator("#find")).to_be_hidden()
        frame, box = stage.bounding_box(), page.locator("#compare .line").first.bounding_box()
        assert frame is not None
        assert box is not None
        scale = Image.open(disks[1]).width / frame["width"]
        edges = [(box["x"] - frame["x"]) * scale, (box["y"] - frame["y"]) * scale]
        assert edges == pytest.approx(expected.regions[0].box[:2], abs=3)
        page.locator("#region-list button").first.click()
        magnified = page.locator("#compare .line").first.bounding_box()
        assert magnified is not None
        assert magnified["width"] > 1.3 * box["width"]
        page.locator("#boxes").uncheck()
        expect(page.locator("#compare .boxes")).to_be_hidden()
        assert (unnamed(page), too_wide(page)) == ([], [])
        assert [found for found in page.evaluate(CONTRASTS) if found[0] < 4.5] == []
        page.reload()
        expect(page.locator("#regions-first")).to_have_text(sentence)
        assert seen.errors == []


def test_a_sentence_that_no_model_has_written_has_neither_confidence_nor_probability(
    disks: tuple[Path, Path], visit: Visit
) -> None:
    source = artifact_folder("regions")
    with serving(create_api(local_config(source), LocalBackend(source))) as address, visit(url=address) as seen:
        page = seen.open()
        asked(page, disks)
        expect(page.locator("#caption")).to_contain_text("One region changed")
        expect(page.locator("#regions-first")).to_be_hidden()
        for hidden in ("#confidence-bar", "#probability"):
            expect(page.locator(hidden)).to_be_hidden()
        assert seen.errors == []


def test_regions_of_a_familiar_pair_on_request(disks: tuple[Path, Path], backend: Backend, visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        backend.assessment = SURE
        asked(page, disks)
        expect(page.locator("#regions")).to_be_hidden()
        page.locator("#find").click()
        expect(page.locator("#regions-text")).to_contain_text("Without a trained model: ")
        expect(page.locator("#compare .line")).to_have_count(1)
        expect(page.locator("#past button")).to_have_count(1)
