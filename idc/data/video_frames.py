"""Frames of video files on a local disk: count, read, fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.files import check_regular
from idc.data.images import resize_image


def read_frames(video: str, wanted: Collection[int], max_side: int | None) -> dict[int, np.ndarray]:
    """Read frames by number, those that exist: uint8 RGB (H, W, 3), downscaled until the longer side has ``max_side``
    pixels."""
    import cv2

    capture = _capture(video)
    capture.set(cv2.CAP_PROP_POS_FRAMES, min(wanted))
    frames = {}
    try:
        for number in range(min(wanted), max(wanted) + 1):
            if not capture.grab():
                break
            if number not in wanted:
                continue
            there, pixels = capture.retrieve()
            if not there:
                continue
            height, width = pixels.shape[:2]
            share = min(1.0, (max_side or max(height, width)) / max(height, width))
            rgb = np.ascontiguousarray(pixels[..., ::-1])  # OpenCV decodes to BGR
            frames[number] = rgb if share == 1 else resize_image(rgb, (round(height * share), round(width * share)))
    finally:
        capture.release()
    return frames


def count_frames(video: str) -> int:
    """Number of frames of a video, by its header.

    Raises:
        ValueError: it cannot be read.
    """
    import cv2

    capture = _capture(video)
    try:
        if not capture.isOpened():
            raise ValueError(f"{video} cannot be read as a video")
        return max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    finally:
        capture.release()


_CONTAINERS = re.compile(
    rb"""(?s)....(?:ftyp|moov|mdat|free|skip|wide|pnot)      # MP4, QuickTime
    |\x1a\x45\xdf\xa3                                       # Matroska, WebM
    |RIFF....AVI\x20
    |\x00\x00\x01[\xb0-\xbf]                               # MPEG program and elementary streams
    |\x47.{187}\x47                                         # MPEG transport stream
    """,
    re.VERBOSE,
)
"""First bytes of video files that contain their frames themselves."""


def _capture(video: str) -> Any:
    """Open a video by FFmpeg.

    A file of any name may be a play list; FFmpeg would read the files that it names, so such files are refused.

    Raises:
        ValueError: it cannot be read, or does not begin like a video.
    """
    import cv2

    try:
        check_regular(video)
        with Path(video).open("rb") as stream:
            begin = stream.read(256)
    except OSError as exc:
        raise ValueError(f"{video} cannot be read as a video: {exc}") from exc
    if not _CONTAINERS.match(begin):
        raise ValueError(f"{video} cannot be read as a video: no MP4, QuickTime, Matroska, WebM, AVI or MPEG file")
    return cv2.VideoCapture(video, cv2.CAP_FFMPEG)


def clip_fingerprint(video: str) -> str:
    """A short hash of a video's name, size, first and last mebibyte; videos are large."""
    path = Path(video)
    size = path.stat().st_size
    digest = hashlib.sha256(json.dumps([path.name, size]).encode())
    with path.open("rb") as stream:
        digest.update(stream.read(1 << 20))
        stream.seek(max(0, size - (1 << 20)))
        digest.update(stream.read())
    return digest.hexdigest()[:20]
