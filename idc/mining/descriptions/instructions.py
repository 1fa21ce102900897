"""The instructions to a vision-language model: NAMC's structured ones, and the conventional question (Guo et al.,
appendix B.2 and D.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from idc.data.textfiles import JsonError, decode_text, parse_json, split_lines
from idc.mining.descriptions.config import DescribeJob, Instruction
from idc.mining.descriptions.template import TEMPLATE

CONVENTIONAL = (
    "Given the first and the second images, describe the change between the two images. What has changed from the "
    "first image to the second?"
)
"""The question of appendix B.2 (table 11)."""

_BEGIN: dict[Instruction, str] = {
    "cc3m": "Given the first and the second images, describe the difference between the two images.",
    "spot_the_diff": "Given the first and the second images, describe the difference between the two images.",
    "instruct_pix2pix": "Given the first image and a prompt, the second image is generated based on them. Describe the "
    "difference between the two images. Here is the prompt: {edit}.",
}
_CAPTIONS = ("First image could be described as: {caption}.", "Second image could be described as: {caption}.")
_DIFFERENCE = "Here is the difference: {difference}."
_END = f"Generate the description strictly according to the template: '{TEMPLATE}'."

_SOURCES: dict[str, Instruction] = {"Spot-the-Diff/": "spot_the_diff", "InstructPix2Pix/": "instruct_pix2pix"}
"""How the ``source`` of a pair begins -> its instruction."""


class ImageCaptions(NamedTuple):
    """Descriptions of the two images of a pair; None where there is none."""

    before: str | None = None
    after: str | None = None


NO_CAPTIONS = ImageCaptions()


def instruction_of(job: DescribeJob, row: Mapping[str, Any]) -> Instruction:
    """The structured instruction for a pair. One that needs a text of the data set, which the pair does not have, is
    replaced by that of CC3M."""
    kind = job.instruction
    if kind == "auto":
        kinds: list[Instruction] = [name for start, name in _SOURCES.items() if row["source"].startswith(start)]
        kind = kinds[0] if kinds else "cc3m"
    return kind if any(text.strip() for text in row["captions"]) else "cc3m"


def instruct(job: DescribeJob, row: Mapping[str, Any], image_captions: ImageCaptions = NO_CAPTIONS) -> str:
    """The message to the model about a pair.

    Args:
        row: ``source``, ``captions`` and ``meta`` of the pair.
        image_captions: of ``job.image_captions``.
    """
    if job.prompt == "conventional":
        return CONVENTIONAL
    kind = instruction_of(job, row)
    texts = [text.strip() for text in row["captions"] if text.strip()]
    parts = [_filled(_BEGIN[kind], edit=texts[0]) if kind == "instruct_pix2pix" else _BEGIN[kind]]
    if kind == "instruct_pix2pix" and image_captions == NO_CAPTIONS:
        meta = json.loads(row["meta"] or "{}")
        image_captions = ImageCaptions(
            *(text if isinstance(text, str) else None for text in map(meta.get, ("input", "output")))
        )
    parts += [_filled(part, caption=text) for part, text in zip(_CAPTIONS, image_captions, strict=True) if text]
    if kind == "spot_the_diff":
        parts.append(_filled(_DIFFERENCE, difference=" ".join(text.rstrip(".") + "." for text in texts)))
    return " ".join([*parts, _END])


def _filled(text: str, **values: str) -> str:
    """The text with its placeholders replaced, and one full stop after a value that ends with its own."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}.", value.strip().rstrip(".") + ".")
    return text


def read_image_captions(path: str | None) -> dict[str, ImageCaptions]:
    """Pair -> descriptions of its images, of a file of JSON lines.

    Raises:
        ValueError: naming the line that is not ``{"pair_id": ..., "before": ..., "after": ...}``, or a repeated pair.
    """
    captions: dict[str, ImageCaptions] = {}
    if path is None:
        return captions
    try:
        lines = split_lines(decode_text(Path(path).read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except JsonError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        row = row if isinstance(row, dict) else {}
        pair_id, texts = row.get("pair_id"), [row.get(name) for name in ("before", "after")]
        if not isinstance(pair_id, str) or not all(text is None or isinstance(text, str) for text in texts):
            raise ValueError(f'{path}:{number}: {line[:80]} is not {{"pair_id": ..., "before": ..., "after": ...}}')
        if pair_id in captions:
            raise ValueError(f"{path}:{number}: the pair {pair_id!r} has a line before; keep one of them")
        captions[pair_id] = ImageCaptions(*((text or "").strip() or None for text in texts))
    return captions
