"""The last step of mining: the chosen image pairs as rows of a folder of pairs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from idc.data.images import ImageError, stored_bytes
from idc.data.manifest import AnyPath
from idc.data.mapped_rows import MappedRows
from idc.data.pipeline import Batch, with_errors
from idc.data.schema import ChangePair
from idc.mining.features_folder import FEATURES
from idc.mining.heap import HeapImages

_FILES_KEPT = 64
"""Image files that a worker holds: an image is in several pairs of a chunk."""


class WritePairs:
    """Stage: from rows of targets to rows of pairs.

    Captions and change types are left empty; all pairs are of split train, because pairs share images. ``meta`` has the
    names of both images in the collection and their similarities. If image i chose j and j chose i, both are pairs, as
    eq. 12 counts them.
    """

    def __init__(self, heap: HeapImages, features: AnyPath, names: tuple[str, str], max_pixels: int) -> None:
        self.heap = heap
        self.images = MappedRows(features, ["place", "image_id"])
        self.names, self.max_pixels = names, max_pixels
        self._bytes = lru_cache(_FILES_KEPT)(self._read)

    def __call__(self, batch: Batch) -> Batch:
        rows = []
        for i, number in enumerate(batch["number"]):
            for n, target in enumerate(batch["targets"][i]):
                sims = [float(batch[name][i][n]) for name in (*(f"{f}_sims" for f in FEATURES), "sims")]
                rows.append(self._pair(number, target, sims))
        names = [*ChangePair("-", b"", b"").to_row(), "error"]
        return with_errors({name: [row[name] for row in rows] for name in names})

    def _pair(self, number: int, target: int, sims: list[float]) -> dict[str, Any]:
        ids = [self.images[which]["image_id"] for which in (number, target)]
        similarity = dict(zip((*self.names, "both"), (round(value, 6) for value in sims), strict=True))
        data, error = [b"", b""], None
        for role, which in enumerate((number, target)):
            try:
                data[role] = self._bytes(which)
            except ImageError as fault:
                error = error or f"{fault.code}: {ids[role]}, {fault.detail}"
        pair = ChangePair(
            f"mined-{number:08d}-{target:08d}", data[0], data[1], source=f"mined:{ids[0]}",
            meta={"images": ids, "similarity": similarity},
        )  # fmt: skip
        return {**pair.to_row(), "error": error}

    def _read(self, number: int) -> bytes:
        row = self.images[number]
        return stored_bytes(self.heap(row["place"], row["image_id"]), self.max_pixels)
