"""One pair of image files in, its caption and an assessment out: the one-pair part of ``jobs/caption.py``. Any system.

The caption comes from an artifact, loaded here, or from a running server
(:mod:`idc.captioning.running_server`).
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idc.captioning import running_server as caption_server
from idc.captioning.contract import draw_map
from idc.data.files import locate
from idc.data.images import ImageError, decode_image, encode_png
from idc.systems import load_captioner, newest_captioner

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
    """Caption two image files or URIs with an artifact.

    Args:
        beams, candidates: as :meth:`idc.captioning.contract.Describer.describe`.
        map_to: PNG file for the change map, in the shape of the image after; its folder is made.
        frames_to: PNG or GIF file for what the model imagines between the images; its folder is made.

    Returns:
        What ``--json`` prints.

    Raises:
        ValueError: images that cannot be read (all of them are named), no captioner, or one that cannot do this.
        OSError: a file cannot be written; where that can be known, before anything is captioned.
    """
    _prepare_outputs(map_to, frames_to)
    (_, first), (_, second) = _read(before, after)
    captioner = load_captioner(artifact, device)
    [told] = captioner.describe([first], [second], beams=beams, candidates=candidates, change_map=map_to is not None)
    frames = captioner.imagine(first, second) if frames_to is not None else ()
    drawn = None if told.change_map is None else encode_png(draw_map(told.change_map, second.shape[:2]))
    return {
        "before": before,
        "after": after,
        "artifact": artifact,
        "caption": told.best.caption,
        "confidence": told.best.confidence,
        **told.assessment.to_dict(),
        "candidates": [one.told() for one in told.candidates],
        **_written(drawn, frames, map_to, frames_to),
    }


def ask_server(
    url: str,
    before: str,
    after: str,
    *,
    beams: int | None = None,
    candidates: int = 1,
    map_to: str | None = None,
    frames_to: str | None = None,
) -> dict[str, Any]:
    """As :func:`caption_pair`, by the default model of a server; with ``server``, ``model`` and ``version`` in place of
    ``artifact``.

    Raises:
        ValueError: as :func:`caption_pair`, or the server is not there or refuses.
        OSError: a file cannot be written.
    """
    _prepare_outputs(map_to, frames_to)
    (first, _), (second, _) = _read(before, after)
    answer = caption_server.ask(
        url,
        first,
        second,
        beams=beams,
        candidates=candidates,
        change_map=map_to is not None,
        imagine=frames_to is not None,
    )
    drawn = _png(answer["change_map"]) if answer["change_map"] is not None else None
    frames = [decode_image(_png(frame)) for frame in answer["frames"] or ()]
    told = ("caption", "confidence", "changed_probability", "familiarity", "familiar", "verdict", "verdict_text")
    return {
        "before": before,
        "after": after,
        "server": url,
        **{name: answer[name] for name in ("model", "version", *told, "warning", "candidates")},
        **_written(drawn, frames, map_to, frames_to),
    }


def caption_somehow(
    before: str,
    after: str,
    *,
    artifact: str | None = None,
    server: str | None = None,
    device: str | None = None,
    **wishes: Any,
) -> dict[str, Any]:
    """Caption two image files by the artifact or server that is named; else by the server that runs on this machine, or
    with the newest captioner below ``runs/``. A line on stderr says which of the last two.

    Args:
        server: URL; ``none`` for no server.
        wishes: the other arguments of :func:`caption_pair`.

    Raises:
        ValueError, OSError: as :func:`caption_pair` and :func:`ask_server`; or there is no captioner.
    """
    if server is None and artifact is None and device is None and (server := caption_server.running_server()):
        print(f"asking the server at {server} (--server none loads a captioner instead)", file=sys.stderr)
    if server is not None and server != "none":
        found = ask_server(server, before, after, **wishes)
    else:
        if artifact is None:
            artifact = newest_captioner()
            if artifact is None:
                raise ValueError("no captioner below runs/: run `make demo` first, or give --artifact FOLDER")
            print(f"captioner: {artifact}, the newest one (--artifact takes another)", file=sys.stderr)
        found = caption_pair(artifact, before, after, device=device or "cpu", **wishes)
    if found["warning"] is not None:
        print(found["warning"], file=sys.stderr)
    return found


def text_of(found: dict[str, Any]) -> str:
    """The lines for a terminal: caption, confidence and whether anything changed; then the other candidates.

    Args:
        found: from :func:`caption_pair` or :func:`ask_server`.
    """
    verdict = found["verdict"]
    if found["verdict_text"] is not None:
        verdict = f"{verdict}: {found['verdict_text']}"
    elif found["changed_probability"] is not None:
        verdict = f"{verdict} (probability of a change {100 * found['changed_probability']:.0f} %)"
    first = f"{found['caption']}  [confidence {100 * found['confidence']:.0f} %; {verdict}]"
    others = [f"{one['caption']}  [confidence {100 * one['confidence']:.0f} %]" for one in found["candidates"][1:]]
    return "\n".join([first, *others])


def _prepare_outputs(map_to: str | None, frames_to: str | None) -> None:
    """Find out before captioning whether the outputs can be written, and make their folders."""
    if frames_to is not None and Path(frames_to).suffix.lower() not in FRAME_ENDS:
        raise ValueError(f"{frames_to}: frames are written to a file that ends in {' or '.join(FRAME_ENDS)}")
    if map_to is not None and Path(map_to).suffix.lower() != ".png":
        raise ValueError(f"{map_to}: the change map is written to a file that ends in .png")
    for path in (Path(given) for given in (map_to, frames_to) if given is not None):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(f"{path}: cannot be written; give another file")


def _read(*paths: str) -> list[tuple[bytes, np.ndarray]]:
    """The images, encoded and decoded."""
    images, faults = [], []
    for path in paths:
        try:
            images.append((data := locate(path).read(), decode_image(data)))
        except (OSError, ImageError) as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise ValueError("\n".join(faults))
    return images


def _png(url: str) -> bytes:
    """The bytes of a data URL."""
    return base64.b64decode(url.partition(",")[2])


def _written(
    drawn: bytes | None, frames: Sequence[np.ndarray], map_to: str | None, frames_to: str | None
) -> dict[str, str]:
    """Write what there is; output -> its file."""
    written = {}
    if map_to is not None and drawn is not None:
        Path(map_to).write_bytes(drawn)
        written["map"] = map_to
    if frames_to is not None and frames:
        _write_frames(Path(frames_to), frames)
        written["frames"] = frames_to
    return written


def _write_frames(path: Path, frames: Sequence[np.ndarray]) -> None:
    if path.suffix.lower() == ".png":
        path.write_bytes(encode_png(np.concatenate(frames, axis=1)))
        return
    first, *others = (Image.fromarray(frame) for frame in frames)
    pauses = [1200, *[500] * (len(frames) - 2), 1200]
    first.save(path, save_all=True, append_images=others, duration=pauses, loop=0)
