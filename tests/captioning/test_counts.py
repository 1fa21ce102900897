"""What counts as a change: its names, the kinds of claims, what is said of the rest, and what models are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idc
import serve
from idc.captioning.contract import Claim, SearchOptions
from idc.captioning.counts import Counts, counted, counts_of, kind_of, left_out_sentence, presets
from idc.metrics.change_types import says_no_change
from tests.captioning.toy import ToyCaptioner
from tests.systems.objects.test_exact import BLUE, changed, screen

EXAMPLES = Path(serve.__file__).parent / "web" / "examples" / "photographs"


def claim(name: str, kind: Any = "changed", box: Any = (0, 0, 40, 30), **texts: str) -> Claim:
    return Claim(kind, name, 1, "on the left", box, box, 0.9, **texts)


def test_every_preset_says_what_it_is_for_and_the_page_offers_each() -> None:
    assert set(presets()) == {"everything", "scene", "traffic", "content", "layout", "design", "document"}
    assert counts_of(["everything"]) is None
    page = (Path(serve.__file__).parent / "web" / "index.html").read_text(encoding="utf-8")
    options = re.findall(r'<option value="(\w+)" title="[^"]+">', page)
    assert set(options) == set(presets()) - {"everything"}
    assert all(preset.purpose.endswith(".") and preset.kinds for preset in presets().values())
    for name in options:
        counts = counts_of([name])
        assert counts is not None
        assert counts.kinds == set(presets()[name].kinds), name


def test_names_add_up_and_the_largest_of_the_sizes_decides(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("purpose: Mine.\nkinds: [numbers]\nclasses: [dog]\nsmallest: 3%\n")
    expected = Counts(frozenset({"people", "vehicles", "numbers"}), frozenset({"dog", "crane"}), 0.03, 20)
    assert counts_of(["traffic", str(mine), "crane", "0.5%", "20px"], names=["crane"]) == expected
    assert counts_of(["12px"]) == Counts(frozenset(presets()["everything"].kinds), side=12)


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("scen", r"'scen' is neither a preset .* did you mean 'scene'\?"),
        ("persons", r"'persons' is neither .* did you mean 'person'\?"),
        ("5", "'5' is neither a preset .* a size such as 0.5% or 20px"),
        ("mine.yaml", r"mine\.yaml"),
    ],
)
def test_other_names_are_refused(word: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        counts_of([word])
    with pytest.raises(ValueError, match="is neither"):
        counts_of([word], files=False)


@pytest.mark.parametrize(
    ("stated", "kind"),
    [
        (claim("person"), "people"),
        (claim("truck"), "vehicles"),
        (claim("vehicle"), "vehicles"),
        (claim("cat or dog"), "objects"),
        (claim("words", before="Total 12", after="Total 13"), "numbers"),
        (claim("words", "gone", before="-4.5%"), "numbers"),
        (claim("words", before="1204.50", after="1399.00"), "numbers"),
        (claim("words", before="12-13", after="v 1.2.3"), "words"),
        (claim("words", before="at 10:32:01", after="at 10:32:07"), "timestamps"),
        (claim("words", before="29.11.2026, 9:05pm", after="30.11.2026, 10:05pm"), "timestamps"),
        (claim("words", before="2026-11-2910:32:07Z", after="2026-11-29T10:34:55Z"), "timestamps"),
        (claim("words", before="14 at 10:32", after="15 at 10:34"), "numbers"),
        (claim("words", "appeared", after="2026-11-29 10:32"), "timestamps"),
        (claim("words", before="10:32 ON", after="10:33 OFF"), "words"),
        (claim("words", before="v2", after="v3"), "words"),
        (claim("words"), "words"),
        (claim("region", before="red", after="blue"), "objects"),
    ],
)
def test_kinds_of_claims(stated: Claim, kind: str) -> None:
    assert kind_of(stated) == kind


@pytest.mark.parametrize(
    ("counts", "caption"),
    [
        ("content", "A blue area of 200 x 40 px appeared at the bottom left."),
        ("traffic", "Nothing that counts changed. 1 difference of objects does not count."),
        ("9%", "Nothing that counts changed. 1 difference of objects does not count."),
    ],
)
def test_elements_of_drawn_images_count_by_their_kind(counts: str, caption: str) -> None:
    before, after = np.array(screen()), changed("rectangle", (40, 400, 239, 439), fill=BLUE)
    described = idc.load("objects")(before, after, counts=counts)
    assert (described.caption, described.verdict) == (caption, "unchanged" if caption.startswith("Noth") else "changed")


@pytest.mark.parametrize(
    ("stated", "kind"),
    [
        (claim("region", "moved"), "layout"),
        (claim("words", "moved", before="Save"), "layout"),
        (claim("region", before="red", after="blue"), "colour"),
        (claim("words", before="black", after="red"), "colour"),
        (claim("words"), "style"),
        (claim("region"), "style"),
        (claim("region", aspect="spacing"), "layout"),
        (claim("border", "appeared", aspect="border"), "style"),
        (claim("line", "appeared", aspect="border"), "objects"),
        (claim("line", aspect="border"), "style"),
        (claim("words", aspect="background"), "colour"),
        (claim("region", aspect="picture", before="grey", after="red"), "images"),
        (claim("region", "appeared"), "objects"),
        (claim("words", "replaced", before="12", after="13"), "numbers"),
    ],
)
def test_kinds_of_claims_about_drawn_images(stated: Claim, kind: str) -> None:
    assert kind_of(stated, drawn=True) == kind


def test_a_claim_counts_by_its_kind_its_class_and_its_larger_box() -> None:
    size = (100, 200)
    for counts, expected in (
        (Counts(frozenset({"objects"})), True),
        (Counts(frozenset({"people"})), False),
        (Counts(frozenset(), frozenset({"cup"})), True),
        (Counts(frozenset({"objects"}), share=0.06), True),
        (Counts(frozenset({"objects"}), share=0.061), False),
        (Counts(frozenset({"objects"}), side=40), True),
        (Counts(frozenset({"objects"}), side=41), False),
    ):
        assert counts.has(claim("cup"), size) == expected, counts
        kept, others = counted([claim("cup")], counts, size)
        assert (len(kept), len(others)) == (expected, not expected)


@pytest.mark.parametrize(
    ("counts", "name", "may"),
    [("traffic", "object", True), ("traffic", "region", True), ("person", "object", True), ("traffic", "bottle", False),
     ("words", "object", False), ("scene", "words", False)],
)  # fmt: skip
def test_a_thing_without_a_sure_name_may_be_one_that_counts(counts: str, name: str, may: bool) -> None:
    preset = counts_of([counts])
    assert preset is not None
    assert preset.may_have(claim(name)) == may


def test_what_is_left_out_is_counted_and_reads_as_no_change() -> None:
    nothing = Counts(frozenset())
    single = left_out_sentence([claim("cup")], [], nothing)
    several = left_out_sentence([claim("cup"), claim("words", before="a"), claim("vase")], ["light"], nothing)
    assert single == "1 difference of objects does not count."
    assert several == "2 differences of objects, 1 of words and 1 of light do not count."
    assert left_out_sentence([], ["light"], Counts(frozenset({"light"}))) == left_out_sentence([], [], nothing) == ""
    assert says_no_change(f"Nothing that counts changed. {several}")
    assert not says_no_change(f"A cup is gone. {single}")


def test_captioners_that_cannot_tell_refuse_it() -> None:
    captioner = ToyCaptioner(lambda befores, afters: ["it moved"] * len(afters))
    for options, fault in (
        (SearchOptions(counts=counts_of(["scene"])), "counts: this captioner names whatever it takes for a change"),
        (SearchOptions(criteria="cracks alone"), "criteria: this captioner reads no language"),
    ):
        with pytest.raises(ValueError, match=fault):
            options.check(captioner)
        SearchOptions().check(captioner)
    with pytest.raises(ValueError, match="criteria: this captioner reads no language"):
        idc.load("regions")(np.zeros((40, 40, 3), np.uint8), np.zeros((40, 40, 3), np.uint8), criteria="cracks")


def test_a_model_is_told_what_to_report_and_what_to_ignore() -> None:
    counts = counts_of(["traffic", "dog", "1%", "20px"])
    assert counts is not None
    text = SearchOptions(counts=counts, criteria="Puddles do not count.").paragraph
    assert text.startswith("Report only differences of these kinds: people; vehicles; dog. Ignore all others, as of ")
    assert "light, shadows" in text
    assert text.endswith(
        "Report only what covers at least 1 % of the picture and is at least 20 pixels wide or high. "
        "Puddles do not count."
    )
    assert SearchOptions().paragraph == ""


@pytest.mark.parametrize(
    ("counts", "caption", "verdict"),
    [
        ((), "A bottle on the left is gone.", "changed"),
        ("scene", "A bottle on the left is gone.", "changed"),
        ("bottle", "A bottle on the left is gone.", "changed"),
        (
            ["people", "words"],
            "Nothing that counts clearly changed. 1 difference of objects does not count.",
            "unchanged",
        ),
        ("bottle,50%", "Nothing that counts clearly changed. 1 difference of objects does not count.", "unchanged"),
    ],
)
def test_objects_speaks_of_what_counts(counts: Any, caption: str, verdict: str) -> None:
    pair = EXAMPLES / "bottle_00100.jpg", EXAMPLES / "bottle_00260.jpg"
    described = idc.load("objects")(*pair, counts=counts)
    assert (described.caption, described.verdict) == (caption, verdict)
    assert bool(described.claims) == (verdict == "changed")


def test_a_difference_of_light_is_said_or_counted() -> None:
    captioner = idc.load("objects")
    picture = np.asarray(Image.open(EXAMPLES / "bottle_00100.jpg").convert("RGB"))
    darker = (picture * 0.6).astype(np.uint8)
    plain, scene = captioner(picture, darker), captioner(picture, darker, counts="scene")
    assert "became darker" in plain.caption
    assert scene.caption == "Nothing that counts changed. 1 difference of light does not count."
    assert (plain.verdict, scene.verdict) == ("unchanged", "unchanged")
