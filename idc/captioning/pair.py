"""Caption one pair of image files, for any system (``jobs/caption.py``: :mod:`idc.captioning.pair_command`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from idc.captioning.apply import DescribeOptions, Pixels, describe_batch
from idc.captioning.contract import assessment_text, draw_map, sentence_without_model
from idc.captioning.counted import read_parts
from idc.captioning.loading import AUTO, DEFAULTS, SHIPPED_SATELLITE, CaptionerLoader, LoadConfig, artifact_folder
from idc.data.files import Location, locate
from idc.data.images import ImageError, decode_image, encode_png
from idc.data.tiff_header import geo_header

ReadGeotiffs = Callable[[bytes, bytes, tuple[str, str]], Pixels]
"""Reads a pair of GeoTIFFs, given their names for messages, or raises ValueError; passed in, because the package that
reads them depends on this one."""


def caption_pair(
    artifact: str,
    before: str,
    after: str,
    *,
    load: LoadConfig = DEFAULTS,
    geotiffs: ReadGeotiffs | None = None,
    beams: int | None = None,
    candidates: int = 1,
    map_to: str | None = None,
    ignore: Sequence[str] = (),
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Caption two image files or URIs with an artifact.

    Args:
        artifact: its folder, or another name of a captioner.
        load: how the captioner is loaded.
        geotiffs: reads two GeoTIFFs, where rasterio is installed; by default they are images like others.
        beams, candidates: as :meth:`idc.captioning.contract.Captioner.describe`.
        map_to: PNG file for the change map, in the shape of the image after; its folder is created.
        ignore, only: boxes and mask images of the part that counts (:mod:`idc.captioning.counted`).

    Returns:
        The object that ``--json`` prints.

    Raises:
        ValueError: images that cannot be read (all of them are named), no captioner, or a captioner without a
            requested capability.
        OSError: a file cannot be written; where that can be captioned out, before anything is captioned.
    """
    _prepare_output(map_to)
    pixels = _read_pair(before, after, geotiffs).counting(read_parts(ignore), read_parts(only))
    options = DescribeOptions(beams, candidates, change_map=map_to is not None, objects=load.objects)
    [captioned] = describe_batch(CaptionerLoader(artifact, load)(), [pixels], [options])
    description = captioned.description
    assert description is not None
    captioner = description.captioner or artifact
    if map_to is not None:
        if description.change_map is None:
            raise ValueError(
                f"--map: {captioner}, to which this pair went, has no change map; name another: --artifact"
            )
        Path(map_to).write_bytes(encode_png(draw_map(description.change_map, pixels.after.shape[:2])))
    return {
        "before": before,
        "after": after,
        "artifact": artifact_folder(captioner, load.objects),
        **description.to_dict(),
        "captioner": captioner,
        **({} if map_to is None else {"map": map_to}),
    }


def caption_with_any(
    before: str,
    after: str,
    *,
    artifact: str | None = None,
    load: LoadConfig = DEFAULTS,
    geotiffs: ReadGeotiffs | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Caption two image files with the given artifact; without one, with :data:`idc.captioning.loading.AUTO`, or two
    GeoTIFFs with the one for satellite images.

    Args:
        load, geotiffs, options: as of :func:`caption_pair`.

    Raises:
        ValueError, OSError: as :func:`caption_pair`.
    """
    if artifact is None:
        artifact = SHIPPED_SATELLITE if _georeferenced(before, after) else AUTO
    result = caption_pair(artifact, before, after, load=load, geotiffs=geotiffs, **options)
    if result["warning"] is not None:
        print(result["warning"], file=sys.stderr)
    return result


def caption_text(result: dict[str, Any]) -> str:
    """The lines for a terminal: for an unfamiliar pair what `objects` says; caption, confidence, verdict and captioner;
    then the other candidates.

    Args:
        result: result of :func:`caption_pair`.
    """
    first = f"{result['caption']}  [{assessment_text(result)}; captioner {result['captioner']}]"
    others = [
        f"{candidate['caption']}  [confidence {100 * candidate['confidence']:.0f} %]"
        for candidate in result["candidates"][1:]
    ]
    return "\n".join(filter(None, [sentence_without_model(result), first, *others]))


def _prepare_output(map_to: str | None) -> None:
    """Check before captioning that the map can be written, and create its folder."""
    if map_to is None:
        return
    if Path(map_to).suffix.lower() != ".png":
        raise ValueError(f"{map_to}: the change map is written to a file that ends in .png")
    path = Path(map_to)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{path}: cannot be written; give another file")


def read_images(*paths: str) -> list[tuple[bytes, np.ndarray]]:
    """The images of files or URIs, encoded and decoded.

    Raises:
        ValueError: naming all that cannot be read.
    """
    images, faults = [], []
    for path in paths:
        try:
            images.append((data := _file(path).read(), decode_image(data)))
        except (OSError, ImageError) as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise ValueError("\n".join(faults))
    return images


def _read_pair(before: str, after: str, geotiffs: ReadGeotiffs | None) -> Pixels:
    """The pixels of both images; GeoTIFFs by the rules of scenes, where rasterio is installed.

    Raises:
        ValueError: as :func:`read_images`; or two GeoTIFFs cannot be compared, or not be read without rasterio.
    """
    if geotiffs is None or not _georeferenced(before, after):
        (_, first), (_, second) = read_images(before, after)
        return Pixels(first, second)
    data = _file(before).read(), _file(after).read()
    if find_spec("rasterio") is not None:
        return geotiffs(*data, (before, after))
    for path, header in zip((before, after), map(geo_header, data), strict=True):
        assert header is not None
        if header.bits > 8 or header.bands > 4:
            raise ValueError(
                f"{path} is a GeoTIFF of {header.bands} band{'s' * (header.bands > 1)} of {header.bits} bits; "
                "pip install 'idc[geo]', with which jobs/caption.py --out reads it, or convert it to 8-bit RGB"
            )
    (_, first), (_, second) = read_images(before, after)
    return Pixels(first, second)


def _georeferenced(*paths: str) -> bool:
    """Whether all files are GeoTIFFs, by their names and headers; :func:`read_images` reports those that cannot be
    read."""
    if not all(path.lower().endswith((".tif", ".tiff")) for path in paths):
        return False
    try:
        return all(geo_header(_file(path).read()) is not None for path in paths)
    except OSError:
        return False


def _file(path: str) -> Location:
    """The location of an image, if it can be one.

    Raises:
        OSError: it is a web address or a folder; what to do.
    """
    if path.lower().startswith(("http://", "https://")):
        raise OSError("a web address; download the image, and give its file")
    location = locate(path)
    if location.is_folder():
        raise OSError(
            "a folder, not an image; for many pairs: python jobs/caption.py --input FOLDER --out captions, where FOLDER"
            " holds before/ and after/"
        )
    return location
