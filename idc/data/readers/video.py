"""Clips of a fixed camera: a frame and a later one are a pair without captions.

The source is a clip, or a folder of clips, on a local disk. A pair is ``clip.mp4-0000120``: clip and number of its
first frame. The last parts of every clip are val and test, by the configured shares, so that neighbours stay together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from idc.data import files
from idc.data.config import ImportConfig
from idc.data.images import encode_png
from idc.data.pipeline import Batch
from idc.data.readers.base import access, outside_rows, rows_to_batch, unread
from idc.data.store import fingerprint
from idc.data.video_frames import clip_fingerprint, count_frames, read_frames

SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg"})


class VideoReader:
    """Cuts pairs at the distance of ``config.video``; see the module's text.

    Raises:
        ValueError: there is no clip, or none that can be read and has enough frames.
    """

    def __init__(self, source: files.Location, config: ImportConfig) -> None:
        if source.local is None:
            raise ValueError(f"{source}: videos are read from a local disk; copy them to this machine first")
        self._root = Path(source.local)
        clips = [self._root] if self._root.is_file() else []
        others: list[Path] = []
        tree = source.scan(config.follow_links)
        for file in sorted(Path(name) for name in [*(file.path for file in tree.files), *tree.special]):
            (clips if file.suffix.lower() in SUFFIXES else others).append(file)
        if not clips:
            raise ValueError(f"{source} is not a video and has none: {', '.join(sorted(SUFFIXES))}")
        self.reader = files.Reader(source, access("video", config))
        self._config = config.video
        self._rejects = outside_rows(tree, source)
        self._chunks: list[tuple[Path, list[tuple[int, str]]]] = []
        prints: dict[str, str] = {}
        short = []
        for clip in clips:
            try:
                if clip != self._root:
                    self.reader.locate(self._name(clip))
                last = count_frames(str(clip)) - 1 - self._config.distance
            except files.OutsideSource as exc:
                self._rejects.append({"pair_id": self._name(clip), "error": f"outside the source: {exc}"})
                continue
            except ValueError as exc:
                self._rejects.append({"pair_id": self._name(clip), "error": f"bad file: {exc}"})
                continue
            prints[self._name(clip)] = clip_fingerprint(str(clip))
            starts = list(range(0, last + 1, self._config.every))
            if not starts:
                short.append(self._name(clip))
            val = len(starts) - round((config.val_share + config.test_share) * len(starts))
            test = len(starts) - round(config.test_share * len(starts))
            named = [(s, "train" if n < val else "val" if n < test else "test") for n, s in enumerate(starts)]
            size = config.chunk_size
            self._chunks += [(clip, named[at : at + size]) for at in range(0, len(named), size)]
        if not self._chunks:
            why = "; ".join(row["error"] for row in self._rejects) or f"none has {self._config.distance + 1} frames"
            raise ValueError(f"{source} has no pair: {why}")
        notes = ["cut from video: no pair has a caption or a change type"]
        if short:
            notes.append(f"shorter than video.distance = {self._config.distance} frames: {', '.join(short)}")
        notes += unread([self._name(file) for file in others], "no clip")
        self.extra: dict[str, Any] = {"notes": notes}
        self.fingerprint = fingerprint("video", config.chunk_size, self._config.model_dump(), prints,
                                       [config.val_share, config.test_share])  # fmt: skip

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        clip, starts = self._chunks[chunk_id]
        wanted = {start + after for start, _ in starts for after in (0, self._config.distance)}
        frames = read_frames(str(clip), wanted, self._config.max_side)
        rows = list(self._rejects) if chunk_id == 0 else []
        for start, split in starts:
            row = self._row(clip, start, split, frames)
            if row is not None:
                rows.append(row)
        return rows_to_batch(rows)

    def _row(self, clip: Path, start: int, split: str, frames: dict[int, np.ndarray]) -> dict[str, Any] | None:
        """A pair, or None if too little changed."""
        end = start + self._config.distance
        row: dict[str, Any] = {
            "pair_id": f"{self._name(clip)}-{start:07d}",
            "split": split,
            "source": f"{self._name(clip)}:{start}-{end}",
            "meta": {"clip": self._name(clip), "frames": [start, end]},
        }
        if lost := [number for number in (start, end) if number not in frames]:
            return {**row, "error": f"missing file: frame {lost[0]} of {self._name(clip)} cannot be read"}
        if np.abs(frames[start].astype(np.int16) - frames[end]).mean() < self._config.min_change:
            return None
        return {**row, "before": encode_png(frames[start]), "after": encode_png(frames[end])}

    def _name(self, clip: Path) -> str:
        return clip.name if clip == self._root else clip.relative_to(self._root).as_posix()
