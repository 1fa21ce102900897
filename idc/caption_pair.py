"""Two image files in, what the captioner tells of them out: the one-pair part of ``jobs/caption.py``. Any system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idc.data.images import ImageError, decode_image, encode_png, read_bytes
from idc.describe import draw_map
from idc.systems import load_captioner

FRAME_ENDS = (".png", ".gif")
"""Ends of files that frames are written to: side by side, or as a film that repeats."""


def caption_pair(
    artifact: str,
    before: str,
    after: str,
    *,
    device: str = "cpu",
    beams: int | None = None,
    candidates: int = 1,
    map_to: str | None = None,
    frames_to: str | None = None,
) -> dict[str, Any]:
    """Caption two image files or URIs.

    Args:
        beams, candidates: as :meth:`idc.describe.Describer.describe`.
        map_to: PNG file for the change map, in the shape of the image after.
        frames_to: PNG or GIF file for what the model imagines between the images.

    Returns:
        What ``--json`` prints.

    Raises:
        ValueError: images that cannot be read (all of them are named), no captioner, or one that cannot do this.
        OSError: a file cannot be written.
    """
    if frames_to is not None and Path(frames_to).suffix.lower() not in FRAME_ENDS:
        raise ValueError(f"{frames_to}: frames are written to a file that ends in {' or '.join(FRAME_ENDS)}")
    if map_to is not None and Path(map_to).suffix.lower() != ".png":
        raise ValueError(f"{map_to}: the change map is written to a file that ends in .png")
    first, second = _read(before, after)
    captioner = load_captioner(artifact, device)
    [told] = captioner.describe([first], [second], beams=beams, candidates=candidates, change_map=map_to is not None)
    if map_to is not None and told.change_map is not None:
        Path(map_to).write_bytes(encode_png(draw_map(told.change_map, second.shape[:2])))
    if frames_to is not None:
        _write_frames(Path(frames_to), captioner.imagine(first, second))
    found: dict[str, Any] = {
        "before": before,
        "after": after,
        "artifact": artifact,
        "caption": told.best.caption,
        "confidence": told.best.confidence,
        **told.assessment.to_dict(),
        "candidates": [one.told() for one in told.candidates],
    }
    written = {"map": map_to, "frames": frames_to}
    return found | {name: path for name, path in written.items() if path is not None}


def _read(*paths: str) -> list[np.ndarray]:
    images, faults = [], []
    for path in paths:
        try:
            images.append(decode_image(read_bytes(path)))
        except (OSError, ImageError) as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise ValueError("\n".join(faults))
    return images


def _write_frames(path: Path, frames: Sequence[np.ndarray]) -> None:
    if path.suffix.lower() == ".png":
        path.write_bytes(encode_png(np.concatenate(frames, axis=1)))
        return
    first, *others = (Image.fromarray(frame) for frame in frames)
    pauses = [1200, *[500] * (len(frames) - 2), 1200]
    first.save(path, save_all=True, append_images=others, duration=pauses, loop=0)
