"""Data sets of questions about what changed between two aerial images, and their answers; they have no captions.

**CDVQA** (Yuan et al. 2022)::

    Train_questions.json    {"questions": [{"id", "img_id", "type", "question", "active", ...}, ...]}
    Train_answers.json      {"answers": [{"question_id", "answer", ...}, ...]}
    Train_images.json       {"images": [{"id", "file_name", ...}, ...]}
    Val_..., Test_..., Test2_...        Test2 is a second test set
    im1/02180.png  im2/02180.png        the images of SECOND, from which the questions were made (not part of CDVQA)

An image of the lists is one round of questions; the same file has several. A pair is one file; ``meta["part"]`` is the
part, e.g. Test or Test2.

**QAG-360K** (VisTA, Li et al. 2024), answered by a word and a mask::

    train.json  val.json  test.json     {"question": [{"id", "img_id": "00001.png", "question", "type", "answer"}, ...]}
    im1/00001.png  im2/00001.png        before and after
    mask/<question id>.png              the region of the answer, one mask per question

The layout of the questions is that of the official loader (``dataset/DataNew.py``). It takes each file by its path, so
the file names are assumptions, as are the folders ``json/`` and ``annotations/``, and a folder of each split's name for
its images. Question ids may repeat between splits. The masks belong to questions and not to the pair, so only their
names are kept.

**ViDiC-1K** (Wu et al. 2025), pairs of videos with a checklist of yes and no::

    checklist/checklist.json            [{"index", "video1_path": "data/x/104_src.mp4", "video2_path",
                                          "structured_analysis": {"Similarities": [...], "Differences": [...]}}, ...]
    data/x/104_src.png                  a frame of each video, an image of its name; no video is read

An item has ``class`` (subject, camera, ...), ``question`` and ``correct_answer``.

All questions of a pair are in ``meta["questions"]`` as ``{"question", "type", "answer", "id"}``, in QAG-360K also
``"mask"``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from posixpath import splitext
from typing import Any

from idc.data.config import Format, ImportConfig
from idc.data.readers.annotations import Annotations, ReadPairs, Row

CHECKLISTS = tuple(
    folder + name for folder in ("checklist/", "") for name in ("checklist.json", "checklist_final.json")
)
"""Where ViDiC's checklist may be; the second one names finer categories."""
SECTIONS = ("Similarities", "Differences")
"""Its parts: what must not be said to differ, and what must."""
_PARTS = {"Train": "train", "Val": "val", "Test": "test", "Test2": "test"}


def read_cdvqa(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of all parts that are there."""
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
        images = {"before": f"im1/{file}", "after": f"im2/{file}"}
        meta = {"part": part, "questions": list[dict[str, Any]]()}
        pair_id, source = PurePosixPath(file).stem, f"CDVQA/{part}/{file}"
        row = {"pair_id": pair_id, **images, "captions": [], "split": _PARTS[part], "source": source, "rows": 0}
        pair = pairs.setdefault(pair_id, {**row, "meta": meta})
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
        ident, image, text, kind = (
            annotations.name_in(position, record, key) for key in ("id", "img_id", "question", "type")
        )
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


def read_qag360k(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of all splits that are there."""
    pairs: dict[str, Row] = {}
    for split, name in annotations.split_files("", "json/", "annotations/").items():
        for position, record in annotations.records(name, "question"):
            number, file, text, kind, answer = (
                annotations.name_in(position, record, key) for key in ("id", "img_id", "question", "type", "answer")
            )
            if number is None or file is None or text is None or kind is None or answer is None:
                continue
            question = {"question": text, "type": kind, "answer": answer, "id": number, "mask": f"mask/{number}.png"}
            pair = {
                "pair_id": PurePosixPath(file).stem,
                "before": [f"{split}/im1/{file}", f"im1/{file}"],
                "after": [f"{split}/im2/{file}", f"im2/{file}"],
                "captions": [],
                "split": split,
                "source": f"QAG-360K/{file}",
                "meta": {"questions": list[dict[str, Any]]()},
            }
            if row := annotations.join(pairs, position, pair):
                row["meta"]["questions"].append(question)
    return pairs.values()


def read_vidic(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of the checklist, all of the test split."""
    name = annotations.need(*CHECKLISTS)
    pairs: list[Row] = []
    for position, record in annotations.records(name):
        number, first, second = (
            annotations.name_in(position, record, key) for key in ("index", "video1_path", "video2_path")
        )
        items = record.get("structured_analysis")
        if number is None or first is None or second is None or not isinstance(items, dict):
            annotations.reject(position, "bad row: it has no structured_analysis")
            continue
        questions: list[dict[str, Any]] = []
        for section in SECTIONS:
            for at, item in enumerate(items.get(section) or ()):
                ident, item = f"{section}/{at}", item if isinstance(item, dict) else {}
                question, kind, answer = (
                    annotations.name_in(f"{position}/{ident}", item, key)
                    for key in ("question", "class", "correct_answer")
                )
                if question is not None and kind is not None and answer is not None:
                    questions.append({"question": question, "type": kind, "answer": answer.lower(), "id": ident})
        frames = ([splitext(video)[0] + suffix for suffix in (".png", ".jpg")]
                  for video in (first, second))  # fmt: skip
        pairs.append(
            {
                "pair_id": number,
                **dict(zip(("before", "after"), frames, strict=True)),
                "captions": [],
                "split": "test",
                "source": f"ViDiC/{number}",
                "rows": len(questions),
                "meta": {"videos": [first, second], "questions": questions},
            }
        )
    return pairs


READERS: dict[Format, ReadPairs] = {"cdvqa": read_cdvqa, "qag360k": read_qag360k, "vidic": read_vidic}
