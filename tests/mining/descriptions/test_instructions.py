"""The instructions are the paper's, with what is known of a pair filled in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.instructions import ImageCaptions, instruct, read_image_captions

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
