"""A folder of pairs with class masks in LEVIR-MCI's own layout, as :mod:`idc.data.readers.levir` and other programs
read it: ``LevirCCcaptions.json`` and ``images/SPLIT/{A,B,label}/ID.png``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from idc.config import ConfigModel
from idc.data.files import locate
from idc.data.images import decode_image, encode_png
from idc.data.store import iter_rows, read_manifest
from idc.data.validation.checks import is_changed

CAPTIONS_FILE = "LevirCCcaptions.json"
LABELS = (0, 128, 255)
"""Values of a label: background, road, building."""
_COLUMNS = ["pair_id", "before", "after", "captions", "change_type", "split", "mask", "meta"]
_PNG = b"\x89PNG"


class ExportLevirJob(ConfigModel):
    """Write a folder of pairs in LEVIR-MCI's layout."""

    pairs: str = Field(min_length=1)
    """Folder of pairs with class masks (0, 128 road, 255 building), for example `jobs/render.py` with
    `render.satellite`."""
    out: str = Field(min_length=1)
    """Folder to write. Path or URI. It must not hold another export, unless --overwrite is given."""


def export_levir(job: ExportLevirJob, overwrite: bool = False) -> dict[str, int]:
    """Write the images and labels, then the captions, which make the export complete.

    Returns:
        The number of pairs by split.

    Raises:
        ValueError: a pair has no images, no class mask, no flag of a change, or an id that is no file name; or ``out``
            holds an export.
    """
    read_manifest(job.pairs, kind="pairs").need_images(job.pairs)
    out = locate(job.out)
    if (out / CAPTIONS_FILE).exists() and not overwrite:
        raise ValueError(f"out: {job.out} holds an export already; choose another folder or give --overwrite")
    entries: list[dict[str, Any]] = []
    made_folders: set[str] = set()
    for row in iter_rows(job.pairs, _COLUMNS, batch_size=64):
        entries.append(_entry(row, len(entries)))
        for folder, data in (("A", _png(row["before"])), ("B", _png(row["after"])), ("label", _label(row))):
            target = out / "images" / row["split"] / folder
            if target.path not in made_folders:
                target.filesystem.create_dir(target.path, recursive=True)
                made_folders.add(target.path)
            (target / f"{row['pair_id']}.png").write(data)
    (out / CAPTIONS_FILE).write(json.dumps({"images": entries, "dataset": "LEVIR-CC"}).encode())
    return dict(Counter(str(entry["split"]) for entry in entries))


def _entry(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    name, flag = row["pair_id"], is_changed(row["change_type"], json.loads(row["meta"] or "{}"))
    if "/" in name or "\\" in name or name in (".", ".."):
        raise ValueError(f"pair {name!r}: the id is no file name")
    if flag is None:
        raise ValueError(f"pair {name!r} has neither meta.changeflag nor a change type")
    sentences = [
        {"tokens": text.split(), "raw": f" {text} .", "imgid": number, "sentid": 5 * number + position}
        for position, text in enumerate(row["captions"])
    ]
    return {
        "filepath": row["split"],
        "filename": f"{name}.png",
        "imgid": number,
        "sentids": [sentence["sentid"] for sentence in sentences],
        "split": row["split"],
        "changeflag": int(flag),
        "sentences": sentences,
    }


def _png(image: bytes) -> bytes:
    return image if image.startswith(_PNG) else encode_png(decode_image(image))


def _label(row: Mapping[str, Any]) -> bytes:
    if row["mask"] is None:
        raise ValueError(f"pair {row['pair_id']!r} has no mask; labels need one with 0, 128 (road), 255 (building)")
    mask = decode_image(row["mask"])
    if (other := set(np.unique(mask)) - set(LABELS)) or (mask != mask[..., :1]).any():
        values = ", ".join(str(value) for value in sorted(other)) or "colours"
        raise ValueError(
            f"pair {row['pair_id']!r}: its mask has {values}; a class mask has 0, 128 (road), 255 (building)"
        )
    return _png(row["mask"])
