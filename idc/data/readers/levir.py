"""LEVIR-CC (Liu et al. 2022) and LEVIR-MCI (Liu et al. 2024), the official layout, and LEVIR-CC's captions alone.

    LevirCCcaptions.json        {"images": [{"filepath": "train", "filename": "train_000001.png", "split": "train",
                                             "changeflag": 1, "sentences": [{"raw": " a road appears ."}, ...]}, ...]}
    images/train/A/train_000001.png  images/train/B/train_000001.png
    images/train/label/train_000001.png         LEVIR-MCI only: 0 background, 128 road, 255 building

    levir_cc_captions.json      {"train_000001": ["a road appears", ...], ...}
    train.txt  val.txt  test.txt                one file name per line

The second layout is what the token files of Change-Agent can be joined to; it is read if the first is missing. It
has no ``changeflag``: a pair has flag 0 if all its sentences are among the five that the data set uses for no change.

A label is stored unchanged as the pair's mask; non-zero means changed. ``change_type`` is "none" if the flag is 0 and
unknown otherwise; ``meta["changeflag"]`` is the flag. In LEVIR-MCI some flags and labels contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row
from idc.data.textfiles import split_lines
from idc.schema import NO_CHANGE

_CAPTIONS = "LevirCCcaptions.json"
_JOINED = "levir_cc_captions.json"
NO_CHANGE_SENTENCES = frozenset(
    {
        "the scene is the same as before",
        "there is no difference",
        "the two scenes seem identical",
        "no change has occurred",
        "almost nothing has changed",
    }
)
"""The sentences among which annotators chose if nothing had changed."""


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of the layout found; see the module's text."""
    return _official(annotations) if annotations.need(_CAPTIONS, _JOINED) == _CAPTIONS else _joined(annotations)


def _official(annotations: Annotations) -> Iterable[Row]:
    for position, record in annotations.records(_CAPTIONS, "images"):
        file, split = (annotations.name_in(position, record, key) for key in ("filename", "split"))
        entries = record.get("sentences")
        raw = [e.get("raw") if isinstance(e, dict) else e for e in entries] if isinstance(entries, list) else entries
        sentences, flag = annotations.texts_in(position, raw, "sentences"), record.get("changeflag")
        if file is None or split is None or sentences is None:
            continue
        if flag not in (0, 1):
            annotations.reject(position, f"bad row: changeflag is {flag!r}, not 0 or 1")
            continue
        yield _pair(str(record.get("filepath") or split), file, split, sentences, int(flag))


def _joined(annotations: Annotations) -> Iterable[Row]:
    annotations.note(
        "this layout has no changeflag: derived from the sentences, 0 if all are of the five for no change"
    )
    captions: dict[str, Any] = annotations.items(_JOINED)
    listed: dict[str, str] = {}
    for split, name in annotations.split_files("", suffix=".txt").items():
        for number, line in enumerate(split_lines(annotations.text(name)), start=1):
            file, position = line.strip(), f"{name}:{number}"
            if not file:
                continue
            pair_id = PurePosixPath(file).stem
            if pair_id in listed:
                annotations.reject(position, f"duplicate pair id: {pair_id} is in {listed[pair_id]} and in {split}")
                continue
            listed[pair_id] = split
            sentences = annotations.texts_in(f"{_JOINED}:{pair_id}", captions.get(pair_id, []), "captions")
            if sentences is not None:
                flag = int(not {text.strip() for text in sentences} <= NO_CHANGE_SENTENCES) if sentences else None
                yield _pair(split, file, split, sentences, flag)
    for pair_id in captions:
        if pair_id not in listed:
            annotations.reject(f"{_JOINED}:{pair_id}", "bad split: it is in none of the lists")


def _pair(folder: str, file: str, split: str, sentences: list[str], flag: int | None) -> Row:
    return {
        "pair_id": PurePosixPath(file).stem,
        "before": f"{folder}/A/{file}",
        "after": f"{folder}/B/{file}",
        "mask": f"{folder}/label/{file}",
        "captions": sentences,
        "split": split,
        "change_type": NO_CHANGE if flag == 0 else None,
        "source": f"LEVIR/{file}",
        "meta": {} if flag is None else {"changeflag": flag},
    }
