"""The paper's instructions and template: what is known of a pair filled in; sentences read back, or refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.instructions import ImageCaptions, instruct, read_image_captions
from idc.mining.descriptions.template import VERBS, PairDescription, parse_description

TEMPLATE = (
    "Generate the description strictly according to the template: 'The difference between the two images is that the "
    "first image {descriptive verb} [object description], while the second image {descriptive verb} [object "
    "description].'."
)


def job(**more: Any) -> DescribeJob:
    return DescribeJob(pairs="in", out="out", **{"endpoint": {"url": "http://h/v1", "model": "m"}, **more})


def row(source: str, *captions: str, **meta: Any) -> dict[str, Any]:
    return {"source": source, "captions": list(captions), "meta": json.dumps(meta)}


BOTH = "Given the first and the second images,"
EDIT = (
    "Given the first image and a prompt, the second image is generated based on them. Describe the difference between "
    "the two images. Here is the prompt:"
)
CHANGE = "describe the difference between the two images."
FIRST, SECOND = "First image could be described as:", "Second image could be described as:"
HERE = "Here is the difference:"
PIX2PIX = ("InstructPix2Pix/1/2", "make it night")
TOWN = {"input": "a town", "output": "a town at night"}
# Settings, row, captions of the images, and the instruction without the template
INSTRUCTIONS: list[tuple[dict[str, Any], dict[str, Any], tuple[str | None, str | None] | None, str]] = [
    ({}, row("cc3m"), ("A dog on grass.", "a cat"), f"{BOTH} {CHANGE} {FIRST} A dog on grass. {SECOND} a cat. "),
    ({}, row("elsewhere"), ("a dog", None), f"{BOTH} {CHANGE} {FIRST} a dog. "),
    ({}, row("Spot-the-Diff/7", "a car left", "two men came."), ("lot", "yard"),
     f"{BOTH} {CHANGE} {FIRST} lot. {SECOND} yard. {HERE} a car left. two men came. "),
    ({}, row("Spot-the-Diff/7", "{caption}"), (None, "{difference}"),
     f"{BOTH} {CHANGE} {SECOND} {{difference}}. {HERE} {{caption}}. "),
    ({}, row("Spot-the-Diff/7"), None, f"{BOTH} {CHANGE} "),
    ({"instruction": "cc3m"}, row("Spot-the-Diff/7", "a car"), None, f"{BOTH} {CHANGE} "),
    ({}, row(*PIX2PIX, **TOWN), None, f"{EDIT} make it night. {FIRST} a town. {SECOND} a town at night. "),
    ({}, row(*PIX2PIX, **TOWN), ("a village", "dark"), f"{EDIT} make it night. {FIRST} a village. {SECOND} dark. "),
    ({"instruction": "instruct_pix2pix"}, row("mine", "go"), None, f"{EDIT} go. "),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "pair", "captions", "instruction"), INSTRUCTIONS)
def test_the_papers_instructions_quote_what_is_known_of_a_pair(
    settings: dict[str, Any], pair: dict[str, Any], captions: tuple[str | None, str | None] | None, instruction: str
) -> None:
    known_of = () if captions is None else (ImageCaptions(*captions),)
    assert instruct(job(**settings), pair, *known_of) == instruction + TEMPLATE


def test_the_conventional_question() -> None:
    assert instruct(job(prompt="conventional"), row("cc3m", "x"), ImageCaptions("a", "b")) == (
        "Given the first and the second images, describe the change between the two images. What has changed from the "
        "first image to the second?"
    )


def test_captions_of_images_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text('{"pair_id": "p1", "before": " a dog ", "after": null}\n\n{"pair_id": "p2", "after": "a cat"}\n')
    assert read_image_captions(str(file)) == {"p1": ("a dog", None), "p2": (None, "a cat")}
    assert read_image_captions(None) == {}


FAULTS = {
    "no json": ":1: not JSON", "[1]": ":1: [1] is not {", '{"pair_id": "p", "before": 3}': ":1: {",
    '{"pair_id": "p"}\n{"pair_id": "p"}': ":2: the pair 'p' has a line before",
}  # fmt: skip


@pytest.mark.parametrize(("line", "fault"), FAULTS.items())
def test_a_faulty_line_is_named(line: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=re.escape(f"{file}{fault}")):
        read_image_captions(str(file))


GOOD = PairDescription("shows", "a red car and no people", "depicts", "an empty street, seen from above")


def test_a_sentence_is_read_back_with_each_of_the_papers_verbs() -> None:
    assert len(VERBS) == len(set(VERBS)) == 49
    for verb in VERBS:
        description = PairDescription(verb, "a sign with the word \u201cHUNGER\u201d", "has", "keys, and no text on it")
        assert parse_description(description.sentence()) == description


@pytest.mark.parametrize(
    "said",
    [
        "  the difference between the two images is that the first image shows a red car and no people,\nwhile the "
        "second image depicts an empty street, seen from above",
        '"The difference between the two images is that the first image Shows a red car and no people while the second '
        'image depicts an empty street, seen from above."',
    ],
)
def test_case_blanks_quotes_and_the_full_stop_do_not_count(said: str) -> None:
    assert parse_description(said) == GOOD


def of(before: str, after: str) -> str:
    return f"The difference between the two images is that the first image {before}, while the second image {after}."


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("The car is gone.", "off template: there is no 'the difference between"),
        ("The difference between the two images is that the first image shows a car.", "no 'while the second image'"),
        (of("shows a car", "does not"), "off template: 'does' after 'the second image' is not a verb of the list"),
        (of("also shows a car", "shows a bus"), "off template: 'also' after 'the first image'"),
        (of("shows", "shows a bus"), "off template: the first image has no description"),
        (of("shows a car", "shows ..."), "off template: the second image has no description"),
        (of("shows a car", "shows a bus. Both images have a road"), "off template: more than one sentence"),
        ("Sure! " + of("shows a car", "shows a bus"), "off template: text around the template"),
        (of("shows a car", "has no car"), "only denies: the second image has 'no car'"),
        (of("is not there", "shows a car"), "only denies: the first image is 'not there'"),
        (of("shows a car", "shows something that doesn't have it"), "only denies"),
        (of("shows a car", "has neither a car nor a bus, and no people"), "only denies"),
    ],
)
def test_a_refusal_has_its_reason(sentence: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^(off template|only denies): ") as error:
        parse_description(sentence)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "description", ["a desk and no cube", "St. John on a horse", "a notice, which is not lit", "3 cubes"]
)
def test_a_description_that_also_affirms_is_taken(description: str) -> None:
    assert parse_description(of("shows a car", f"shows {description}")).after == description
