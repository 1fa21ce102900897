"""Images of several frames: animations (GIF, PNG, WebP) and TIFFs of several pages. All else uses the first frame."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from idc.data.images import MAX_PIXELS, check_tiff, loaded_image, upright
from idc.data.tiff_header import tiff_directories

_MAX_FRAMES = 100
"""Most frames of an image that are compared; of large ones as many as have :data:`MAX_PIXELS` together."""
_NAMED = 5
"""Most frames that a note names."""
_SUBFILE, _REDUCED_OR_MASK = 254, 5
"""Tag of a page of a TIFF, and the flags in it of overviews and masks, which are no pages."""


class FramePair(NamedTuple):
    """The frames of two images that are described, uint8 RGB (H, W, 3), and a sentence on the other frames."""

    before: np.ndarray
    after: np.ndarray
    note: str | None


def has_frames(data: bytes) -> bool:
    """Whether an image may have several frames, by its header."""
    if data[:2] in (b"II", b"MM"):
        try:
            return len(tiff_directories(io.BytesIO(data))) > 1
        except ValueError:  # too many
            return True
    if data.startswith(b"RIFF"):
        return data[12:16] == b"VP8X" and bool(data[20] & 2)
    return data.startswith(b"GIF8") or b"acTL" in data[: max(0, data.find(b"IDAT"))]


def frames_to_describe(before: bytes, after: bytes, max_pixels: float = MAX_PIXELS) -> FramePair:
    """The first frames of two images that differ; the first ones if none does, or one image has more frames.

    Raises:
        ImageError: as :func:`idc.data.images.decode_image`.
    """
    pairs = zip_longest(_frames(before, max_pixels), _frames(after, max_pixels))
    first = chosen = next(pairs)
    most = min(_MAX_FRAMES, MAX_PIXELS // max(frame.size // 3 for frame in first))
    different, count, note = list[int](), 0, ""
    for frames in chain([first], pairs):
        if count and count >= most:
            note = f"Of the frames of both images only the first {count} were compared. "
            break
        if any(frame is None for frame in frames):
            unequal = "The images have several frames, not equally many or damaged: only the first ones were compared."
            return FramePair(*first, unequal)
        count += 1
        if not np.array_equal(*frames):
            chosen = chosen if different else frames
            different.append(count)
    if count > 1 and different:
        names = ", ".join(map(str, different[:_NAMED])) + (", ..." if len(different) > _NAMED else "")
        note += f"Of {count} frames {len(different)} differ ({names}): only frame {different[0]} is described."
    return FramePair(*chosen, note.strip() or None)


def _frames(data: bytes, max_pixels: float) -> Iterator[Any]:
    """The frames of an image one after another; None for a damaged or too large one, which is the last."""
    with loaded_image(data, max_pixels) as image:
        yield upright(image, alpha=True)
        number = 1
        try:
            check_tiff(data, others=True)
            while True:
                image.seek(number)
                number += 1
                tags = getattr(image, "tag_v2", {})
                if image.width * image.height > max_pixels:
                    raise ValueError("too large")
                if not tags.get(_SUBFILE, 0) & _REDUCED_OR_MASK:
                    yield upright(image, alpha=True)
        except EOFError:
            return
        except Exception:  # as decoders raise any for damaged frames
            yield None
