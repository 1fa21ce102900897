"""LEVIR-CC (Liu et al. 2022) and LEVIR-MCI (Liu et al. 2024), the official layout.

    LevirCCcaptions.json        {"images": [{"filepath": "train", "filename": "train_000001.png", "split": "train",
                                             "changeflag": 1, "sentences": [{"raw": " a road appears ."}, ...]}, ...]}
    images/train/A/train_000001.png  images/train/B/train_000001.png
    images/train/label/train_000001.png         LEVIR-MCI only: 0 background, 128 road, 255 building

A label is stored unchanged as the pair's mask; non-zero means changed. ``change_type`` is "none" if the flag is 0 and
unknown otherwise; ``meta["changeflag"]`` is the flag. In LEVIR-MCI some flags and labels contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row
from idc.data.schema import NO_CHANGE

_CAPTIONS = "LevirCCcaptions.json"


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs; see the module's text."""
    annotations.need(_CAPTIONS)
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


def _pair(folder: str, file: str, split: str, sentences: list[str], flag: int) -> Row:
    return {
        "pair_id": PurePosixPath(file).stem,
        "before": f"{folder}/A/{file}",
        "after": f"{folder}/B/{file}",
        "mask": f"{folder}/label/{file}",
        "captions": sentences,
        "split": split,
        "change_type": NO_CHANGE if flag == 0 else None,
        "source": f"LEVIR/{file}",
        "meta": {"changeflag": flag},
    }
