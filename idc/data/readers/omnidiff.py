"""OmniDiff (the M3Diff paper, sections 3 and 5): real and rendered pairs with one long description each.

Assumed. The paper says what there is and publishes no file format: 15,598 pairs in two parts, real (8,609) and render
(6,989), each split into train, val and test; a description of about 60 words per pair; pairs of one or more of twelve
types of change. This reader takes the simplest layout for this, with the names of the paper::

    real/train.json  real/val.json  real/test.json  render/train.json  render/val.json  render/test.json
    [{"id": "000001", "before": "images/1_a.jpg", "after": "images/1_b.jpg", "captions": ["..."],
      "types": ["addition", "color"], "scene": "street_01"}, ...]

``types`` and ``scene`` are optional. The pair's id is ``real/000001``; ``change_type`` is the type if there is one;
``meta`` has the part as ``subset``, the types and the scene. If the published files differ, adapt this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row

SUBSETS = ("real", "render")
TYPES = (
    "viewpoint", "illumination", "addition", "disappearance", "removal", "substitution", "size", "color", "orientation",
    "pose", "OCR", "counting",
)  # fmt: skip
"""The twelve types of change (section 3.1)."""


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of both parts, or of the one found; see the module's text."""
    there = [subset for subset in SUBSETS if annotations.find(subset)]
    if not there:
        raise ValueError(
            f"{annotations.root} has no folder {' and no folder '.join(SUBSETS)}; "
            "it does not have the layout of this format"
        )
    for subset in SUBSETS:
        if subset not in there:
            annotations.note(f"{subset} is missing")
    for subset in there:
        for split, name in annotations.split_files(f"{subset}/").items():
            for position, record in annotations.records(name):
                yield from _pair(annotations, position, record, subset, split)


def _pair(annotations: Annotations, position: str, record: dict[str, Any], subset: str, split: str) -> Iterable[Row]:
    number, before, after = (annotations.name_in(position, record, key) for key in ("id", "before", "after"))
    captions = annotations.texts_in(position, record.get("captions"), "captions")
    types = annotations.texts_in(position, record.get("types", []), "types")
    if not number or not before or not after or captions is None or types is None:
        return
    if strange := [name for name in types if name not in TYPES]:
        annotations.reject(position, f"bad row: {strange[0]!r} is not one of the types {', '.join(TYPES)}")
        return
    yield {
        "pair_id": f"{subset}/{number}",
        "before": [f"{subset}/{before}", before],
        "after": [f"{subset}/{after}", after],
        "captions": captions,
        "split": split,
        "change_type": types[0] if len(types) == 1 else None,
        "source": f"OmniDiff/{position}",
        "meta": {"subset": subset, "types": types, **({"scene": record["scene"]} if "scene" in record else {})},
    }
