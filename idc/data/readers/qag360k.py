"""QAG-360K (VisTA, Li et al. 2024): questions about what changed, answered by a word and a mask; no captions.

    train.json  val.json  test.json     {"question": [{"id", "img_id": "00001.png", "question", "type", "answer"}, ...]}
    im1/00001.png  im2/00001.png        before and after
    mask/<question id>.png              the region of the answer, one mask per question

The layout of the questions is that of the official loader (``dataset/DataNew.py``). It takes each file by its path, so
the file names are assumptions, as are the folders ``json/`` and ``annotations/``, and a folder of each split's name for
its images. Question ids may repeat between splits.

A pair is one ``img_id``: all its questions are in ``meta["questions"]`` as ``{"question", "type", "answer", "id",
"mask"}``. The masks belong to questions and not to the pair, so only their names are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of all splits found; see the module's text."""
    pairs: dict[str, Row] = {}
    for split, name in annotations.split_files("", "json/", "annotations/").items():
        for position, record in annotations.records(name, "question"):
            number, file, text, kind, answer = (
                annotations.name_in(position, record, key) for key in ("id", "img_id", "question", "type", "answer")
            )
            if number is None or file is None or text is None or kind is None or answer is None:
                continue
            question = {"question": text, "type": kind, "answer": answer, "id": number, "mask": f"mask/{number}.png"}
            if pair := annotations.join(pairs, position, _pair(PurePosixPath(file).stem, file, split)):
                pair["meta"]["questions"].append(question)
    return pairs.values()


def _pair(pair_id: str, file: str, split: str) -> Row:
    return {
        "pair_id": pair_id,
        "before": [f"{split}/im1/{file}", f"im1/{file}"],
        "after": [f"{split}/im2/{file}", f"im2/{file}"],
        "captions": [],
        "split": split,
        "source": f"QAG-360K/{file}",
        "meta": {"questions": []},
    }
