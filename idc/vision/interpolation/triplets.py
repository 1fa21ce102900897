"""Frame triplets: three frames at equal distances in time, for training and measuring interpolators.

Image files are read in place, in one of these layouts:

    tri_trainlist.txt tri_testlist.txt sequences/00001/0001/{im1,im2,im3}.png      Vimeo-90k
    <any>/{frame10,frame10i11,frame11}.png                                       one folder per triplet, sorted by name
    <any>/x_frame0.png  x_frame1.png  x_frame2.png                                 many in one folder

Triplets cut from videos or rendered (:func:`build`) are a folder of Parquet files, like pairs.

Splits: Vimeo-90k has its own train and test, and every 100th of its training list is val; of other image files every
10th is val and the rest train; a built folder stores the split in its rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from idc.data.files import Reader, locate
from idc.data.images import IMAGE_SUFFIXES, cell_bytes, decode_image, encode_png
from idc.data.pipeline import Batch, Runner, StageSpec, good_rows, take, with_errors
from idc.data.rendered.config import MotionConfig
from idc.data.rendered.draw import UnplaceableScene, split_of
from idc.data.store import MANIFEST, DatasetFolder, Manifest, MappedRows, fingerprint, read_manifest
from idc.data.textfiles import decode, split_lines
from idc.data.video_frames import count_frames, read_frames, video_fingerprint
from idc.vision.interpolation.config import TripletsConfig

VERSION = 1
"""Part of the fingerprint of a built folder; to be raised when the same settings would give other triplets."""

_VIMEO_LISTS = {"train": "tri_trainlist.txt", "test": "tri_testlist.txt"}
_VIMEO_VAL_EVERY, _VAL_EVERY = 100, 10
_NUMBERED = re.compile(r"(.+)_frame([012])")
_FRAMES = ("first", "middle", "last")


class Triplet(NamedTuple):
    """Three frames, uint8 RGB (H, W, 3) of one size."""

    name: str
    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray


class Triplets(Protocol):
    """Random access to triplets."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Triplet: ...


def open_triplets(path: str, split: str | None = None) -> Triplets:
    """Open the triplets at ``path``: a built folder, or image files.

    Args:
        split: only these: "train", "val" or "test"; all by default.

    Raises:
        ValueError: there are none, or the layout is unknown.
    """
    if (Path(path) / MANIFEST).is_file() or "://" in path:
        read_manifest(path, kind="triplets")
        return StoredTriplets(MappedRows(path, columns=["row_id", *_FRAMES], split=split))
    found = find_image_files(Path(path))
    reader = Reader(locate(path))
    return ImageFileTriplets([entry for entry in found if split is None or entry.split == split], reader)


def _checked(name: str, frames: Sequence[np.ndarray]) -> Triplet:
    if len(sizes := {frame.shape for frame in frames}) > 1:
        raise ValueError(f"triplet {name}: its frames differ in size: {sorted(size[:2] for size in sizes)}")
    return Triplet(name, frames[0], frames[1], frames[2])


class StoredTriplets:
    """The rows of a built folder."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Triplet:
        row = self.rows[index]
        return _checked(row["row_id"], [decode_image(row[name]) for name in _FRAMES])


@dataclass(frozen=True)
class ImageFiles:
    """The paths of a triplet's three images, relative to the opened folder."""

    name: str
    split: str
    paths: tuple[str, str, str]


class ImageFileTriplets:
    """Triplets that are read from image files on access."""

    def __init__(self, entries: Sequence[ImageFiles], reader: Reader) -> None:
        self.entries = entries
        self.reader = reader

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Triplet:
        entry = self.entries[index]
        frames = []
        for path in entry.paths:
            try:
                frames.append(decode_image(cell_bytes(path, self.reader)))
            except ValueError as error:
                raise ValueError(f"triplet {entry.name}: {path}: {error}") from None
        return _checked(entry.name, frames)


def find_image_files(root: Path) -> list[ImageFiles]:
    """Find the triplets in a folder of image files, sorted by name.

    Raises:
        ValueError: there are none, or a folder's images do not form a triplet.
    """
    if (root / _VIMEO_LISTS["train"]).is_file():
        return _vimeo(root)
    source = locate(root)
    tree = source.scan()
    if tree.outside:
        raise ValueError(
            f"{tree.outside[0]} is a link to a folder outside of {root}; give that folder, or copy it there"
        )
    found: dict[str, tuple[str, str, str]] = {}
    by_folder: dict[PurePosixPath, list[PurePosixPath]] = {}
    for file in tree.files:
        image = PurePosixPath(source.relative(file.path))
        if image.suffix.lower() in IMAGE_SUFFIXES:
            by_folder.setdefault(image.parent, []).append(image)
    for inside, images in by_folder.items():
        folder = root / inside
        numbered: dict[str, dict[str, PurePosixPath]] = {}
        plain = []
        for image in images:
            if match := _NUMBERED.fullmatch(image.stem):
                numbered.setdefault(match[1], {})[match[2]] = image
            else:
                plain.append(image)
        for stem, frames in numbered.items():
            if len(frames) < 3:
                raise ValueError(
                    f"{folder}: of {stem}_frame0, _frame1 and _frame2 one is missing; a triplet has all three"
                )
            found[str(inside / stem)] = (str(frames["0"]), str(frames["1"]), str(frames["2"]))
        if len(plain) == 3:
            by_stem = sorted(plain, key=lambda image: image.stem)
            found[str(inside)] = (str(by_stem[0]), str(by_stem[1]), str(by_stem[2]))
        elif plain:
            raise ValueError(
                f"{folder} has {len(plain)} images; the folder of a triplet has three, in the order of their names, "
                "or images are named x_frame0, x_frame1, x_frame2"
            )
    if not found:
        raise ValueError(f"{root} has no frame triplets: no {MANIFEST}, no {_VIMEO_LISTS['train']}, no images")
    return [
        ImageFiles(name, "val" if n % _VAL_EVERY == _VAL_EVERY - 1 else "train", found[name])
        for n, name in enumerate(sorted(found))
    ]


def _vimeo(root: Path) -> list[ImageFiles]:
    """The triplets of Vimeo-90k, by its lists."""
    entries = []
    for split, file in _VIMEO_LISTS.items():
        if not (root / file).is_file():
            continue
        names = [line.strip() for line in split_lines(decode((root / file).read_bytes())) if line.strip()]
        for n, name in enumerate(names):
            folder = f"sequences/{name}"
            own = "val" if split == "train" and n % _VIMEO_VAL_EVERY == _VIMEO_VAL_EVERY - 1 else split
            entries.append(ImageFiles(name, own, (f"{folder}/im1.png", f"{folder}/im2.png", f"{folder}/im3.png")))
    return entries


# -- building ------------------------------------------------------------------------------------------------------


def triplet_schema() -> pa.Schema:
    """The columns of a stored triplet; the frames are PNG."""
    fields = [pa.field("row_id", pa.string(), nullable=False), pa.field("split", pa.string(), nullable=False)]
    fields += [pa.field(name, pa.binary(), nullable=False) for name in _FRAMES]
    return pa.schema([*fields, pa.field("source", pa.string(), nullable=False)])


def build(config: TripletsConfig, path: str, run: Runner, *, overwrite: bool = False) -> Manifest:
    """Build the folder of triplets at ``path``, or resume an interrupted build; a complete one is left as it is.

    Args:
        run: runs the chunks; a job passes the function for its cluster.
        overwrite: replace triplets of other settings or videos.

    Raises:
        ValueError: a video cannot be read, or ``path`` holds triplets of other inputs or settings.
        TooManyRejects: more triplets than ``config.max_reject_share`` could not be made.
    """
    source = triplet_source(config)
    unused = {"ordered_pairs": True, "variation": True, "several": True}  # of scenes in motion
    settings = config.model_dump(
        mode="json", exclude={"videos": True, "workers": True, "max_reject_share": True, "scenes": unused}
    )
    inputs = [video_fingerprint(video) for video in config.videos]
    folder = DatasetFolder.open_for_build(
        path,
        kind="triplets",
        schema=triplet_schema(),
        fingerprint=fingerprint("triplets", VERSION, settings, inputs),
        config=config.model_dump(mode="json"),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
    )
    stage = StageSpec(CutVideos if config.videos else RenderTriplets, {"config": config}, concurrency=config.workers)
    return run(folder, source, [stage], max_reject_share=config.max_reject_share, name="triplets")


@dataclass(frozen=True)
class VideoSource:
    """Source of triplets to cut: columns ``row_id``, ``split``, ``source`` (the video) and ``start`` (a frame number).
    A chunk belongs to one video."""

    counts: tuple[tuple[str, int], ...]
    every: int
    val_share: float
    chunk_size: int

    @property
    def num_chunks(self) -> int:
        return sum(-(-count // self.chunk_size) for _, count in self.counts)

    def read(self, chunk_id: int) -> Batch:
        number = 0
        while chunk_id >= (chunks := -(-self.counts[number][1] // self.chunk_size)):
            chunk_id -= chunks
            number += 1
        video, count = self.counts[number]
        picked = range(chunk_id * self.chunk_size, min((chunk_id + 1) * self.chunk_size, count))
        held_out = count - round(self.val_share * count)
        return {
            "row_id": [f"{number:03d}-{Path(video).stem}-{n * self.every:07d}" for n in picked],
            "split": ["val" if n >= held_out else "train" for n in picked],
            "source": [video] * len(picked),
            "start": [n * self.every for n in picked],
        }


@dataclass(frozen=True)
class SceneSource:
    """Source of scenes to render: columns ``row_id``, ``split``, ``source`` and ``start`` (a scene number)."""

    scenes: MotionConfig
    chunk_size: int

    @property
    def num_chunks(self) -> int:
        return -(-self.scenes.num_scenes // self.chunk_size)

    def read(self, chunk_id: int) -> Batch:
        picked = range(chunk_id * self.chunk_size, min((chunk_id + 1) * self.chunk_size, self.scenes.num_scenes))
        return {
            "row_id": [f"r{self.scenes.seed}-{n:06d}" for n in picked],
            "split": [split_of(self.scenes, n) for n in picked],
            "source": [f"rendered:seed={self.scenes.seed}:scene={n}" for n in picked],
            "start": list(picked),
        }


def triplet_source(config: TripletsConfig) -> VideoSource | SceneSource:
    """Make the source of ``config``; opens videos to count their frames."""
    if config.scenes is not None:
        return SceneSource(config.scenes, config.chunk_size)
    span = 2 * config.gap + 1
    frames = [(video, count_frames(video)) for video in config.videos]
    counts = tuple((video, (count - span) // config.every + 1 if count >= span else 0) for video, count in frames)
    if not any(count for _, count in counts):
        raise ValueError(
            f"videos: none has the {span} frames that a triplet of gap={config.gap} needs; take a smaller gap"
        )
    return VideoSource(counts, config.every, config.val_share, config.chunk_size)


class CutVideos:
    """Adds ``first``, ``middle``, ``last`` (PNG), cut from ``source`` (a video) at ``start``; skips still triplets."""

    def __init__(self, config: TripletsConfig) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.config = config

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        rows = good_rows(batch)
        frames: dict[int, np.ndarray] = {}
        columns: dict[str, list[bytes | None]] = {name: [None] * len(batch["error"]) for name in _FRAMES}
        if rows:  # a chunk is of one video
            gap = self.config.gap
            numbers = {batch["start"][i] + n * gap for i in rows for n in range(3)}
            frames = read_frames(batch["source"][rows[0]], numbers, self.config.max_side)
        still = set()
        for i in rows:
            wanted = [batch["start"][i] + n * self.config.gap for n in range(3)]
            if lost := [n for n in wanted if n not in frames]:
                batch["error"][i] = f"no frame: {lost[0]} of {batch['source'][i]}"
                continue
            if np.abs(frames[wanted[0]].astype(np.int16) - frames[wanted[2]]).mean() < self.config.min_motion:
                still.add(i)
                continue
            for name, number in zip(_FRAMES, wanted, strict=True):
                columns[name][i] = encode_png(frames[number], compress_level=1)
        return take({**batch, **columns}, [i for i in range(len(batch["error"])) if i not in still])


class RenderTriplets:
    """Adds ``first``, ``middle`` and ``last`` (PNG), rendered from the scene with the number ``start``."""

    def __init__(self, config: TripletsConfig) -> None:
        from idc.vision.interpolation.moving_scenes import MotionRenderer

        assert config.scenes is not None
        self.renderer = MotionRenderer(config.scenes)

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        columns: dict[str, list[bytes | None]] = {name: [None] * len(batch["error"]) for name in _FRAMES}
        for i in good_rows(batch):
            try:
                frames = self.renderer.frames(int(batch["start"][i]))
            except UnplaceableScene as error:
                batch["error"][i] = f"unplaceable scene: {error}"
                continue
            for name, frame in zip(_FRAMES, frames, strict=True):
                columns[name][i] = encode_png(frame)
        return {**batch, **columns}
