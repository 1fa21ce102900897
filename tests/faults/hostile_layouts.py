"""Hostile data sets in official layouts and HDF5 files: each with what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tests.data.container_sets import OFFICIAL as MORE
from tests.data.container_sets import frames
from tests.data.official_layouts import Official
from tests.data.small_sets import OFFICIAL
from tests.faults.hostile import OUTSIDE, Content, Hostile, Surroundings, fifo, link

DEEP = "[" * 100_000 + "]" * 100_000


def refused(official: Official, file: str, content: Content, error: str) -> Hostile:
    """The layout with a file by which all of it is refused."""
    return Hostile(official.format, {**official.files, file: content}, settings=official.settings, error=error)


# ------------------------------------------------------------------------------------------ files that are no such


ANNOTATIONS = {
    "clevr_change": "splits.json",
    "spot_the_diff": "val.json",
    "image_editing_request": "valid.json",
    "levir_mci": "LevirCCcaptions.json",
    "omnidiff": "real/val.json",
    "procap_hdf5": "val/txt/sc_videos.json",
}
"""A file of each layout that is replaced."""


ONE_OF_SEVERAL = ("spot_the_diff", "image_editing_request", "omnidiff")
"""Layouts in which a file of a split may be absent: a FIFO in its place is no such file, which a note says."""


def official(name: str) -> Official:
    return {**OFFICIAL, **MORE}[name]()


def annotation_entries() -> dict[str, Hostile]:
    """An annotation file that leads outside or never ends is refused."""
    out = {}
    for name, file in ANNOTATIONS.items():
        layout = official(name)
        out[f"{name}: annotations outside"] = refused(
            layout, file, link(f"{OUTSIDE}/canary.json"), "out of the source|is not the layout|has no"
        )
        if name in ONE_OF_SEVERAL:
            part = file.rpartition("/")[0]
            left = tuple(i for i, pair in layout.pairs.items() if pair[0] != "val" or not i.startswith(part))
            entry = Hostile(layout.format, {**layout.files, file: fifo}, left, named=("no annotations of val",))
        else:
            entry = refused(layout, file, fifo, "not a regular file|has no")
        out[f"{name}: annotations are a FIFO"] = entry
    return out


def damaged_entries() -> dict[str, Hostile]:
    """Spot-the-Diff with a file of the pair 3 that holds no list of entries."""
    layout = official("spot_the_diff")
    pairs = tuple(name for name in layout.pairs if name != "3")
    texts = {"empty": "", "an object": "{}", "deep": DEEP}
    return {
        f"spot_the_diff: {name}": Hostile(
            layout.format, {**layout.files, "val.json": text}, pairs, {"val.json": "bad file"}
        )
        for name, text in texts.items()
    }


# ------------------------------------------------------------------------------------------------ shards and HDF5


def hdf5_entries() -> dict[str, Hostile]:
    """Links to other files are in ``test_outside_reads.py``."""

    def made(make: Callable[[h5py.File], None]) -> Content:
        def write(path: Path, around: Surroundings) -> None:
            with h5py.File(path, "w") as file:
                file["76"] = frames(1, 2)
                make(file)

        return write

    def loop(file: h5py.File) -> None:
        file["77"] = h5py.SoftLink("/77")

    def huge(file: h5py.File) -> None:
        file.create_dataset("77", (2, 3, 2**20, 2**20), np.uint8, chunks=(1, 1, 64, 64))

    text = '{"76": ["x"], "77": ["x"]}'
    outcomes = {
        "a loop": (loop, "outside the source"),
        "frames without end": (huge, "too many pixels"),
    }
    return {
        f"procap_hdf5: {name}": Hostile(
            "procap_hdf5", {"train/txt/spot_videos.json": text, "train/video/spot_videos.h5": made(make)},
            ("76",), {"77": code},
        )
        for name, (make, code) in outcomes.items()
    }  # fmt: skip


def entries() -> dict[str, Hostile]:
    """By name."""
    return annotation_entries() | damaged_entries() | hdf5_entries()
