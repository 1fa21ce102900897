"""Image-Editing-Request (Tan et al. 2019), the official layout.

    train.json  valid.json  test.json       (also in dataset/adobe/ or data/, as in the official repository)
    [{"img0": "a.jpg", "img1": "b.jpg", "sents": ["Remove the people", ...], "uid": "Reddit_1052"}, ...]

A pair is one ``uid``; several uids may share images, in two splits even. Train has one sentence per pair, valid and
test have three. The images may lie in any folder.
"""

from __future__ import annotations

from collections.abc import Iterable

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The rows of the three files; see the module's text."""
    for split, name in annotations.split_files("", "dataset/adobe/", "data/").items():
        for position, record in annotations.records(name):
            pair_id, before, after = (annotations.name_in(position, record, key) for key in ("uid", "img0", "img1"))
            sentences = annotations.texts_in(position, record.get("sents"), "sents")
            if pair_id and before and after and sentences is not None:
                yield {
                    "pair_id": pair_id,
                    "before": before,
                    "after": after,
                    "captions": sentences,
                    "split": split,
                    "source": f"Image-Editing-Request/{position}",
                }
