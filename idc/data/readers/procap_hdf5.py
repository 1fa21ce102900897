"""The official ProCap's training data: captions by key, and HDF5 files of nine frames; the first and last are the pair.

    clevr_for_mmvid/train/txt/sc_videos.json        {"000123.png": ["...", ...], ...}
    clevr_for_mmvid/train/video/sc_videos.h5        "000123.png" -> uint8 (9, 3, H, W)
    .../nsc_videos.json, .h5   spot_videos.json, .h5   edit_videos.json, .h5

The official conversion makes only ``train``; other splits are read from folders with their names next to it, and may
use the HDF5 file of ``train``. Pairs of ``sc_videos`` are named ``000123c``, those of ``nsc_videos`` (unchanged)
``000123nc``; others have the key's name.

The frames between are not imported: a build of procedures interpolates them.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from idc.data import files
from idc.data.config import ImportConfig
from idc.data.images import encode_png
from idc.data.pipeline import Batch
from idc.data.readers.annotations import Annotations, Row
from idc.data.readers.base import SPLIT_NAMES, access, rows_to_batch
from idc.data.schema import NO_CHANGE, SPLITS
from idc.data.store import fingerprint

_ENDINGS = {"sc_videos": "c", "nsc_videos": "nc"}


class ProcapHdf5Reader:
    """Reads the official layout; see the module's text. A local folder: HDF5 is read by position.

    Raises:
        ValueError: it is not a local folder of that layout, or nothing in it can be read.
    """

    def __init__(self, folder: files.Location, config: ImportConfig) -> None:
        annotations = Annotations(folder, access("procap_hdf5", config))
        if folder.local is None:
            raise ValueError(f"{folder}: HDF5 files are read from a local folder; copy them to this machine first")
        self.reader = annotations.reader
        self._root, self._channels, self._chunk_size = (
            Path(folder.local),
            config.procap_hdf5.channels,
            config.chunk_size,
        )
        self._max_pixels = config.max_pixels
        self._rows: list[Row] = []
        seen: dict[str, str] = {}
        splits = sorted(split.name for split in self._root.iterdir() if (split / "txt").is_dir())
        for split in sorted(splits, key=lambda name: SPLITS.index(SPLIT_NAMES.get(name.lower(), SPLITS[-1]))):
            for text in sorted((self._root / split / "txt").glob("*.json")):
                self._read(annotations, split, text.name, seen)
        if not self._rows:
            why = "; ".join(row["error"] for row in annotations.rejects[:3]) or "it has no train/txt/*.json"
            raise ValueError(f"{folder} does not have the layout of the official ProCap's data: {why}")
        self.extra: dict[str, Any] = {**annotations.extra}
        if config.images:
            self.extra["images"] = any(row["before"] for row in self._rows)
        videos = sorted({row["before"] for row in self._rows if row["before"]})
        sizes = [[name, (self._root / name).stat().st_size] for name in videos]
        self._rows += annotations.rejects
        self.fingerprint = fingerprint(
            "procap_hdf5", config.chunk_size, config.procap_hdf5.channels, annotations.hash.hexdigest(), sizes
        )

    def _read(self, annotations: Annotations, folder: str, text: str, seen: dict[str, str]) -> None:
        name = PurePosixPath(text).stem
        video = annotations.find(f"{folder}/video/{name}.h5", f"train/video/{name}.h5")
        if video is None:
            annotations.note(f"{folder}/video/{name}.h5 is missing")
        for key, captions in annotations.items(f"{folder}/txt/{text}").items():
            position = f"{folder}/txt/{text}:{key}"
            if annotations.texts_in(position, captions, "captions") is None:
                continue
            pair_id = key.removesuffix(".png") + _ENDINGS.get(name, "")
            if pair_id in seen:
                annotations.reject(position, f"duplicate pair id: {pair_id} is also in {seen[pair_id]}")
                continue
            seen[pair_id] = f"{folder}/txt/{text}"
            self._rows.append(
                {
                    "pair_id": pair_id,
                    "before": video,  # the file; `read` replaces it by the frames
                    "after": key,
                    "captions": captions,
                    "change_type": NO_CHANGE if name == "nsc_videos" else None,
                    "split": folder,
                    "source": f"ProCap/{folder}/{name}/{key}",
                    "meta": {"video": f"{name}.h5", "key": key},
                }
            )

    @property
    def num_chunks(self) -> int:
        return -(-len(self._rows) // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        import h5py

        opened: dict[str, Any] = {}
        rows = []
        try:
            for row in self._rows[chunk_id * self._chunk_size : (chunk_id + 1) * self._chunk_size]:
                if "error" not in row and self.extra.get("images", False):
                    row = {**row, **self._images(h5py, opened, row)}
                rows.append(row)
        finally:
            for file in opened.values():
                if not isinstance(file, str):
                    file.close()
        return rows_to_batch(rows)

    def _images(self, h5py: Any, opened: dict[str, Any], row: Row) -> Row:
        """The first and the last frame as PNG, or the error."""
        name, key = row["before"], row["after"]
        if name is None:
            return {"before": None, "after": None, "error": f"missing file: {row['meta']['video']}"}
        if name not in opened:
            try:
                path = self.reader.locate(name).local
                assert path is not None
                files.check_regular(path)
                opened[name] = h5py.File(path, "r")
            except OSError as exc:
                opened[name] = f"unreadable file: {name}, {exc}"
            except files.OutsideSource as exc:
                opened[name] = f"outside the source: {name}, {exc}"
        file = opened[name]
        if isinstance(file, str):
            return {"before": None, "after": None, "error": file}
        try:
            stored = stored_in(file, key)
            if stored is None:
                raise _Bad(f"missing file: {key} is not in {name}")
            shape: tuple[int, ...] = getattr(stored, "shape", ())
            if len(shape) != 4 or shape[0] < 2 or shape[1] != 3 or stored.dtype != np.uint8:
                raise _Bad(f"bad row: {key} in {name} is {getattr(stored, 'dtype', 'a group')} {shape}, not frames")
            height, width = shape[2:]
            if height * width > self._max_pixels:
                raise _Bad(f"too many pixels: {key} in {name}, {width}x{height} is more than {self._max_pixels} pixels")
            ends = [np.asarray(stored[n]).transpose(1, 2, 0) for n in (0, shape[0] - 1)]
        except files.OutsideSource as exc:
            return {"before": None, "after": None, "error": f"outside the source: {key} in {name}, {exc}"}
        except OSError as exc:
            return {"before": None, "after": None, "error": f"unreadable file: {key} in {name}, {exc}"}
        except _Bad as bad:
            return {"before": None, "after": None, "error": str(bad)}
        order = slice(None, None, -1 if self._channels == "bgr" else 1)
        before, after = (encode_png(np.ascontiguousarray(frame[..., order])) for frame in ends)
        return {"before": before, "after": after}


def stored_in(file: Any, key: str) -> Any:
    """The object that an open HDF5 file itself stores under ``key``; None if there is nothing.

    HDF5 can store a link to another file, or another file's name and the position of the values in it; following them
    would read any file that the author of this one named.

    Raises:
        OutsideSource: it is stored in another file, which was not opened.
    """
    import h5py

    node = file
    for part in filter(None, key.split("/")):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise files.OutsideSource("it is a link within HDF5; links are not followed")
        node = node[part]
    if isinstance(node, h5py.Dataset) and (node.external or node.is_virtual):
        raise files.OutsideSource("its values are stored in another file")
    return node


class _Bad(Exception):
    """The reason a pair has no frames."""
