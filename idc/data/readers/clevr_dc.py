"""CLEVR-DC (Kim et al. 2021), the official layout.

    bef/123.png  aft/123.png
    captions.json                   {"123": ["...", ...], ...}
    split.json                      {"train": [123, ...], "val": [...], "test": [...]}

A pair is one id. In a sixth of the pairs nothing changed; no file lists them, so ``change_type`` is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row, numbered_id


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of ``split.json`` with their captions; see the module's text."""
    splits = annotations.splits(annotations.need("split.json"), numbered_id)
    if (name := annotations.find("captions.json")) is None:
        annotations.note("captions.json is missing: the pairs have no captions")
    captions = annotations.captions(name, splits) if name is not None else {}
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
