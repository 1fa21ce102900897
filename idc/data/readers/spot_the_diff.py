"""Spot-the-Diff (Jhamtani and Berg-Kirkpatrick 2018): the official layout and CARD's, by ``spot_the_diff.protocol``.

    single  train.json, val.json, test.json (also in annotations/ or data/annotations/, as in the official repository)
            [{"img_id": "76", "sentences": ["the car is gone", ...]}, ...]
    multi   change_multi_captions.json          {"000076.png": ["the car is gone. the dog has moved"], ...}
            splits.json                         {"train": [76, ...], "val": [...], "test": [...]}
    images  76.png before, 76_2.png after (``resized_images`` of the authors); 76_diff.jpg is not a mask and not read

A pair is one ``img_id``. The official rows repeat an id once per annotator: their sentences together are the pair's
references, as in the single-change references of the literature (1,404 test rows, 1,270 pairs). The multi-change
protocol has one reference per pair, all its sentences joined. Both yield the same pair ids.
"""

from __future__ import annotations

from collections.abc import Iterable

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row, numbered_id

_MULTI = "change_multi_captions.json"


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of the configured protocol; see the module's text."""
    annotations.extra["protocol"] = config.spot_the_diff.protocol
    if config.spot_the_diff.protocol == "multi":
        return _multi(annotations)
    if annotations.find(_MULTI) and not annotations.find("train.json", "annotations", "data"):
        raise ValueError(f"{annotations.root} has {_MULTI}: give spot_the_diff.protocol=multi")
    return _single(annotations)


def _single(annotations: Annotations) -> Iterable[Row]:
    pairs: dict[str, Row] = {}
    for split, name in annotations.split_files("", "annotations/", "data/annotations/").items():
        for position, record in annotations.records(name):
            pair_id = annotations.name_in(position, record, "img_id")
            sentences = annotations.texts_in(position, record.get("sentences"), "sentences")
            if pair_id is None or sentences is None:
                continue
            if pair := annotations.join(pairs, position, _pair(pair_id, split, [], 0)):
                pair["captions"] += sentences
    return pairs.values()


def _multi(annotations: Annotations) -> Iterable[Row]:
    splits = annotations.splits(annotations.need("splits.json"), numbered_id)
    captions = annotations.captions(annotations.need(_MULTI), splits)
    return [_pair(pair_id, split, captions.get(pair_id, []), 1) for pair_id, split in splits.items()]


def _pair(pair_id: str, split: str, sentences: list[str], rows: int) -> Row:
    return {
        "pair_id": pair_id,
        "before": f"{pair_id}.png",
        "after": f"{pair_id}_2.png",
        "captions": list(sentences),
        "split": split,
        "source": f"Spot-the-Diff/{pair_id}",
        "rows": rows,
    }
