"""CDVQA (Yuan et al. 2022): questions about what changed between two aerial images, and their answers; no captions.

    Train_questions.json    {"questions": [{"id", "img_id", "type", "question", "active", ...}, ...]}
    Train_answers.json      {"answers": [{"question_id", "answer", ...}, ...]}
    Train_images.json       {"images": [{"id", "file_name", ...}, ...]}
    Val_..., Test_..., Test2_...        Test2 is a second test set
    im1/02180.png  im2/02180.png        the images of SECOND, from which the questions were made (not part of CDVQA)

An image of the lists is one round of questions; the same file has several. A pair is one file: all its questions are in
``meta["questions"]`` as ``{"question", "type", "answer", "id"}``; ``meta["part"]`` is the part, e.g. Test or Test2.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row

_PARTS = {"Train": "train", "Val": "val", "Test": "test", "Test2": "test"}


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of all parts found; see the module's text."""
    there = [part for part in _PARTS if annotations.find(f"{part}_questions.json")]
    if not there:
        annotations.need(*(f"{part}_questions.json" for part in _PARTS))
    if absent := [part for part in _PARTS if part not in there]:
        annotations.note(f"no questions of {', '.join(absent)} were found")
    pairs: dict[str, Row] = {}
    for part in there:
        _read_part(annotations, part, pairs)
    return pairs.values()


def _read_part(annotations: Annotations, part: str, pairs: dict[str, Row]) -> None:
    answers = _by_id(annotations, f"{part}_answers.json", "answers", "question_id", "answer")
    names = _by_id(annotations, f"{part}_images.json", "images", "id", "file_name")
    refused: set[str] = set()
    for number, file in names.items():
        pair = pairs.setdefault(PurePosixPath(file).stem, _pair(part, file))
        if pair["meta"]["part"] != part:
            refused.add(file)
            annotations.reject(
                f"{part}_images.json:{number}", f"duplicate pair id: {file} is also in {pair['meta']['part']}"
            )
    inactive = 0
    for position, record in annotations.records(f"{part}_questions.json", "questions"):
        if record.get("active") is False:
            inactive += 1
            continue
        ident, image = (annotations.name_in(position, record, key) for key in ("id", "img_id"))
        text, kind = (annotations.name_in(position, record, key) for key in ("question", "type"))
        if ident is None or image is None or text is None or kind is None:
            continue
        if image not in names:
            annotations.reject(position, f"bad row: img_id {image} is not in the list of images")
        elif answers and ident not in answers:
            annotations.reject(position, f"bad row: question {ident} has no answer")
        elif names[image] not in refused:
            pair = pairs[PurePosixPath(names[image]).stem]
            question = {"question": text, "type": kind, "answer": answers.get(ident), "id": ident}
            pair["meta"]["questions"].append(question)
            pair["rows"] += 1
    if inactive:
        annotations.note(f"{part}: {inactive} questions are marked inactive and left out")


def _by_id(annotations: Annotations, name: str, key: str, identity: str, value: str) -> dict[str, str]:
    """``{id: value}`` of the records of a file; a missing file is noted."""
    out: dict[str, str] = {}
    if annotations.find(name) is None:
        annotations.note(f"{name} is missing")
        return out
    for position, record in annotations.records(name, key):
        number, text = (annotations.name_in(position, record, which) for which in (identity, value))
        if number in out:
            annotations.reject(position, f"duplicate pair id: {identity} {number} occurs twice; the first is read")
        elif number is not None and text is not None:
            out[number] = text
    return out


def _pair(part: str, file: str) -> Row:
    questions: list[dict[str, Any]] = []
    return {
        "pair_id": PurePosixPath(file).stem,
        "before": f"im1/{file}",
        "after": f"im2/{file}",
        "captions": [],
        "split": _PARTS[part],
        "source": f"CDVQA/{part}/{file}",
        "rows": 0,
        "meta": {"part": part, "questions": questions},
    }
