"""The images of a result: one alone, blinking, zoom, claims as boxes and in words, parts that do not count.

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
from idc.captioning.loading import AUTO, artifact_folder
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image
from idc.systems import REGIONS, untrained_captioner
from serve.api import WEB, create_api
from tests.browser.driving import CONTRASTS, drop, pixels, too_wide, unnamed
from tests.browser.served import Backend, Visit
from tests.serve.local import LocalBackend, local_config, serving
from tests.systems.objects.test_regions import BLUE, RED, ground, with_disk

pytestmark = pytest.mark.slow

PHOTOGRAPHS = WEB / "examples" / "photographs"
UNFAMILIAR = Assessment(0.9, 0.002, False, "unsure", "unlike others", "This model has not seen such images.")


@pytest.fixture(autouse=True)
def own_assessments(backend: Backend) -> Iterator[None]:
    """Restore the captioners' own assessments after each test."""
    yield
    backend.assessment = None


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
def test_an_unfamiliar_pair_has_the_claims_of_objects_in_words_and_as_boxes_with_names_on_both_images(
    width: int, scheme: str, backend: Backend, visit: Visit
) -> None:
    files = PHOTOGRAPHS / "bottle_00100.jpg", PHOTOGRAPHS / "bottle_00260.jpg"
    [expected] = untrained_captioner().describe(*([decode_image(file.read_bytes())] for file in files))
    assert expected.claims
    with visit(color_scheme=scheme, viewport={"width": width, "height": 740}, reduced_motion="reduce") as seen:
        page = seen.open()
        backend.assessment = UNFAMILIAR
        asked(page, files)
        expect(page.locator("#objects-text")).to_have_text(expected.objects_text or "")
        expect(page.locator("#said")).to_contain_text(expected.objects_text or "")
        expect(page.locator("#speaker")).to_have_text("Captioner: calibrated")
        expect(page.locator("#find")).to_be_hidden()
        lines = page.locator("#claims li").all_inner_texts()
        assert len(lines) == len(expected.claims)
        for number, claim in enumerate(expected.claims, start=1):
            assert lines[number - 1].startswith(f"{claim.kind}: ")
            assert claim.where in lines[number - 1]
            for side, box in (("before", claim.box_before), ("after", claim.box_after)):
                frame = framed(page, side, number)
                expect(frame).to_have_count(0 if box is None else 1)
                if box is not None:
                    assert placed(page, side, frame, files[0]) == pytest.approx(box, abs=4)
                    expect(frame).to_have_attribute("data-kind", claim.kind)
        side = "before" if expected.claims[0].box_after is None else "after"
        frame = framed(page, side, 1)
        small = frame.bounding_box()
        page.locator("#claims button").first.click()
        large = frame.bounding_box()
        assert small is not None
        assert large is not None
        assert large["width"] > 1.2 * small["width"]
        assert (unnamed(page), too_wide(page)) == ([], [])
        assert [contrast for contrast in page.evaluate(CONTRASTS) if contrast[0] < 4.5] == []
        page.reload()
        expect(page.locator("#objects-text")).to_have_text(expected.objects_text or "")
        assert seen.errors == []


def framed(page: Page, side: str, number: int) -> Locator:
    """The frame of a claim on an image of the result."""
    return page.locator(f".stage[data-image={side}] .boxes > div").filter(has_text=f"{number} ")


def placed(page: Page, side: str, frame: Locator, image: Path) -> list[float]:
    """Where a frame is, in pixels of the image."""
    stage, box = page.locator(f".stage[data-image={side}]").bounding_box(), frame.bounding_box()
    assert stage is not None
    assert box is not None
    scale = Image.open(image).width / stage["width"]
    left, top = (box["x"] - stage["x"]) * scale, (box["y"] - stage["y"]) * scale
    return [left, top, left + scale * box["width"], top + scale * box["height"]]


def test_auto_says_who_spoke_and_shows_no_field_that_this_one_has_not(visit: Visit) -> None:
    with serving(create_api(local_config(AUTO), LocalBackend(AUTO))) as address, visit(url=address) as seen:
        page = seen.open()
        expect(page.locator("#trained")).to_be_hidden()
        page.locator("#examples button").first.click()
        expect(page.locator("#speaker")).to_have_text("Captioner: objects")
        expect(page.locator("#truth")).to_contain_text("bottle")
        expect(page.locator("#caption")).to_contain_text("bottle")
        expect(page.locator("#verdict-name")).to_have_text("Changed")
        for field in ("#confidence-bar", "#probability", "#warning", "#objects", "#find"):
            expect(page.locator(field)).to_be_hidden()
        expect(page.locator("#missing")).to_have_text("")
        page.locator("#examples button").nth(12).click()
        expect(page.locator("#speaker")).to_have_text("Captioner: shipped")
        for field in ("#confidence-bar", "#probability", "#find"):
            expect(page.locator(field)).to_be_visible()
        for field in ("#claims", "#objects", ".named >> nth=0"):
            expect(page.locator(field)).to_be_hidden()
        page.locator("#find").click()
        expect(page.locator("#objects")).to_be_visible()
        expect(page.locator("#past button")).to_have_count(2)
        expect(page.locator("#past button").last).to_contain_text("objects")
        assert seen.errors == []


def test_a_box_that_is_drawn_or_written_is_left_out(tmp_path: Path, visit: Visit) -> None:
    """Of two disks that are new, the one on the right, by the mouse; then the other one, by the keyboard."""
    images = ground(), with_disk(with_disk(ground(), 60, 60, RED), 260, 60, BLUE)
    files = tmp_path / "before.png", tmp_path / "after.png"
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    left = np.zeros(images[1].shape[:2], bool)
    left[:, :160] = True
    expected = untrained_captioner(ObjectsConfig(detector="none")).describe(
        [images[0]] * 3, [images[1]] * 3, counted=[None, left, ~left]
    )
    both, of_left, of_right = (description.best.caption for description in expected)
    assert len({both, of_left, of_right}) == 3
    source = artifact_folder(REGIONS)
    with (
        serving(create_api(local_config(source), LocalBackend(source))) as address,
        visit(url=address, reduced_motion="reduce") as seen,
    ):
        page = seen.open()
        expect(page.locator("#parts")).to_be_hidden()
        asked(page, files)
        caption = page.locator("#caption")
        expect(caption).to_have_text(both)
        page.locator("#parts summary").click()
        stage = page.locator("#drawing")
        stage.scroll_into_view_if_needed()
        box = stage.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"])
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"], box["y"] + box["height"], steps=3)
        page.mouse.up()
        expect(page.locator("#part-boxes")).to_have_value("160, 0, 320, 240")
        expect(page.locator("#drawn > div")).to_have_count(1)
        assert (unnamed(page), too_wide(page)) == ([], [])
        page.locator("#ask").click()
        expect(caption).to_have_text(of_left)
        page.reload()
        expect(caption).to_have_text(of_left)
        expect(page.locator("#part-boxes")).to_have_value("160, 0, 320, 240")
        page.locator("#parts summary").press("Enter")
        page.locator("#use").select_option("only")
        page.locator("#ask").press("Enter")
        expect(caption).to_have_text(of_right)
        page.locator("#part-boxes").fill("0.5, 0, 1")
        page.keyboard.press("Enter")
        expect(page.locator("#fault")).to_contain_text("A box has four numbers")
        page.locator("#no-boxes").press("Enter")
        expect(page.locator("#part-boxes")).to_have_value("")
        page.locator("#ask").press("Enter")
        expect(caption).to_have_text(both)
        assert seen.errors == []
