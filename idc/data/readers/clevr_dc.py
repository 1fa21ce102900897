"""CLEVR-DC (Kim et al. 2021), the official layout.

    bef/123.png  aft/123.png
    captions.json                   {"123": ["...", ...], ...}
    split.json                      {"train": [123, ...], "val": [...], "test": [...]}

A pair is one id. In a sixth of the pairs nothing changed; no file lists them, so ``change_type`` is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row


def read(found: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of ``split.json`` with their captions; see the module's text."""
    splits = found.splits(found.need("split.json"), _id)
    captions: dict[str, list[str]] = {}
    if (name := found.find("captions.json")) is None:
        found.note("captions.json is missing: the pairs have no captions")
    else:
        for key, value in found.items(name).items():
            pair_id = _id(key)
            if pair_id is None:
                found.reject(f"{name}:{key}", f"no pair id: {key!r}")
            elif pair_id not in splits:
                found.reject(f"{name}:{key}", f"bad split: {pair_id} is in none of the splits")
            elif pair_id in captions:
                found.reject(f"{name}:{key}", f"duplicate pair id: {pair_id} occurs under two names")
            elif (sentences := found.texts_in(f"{name}:{key}", value, "captions")) is not None:
                captions[pair_id] = sentences
    for pair_id, split in splits.items():
        names = [f"{pair_id}.png", f"{pair_id:0>6}.png"]
        yield {
            "pair_id": pair_id,
            "before": [f"bef/{file}" for file in names],
            "after": [f"aft/{file}" for file in names],
            "captions": captions.get(pair_id, []),
            "split": split,
            "source": f"CLEVR-DC/{pair_id}",
        }


def _id(value: Any) -> str | None:
    """``"123"`` of ``123``, ``"123"`` and ``"000123.png"``."""
    text = str(value).removesuffix(".png")
    return str(int(text)) if text.isascii() and text.isdigit() else None
