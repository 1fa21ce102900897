"""The instructions are the paper's, with what is known of a pair filled in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from idc.data.descriptions.config import DescribeJob
from idc.data.descriptions.instructions import ImageCaptions, instruct, read_image_captions

TEMPLATE = (
    "Generate the description strictly according to the template: 'The difference between the two images is that the "
    "first image {descriptive verb} [object description], while the second image {descriptive verb} [object "
    "description].'."
)


def job(**more: Any) -> DescribeJob:
    return DescribeJob(pairs="in", out="out", **{"endpoint": {"url": "http://h/v1", "model": "m"}, **more})


def row(source: str, *captions: str, **meta: Any) -> dict[str, Any]:
    return {"source": source, "captions": list(captions), "meta": json.dumps(meta)}


def test_cc3m_quotes_the_captions_of_both_images() -> None:
    assert instruct(job(), row("cc3m"), ImageCaptions("A dog on grass.", "a cat")) == (
        "Given the first and the second images, describe the difference between the two images. First image could be "
        f"described as: A dog on grass. Second image could be described as: a cat. {TEMPLATE}"
    )


def test_without_captions_the_sentences_are_left_out() -> None:
    assert instruct(job(), row("elsewhere")) == (
        f"Given the first and the second images, describe the difference between the two images. {TEMPLATE}"
    )
    assert "Second image could be" not in instruct(job(), row("elsewhere"), ImageCaptions("a dog", None))


def test_spot_the_diff_quotes_its_differences() -> None:
    assert instruct(job(), row("Spot-the-Diff/7", "a car left", "two men came."), ImageCaptions("lot", "yard")) == (
        "Given the first and the second images, describe the difference between the two images. First image could be "
        "described as: lot. Second image could be described as: yard. Here is the difference: a car left. two men "
        f"came. {TEMPLATE}"
    )


def test_instruct_pix2pix_quotes_the_prompt_and_its_own_captions() -> None:
    pair = row("InstructPix2Pix/1/2", "make it night", input="a town", output="a town at night")
    assert instruct(job(), pair) == (
        "Given the first image and a prompt, the second image is generated based on them. Describe the difference "
        "between the two images. Here is the prompt: make it night. First image could be described as: a town. Second "
        f"image could be described as: a town at night. {TEMPLATE}"
    )
    assert "described as: a village. Second" in instruct(job(), pair, ImageCaptions("a village", "dark"))


def test_an_instruction_without_its_text_is_that_of_cc3m() -> None:
    assert instruct(job(), row("Spot-the-Diff/7")) == instruct(job(instruction="cc3m"), row("Spot-the-Diff/7", "a car"))
    assert "Here is the prompt: go." in instruct(job(instruction="instruct_pix2pix"), row("mine", "go"))


def test_braces_in_a_caption_are_text() -> None:
    assert "described as: {difference}. Here is the difference: {caption}." in instruct(
        job(), row("Spot-the-Diff/7", "{caption}"), ImageCaptions(None, "{difference}")
    )


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


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("no json", ":1: not JSON"),
        ("[1]", ":1: [1] is not {"),
        ('{"pair_id": 7, "before": "x"}', ":1: {"),
        ('{"pair_id": "p", "before": 3}', ":1: {"),
        ('{"pair_id": "p"}\n{"pair_id": "p"}', ":2: the pair 'p' has a line before"),
    ],
)
def test_a_faulty_line_is_named(line: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=re.escape(f"{file}{fault}")):
        read_image_captions(str(file))
