"""The served page in Chromium: upload, examples, result with boxes and slider, keyboard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from idc.data.images import decode_image
from idc.systems import untrained_captioner
from tests.browser.conftest import BOTTLES, RENDERED, Visit, describe
from tests.browser.driving import assert_readable, bounds, drag, drop, pixels

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def test_dropped_and_chosen_images_are_captioned_as_by_the_captioner_itself(visit: Visit) -> None:
    page, expected = visit(), describe(RENDERED)
    drop(page, "main", *RENDERED[::-1])  # two at once: their names say which was before
    expect(page.locator("#caption")).to_have_text(expected.best.caption)
    expect(page.locator("#caption")).to_be_in_viewport()
    assert expected.changed is not None
    listed = [f"{each.caption} ({percent(each.confidence)})" for each in expected.candidates]
    page.locator("summary").click()
    assert page.locator("#candidates li").all_inner_texts() == listed
    assert page.locator("#changed").evaluate("(meter) => meter.value") == pytest.approx(expected.changed, abs=1e-3)
    for line, text in (
        ("before-name", "color-before.png, 64 × 64"),
        ("verdict", "Changed"),
        ("changed-text", percent(expected.changed)),
        ("confidence-text", percent(expected.best.confidence)),
        ("announcement", f"Changed. {expected.best.caption}."),
    ):
        expect(page.locator(f"#{line}")).to_have_text(text)
    page.locator("#swap").click()
    expect(page.locator("#result")).to_be_hidden()
    page.locator("#ask").click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED[::-1]).best.caption)
    page.locator("#after").set_input_files(RENDERED[1])
    drop(page, "[data-side=before]", RENDERED[1])
    page.locator("#ask").click()
    expect(page.locator("#verdict")).to_have_text("Unchanged")


def test_examples_are_captioned_and_say_the_truth(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#credit")).to_contain_text("CC BY 4.0")
    page.locator("#examples button").first.click()
    expect(page.locator("#caption")).to_have_text(describe(BOTTLES).best.caption)
    expect(page.locator("#truth")).to_have_text("Truth: the left bottle of three is gone")
    page.locator("summary").click()
    expect(page.locator("#about")).to_contain_text("Captioner: objects, version sha256:")
    for line in ("confidence-line", "changed-line", "warning", "objects", "candidates-part", "dialogue"):
        expect(page.locator(f"#{line}")).to_be_hidden()
    page.locator("#examples button").nth(12).click()
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator("#about")).to_contain_text("Captioner: shipped,")
    expect(page.locator(".boxes > div")).to_have_count(0)
    expect(page.locator("#claims")).to_be_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_an_unfamiliar_pair_has_a_warning_and_the_claims_of_objects_as_boxes_with_names(
    width: int, scheme: str, visit: Visit, tmp_path: Path
) -> None:
    [expected] = untrained_captioner().describe(*([decode_image(file.read_bytes())] for file in BOTTLES))
    assert expected.claims
    page = visit("shipped", color_scheme=scheme, viewport={"width": width, "height": 740})
    long = tmp_path / f"{'long' * 40}.jpg"
    long.write_bytes(BOTTLES[0].read_bytes())
    page.locator("#before").set_input_files(long)
    page.locator("#after").set_input_files(BOTTLES[1])
    page.locator("#ask").click()
    expect(page.locator("#warning")).to_contain_text("This model has only seen rendered scenes")
    expect(page.locator("#verdict")).to_have_text("Unsure whether anything changed")
    expect(page.locator("#verdict-reason")).to_contain_text("unlike those that the model was trained on")
    expect(page.locator("#objects")).to_have_text(expected.best.caption)
    tops = [bounds(page.locator(line))[1] for line in ("#warning", "#objects", "#caption")]
    assert tops == sorted(tops), "what can be trusted comes first"
    page.locator("summary").click()
    cells = [row.locator("td").all_inner_texts() for row in page.locator("#claims tbody tr").all()]
    assert [row[1:4] for row in cells] == [[claim.object, claim.kind, claim.where] for claim in expected.claims]
    for number, claim in enumerate(expected.claims, start=1):
        for side, box in (("before", claim.box_before), ("after", claim.box_after)):
            stage = page.locator(f"[data-image={side}]")
            frame = stage.locator(f".boxes .{claim.kind}").filter(has_text=f"{number} {claim.object}")
            expect(frame).to_have_count(0 if box is None else 1)
            if box is not None:
                left, top, right, _ = bounds(stage)
                scale = Image.open(BOTTLES[0]).width / (right - left)
                assert (bounds(frame) - (left, top, left, top)) * scale == pytest.approx(box, abs=4)
    assert_readable(page, scheme)
    page.get_by_label("Boxes").uncheck()
    expect(page.locator(".boxes > div >> nth=0")).to_be_hidden()


@pytest.mark.parametrize("window", [(1280, 900), (390, 844)])
def test_images_and_answer_are_in_one_view_and_the_form_begins_at_the_top(
    window: tuple[int, int], visit: Visit
) -> None:
    width, height = window
    page = visit(viewport={"width": width, "height": height})
    assert bounds(page.locator("#before"))[1] < 200
    examples = page.locator("#examples button")
    rights = [bounds(example)[2] for example in examples.all()]
    assert max(rights) <= width, "no example is cut"
    examples.last.scroll_into_view_if_needed()
    examples.first.click()
    expect(page.locator("#caption")).to_be_in_viewport(ratio=1)
    for side in ("before", "after"):
        expect(page.locator(f"[data-image={side}]")).to_be_in_viewport(ratio=1)
        shown = page.locator("img").evaluate_all("(all) => all.filter((e) => e.checkVisibility()).map((e) => e.alt)")
        assert shown.count(f"The image {side}") == 1
    assert bounds(page.locator("#caption"))[3] < bounds(page.locator("[data-image=before]"))[1] < 500


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_boxes_cover_no_box_and_no_other_name(width: int, visit: Visit, tmp_path: Path) -> None:
    boxes = [[0, 0, 90, 20], [5, 24, 95, 40], [60, 44, 99, 60], [2, 64, 40, 80], [45, 66, 98, 99]]
    common = {"count": 1, "where": "here", "confidence": 1, "before": None, "after": None, "box_after": None}
    claims = [{"kind": "gone", "object": "cup", "box_before": box, **common} for box in boxes]
    claims.append(claims[0] | {"object": "words", "box_before": [0, 84, 30, 99], "before": "a long sentence"})

    files = tmp_path / "1.png", tmp_path / "2.png"
    for file in files:
        Image.new("RGB", (100, 100), "white").save(file)
    result = describe(files).to_dict() | {"claims": claims, "chosen": "no captioner is familiar with them"}
    answer = {"results": [result], "model": "auto", "version": "1", "timing": {"total_ms": 1}, "request_id": "1"}
    page = visit(viewport={"width": width, "height": 900})
    page.route("**/v1/captions", lambda route: route.fulfill(json=answer))
    drop(page, "main", *files)
    expect(page.locator("#about")).to_contain_text("chosen: no captioner is familiar with them", use_inner_text=False)
    for over in (False, True):
        page.get_by_label("Slider").set_checked(over)
        page.locator("#slider").evaluate("(slider) => slider.dispatchEvent(new Event('input'))")
        names = page.locator("[data-image=before] .boxes span")
        expect(names).to_have_text([*(f"{number} cup" for number in range(1, 6)), "6"])
        areas = [bounds(shown) for shown in (*page.locator("[data-image=before] .boxes > div").all(), *names.all())]
        for number, name in enumerate(areas[6:], start=6):
            others = [area for other, area in enumerate(areas) if other != number]
            overlaps = [np.minimum(name[2:], other[2:]) - np.maximum(name[:2], other[:2]) for other in others]
            assert not any((overlap > 0.5).all() for overlap in overlaps), (over, number - 5)


def test_the_slider_divides_the_images_and_the_map_is_drawn_over_the_image_after(visit: Visit, tmp_path: Path) -> None:
    for name, colour in (("1", (255, 0, 0)), ("2", (0, 0, 255))):
        Image.new("RGB", (40, 30), colour).save(tmp_path / f"{name}.png")
    page = visit("shipped")
    page.locator("#before").set_input_files([tmp_path / "2.png", tmp_path / "1.png"])  # in order of their names
    expect(page.locator("#result")).to_be_visible()

    page.get_by_label("Change map", exact=True).uncheck()
    page.get_by_label("Boxes").uncheck()
    page.get_by_label("Slider").check()

    def share_before() -> float:
        shown = pixels(page.locator("[data-image=after]"))
        red, blue = ((shown[..., one] > 200) & (shown[..., other] < 50) for one, other in ((0, 2), (2, 0)))
        return float(red.mean() / (red.mean() + blue.mean()))

    assert share_before() == pytest.approx(0.5, abs=0.03)
    for _ in range(30):
        page.locator("#slider").press("ArrowRight")
    assert share_before() == pytest.approx(0.8, abs=0.03)
    drag(page, "[data-image=after]", (0.8, 0.2), (0.25, 0.3))
    assert share_before() == pytest.approx(0.25, abs=0.03)
    page.get_by_label("Slider").uncheck()
    plain = pixels(page.locator("[data-image=after]"))[2:-2, 2:-2].astype(int)
    assert np.abs(plain - (0, 0, 255)).max() < 40
    page.get_by_label("Change map", exact=True).check()
    coloured = pixels(page.locator("[data-image=after]"))[2:-2, 2:-2].astype(int)
    assert np.abs(coloured - (0, 0, 255)).max() > 40


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(visit: Visit) -> None:
    page = visit()
    drop(page, "main", *RENDERED)
    expect(page.locator("#result")).to_be_visible()
    page.get_by_label("Slider").check()
    page.locator("h1").click()  # where Tab starts from
    pair = ["before", "after", "slider", "ask", "swap", "counts", "show-map", "show-slider"]
    expected = ["model", *pair, "details", *["examples"] * 17, "docs"]
    for name in expected:
        page.keyboard.press("Tab")
        reached, outlined = page.evaluate(
            """() => {
              const e = document.activeElement;
              const styles = [e, e.closest(".caption")].filter(Boolean).map(getComputedStyle);
              return [e.id || e.getAttribute("href") || e.closest("ul, details")?.id,
                styles.some((s) => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2)];
            }"""
        )
        assert (reached, outlined) == (name, True)
