"""Frames of the official ProCap's HDF5 files, ``{sc,nsc}_videos.h5`` and ``{spot,edit}_videos.h5``.

    "000123.png" -> uint8 (9, 3, H, W)      before, seven frames between, after

In a build of procedures they replace interpolation; captions, splits and masks come from the pairs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.files import OutsideSource
from idc.data.pipeline import Batch, good_rows, with_errors
from idc.data.readers.procap_hdf5 import stored_in
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import prepare_frame


class ReadVideos:
    """Adds the ``frames`` of each ``pair_id``: uint8 (l + 2, Y, X, 3) of the tokenizer's size; ``before`` and ``after``
    are ignored.

    A pair of CLEVR-Change, ``000123c`` or ``000123nc``, is ``000123.png`` in the file whose name begins with ``sc`` or
    ``nsc``; any other is found by its own name, with or without ``.png``, in the first file that has it. A pair that is
    in no file, or has another shape, is rejected.

    Args:
        between: number l of frames between.
    """

    def __init__(self, tokenizer: dict[str, Any], videos: list[str], between: int, channels: str) -> None:
        import h5py

        self.tokenizer = TokenizerConfig(**tokenizer)
        self.between = between
        self.order = slice(None, None, -1 if channels == "bgr" else 1)
        try:
            self.files = {Path(path).name: h5py.File(path, "r") for path in videos}
        except OSError as error:
            raise ValueError(f"videos: cannot be read as HDF5: {error}") from None

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        frames: list[np.ndarray | None] = [None] * len(batch["error"])
        for i in good_rows(batch):
            outcome = self._frames(batch["pair_id"][i])
            if isinstance(outcome, str):
                batch["error"][i] = outcome
            else:
                frames[i] = outcome
        return {**{key: value for key, value in batch.items() if key not in ("before", "after")}, "frames": frames}

    def _frames(self, pair_id: str) -> np.ndarray | str:
        """The frames of a pair, or the reason why there are none."""
        for name, key in self._locations(pair_id):
            try:
                stored = stored_in(self.files[name], key)
            except OutsideSource as error:
                return f"unexpected video: {key}, {error}"
            if stored is not None:
                break
        else:
            return f"no video: {pair_id} is in none of {', '.join(self.files)}"
        shape = getattr(stored, "shape", ())
        if len(shape) != 4 or shape[:2] != (self.between + 2, 3) or stored.dtype != np.uint8:
            return f"unexpected video: {key} is {getattr(stored, 'dtype', 'a group')} {shape}"
        try:
            pixels = stored[:].transpose(0, 2, 3, 1)[..., self.order]
        except OSError as error:
            return f"damaged video: {key}, {error}"
        return np.stack([prepare_frame(frame, self.tokenizer) for frame in np.ascontiguousarray(pixels)])

    def _locations(self, pair_id: str) -> list[tuple[str, str]]:
        """Possible locations (file, key) of the pair."""
        for ending, start in (("nc", "nsc"), ("c", "sc")):
            number = pair_id.removesuffix(ending)
            if number != pair_id and number.isdigit():
                return [(name, f"{number}.png") for name in self.files if name.startswith(start)]
        return [(name, key) for name in self.files for key in (pair_id, f"{pair_id}.png")]


def video_fingerprint(path: str) -> str:
    """A short hash of a file's size, first and last MiB; the files have tens of GB."""
    size = Path(path).stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with Path(path).open("rb") as stream:
        digest.update(stream.read(1 << 20))
        stream.seek(max(0, size - (1 << 20)))
        digest.update(stream.read(1 << 20))
    return digest.hexdigest()[:20]
