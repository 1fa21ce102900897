"""Caption one pair of image files, for any system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from idc.captioning.apply import (
    CaptionSettings,
    DecodedFile,
    Pixels,
    decode_file,
    describe_batch,
    pixels_of,
    with_objects,
)
from idc.captioning.contract import assessment_text, draw_map, sentence_without_model
from idc.captioning.loading import DEFAULTS, CaptionerLoader
from idc.captioning.region_of_interest import read_areas
from idc.captioning.sources import AUTO, SHIPPED_SATELLITE
from idc.data.files import Location, locate
from idc.data.images import ImageError, encode_png
from idc.data.object_store import first_look
from idc.data.tiff_header import GeoHeader, geo_header
from idc.systems import untrained_captioner
from idc.util.option_values import DiskPath

ReadGeotiffs = Callable[[bytes, bytes, tuple[str, str]], Pixels]
"""Reads a pair of GeoTIFFs, given their names for messages, or raises ValueError; passed in, because the package that
reads them depends on this one."""


class PairJob(CaptionSettings):
    """Caption two images."""

    before: str
    """Image before the change: a file or URI."""
    after: str
    """Image after the change."""
    artifact: str | None = Field(None, min_length=1)
    """A captioner: `auto`, `objects`, `regions`, `shipped`, `shipped-satellite`, `hf:ORG/NAME`, `models:/NAME@ALIAS`,
    or the artifact folder of a training run. Default: auto, or for two GeoTIFFs shipped-satellite."""
    map: DiskPath | None = None
    """PNG file for the change map, white on black, over the image after; its folder is created."""
    as_json: bool = Field(False, json_schema_extra={"option": "--json"})
    """Print JSON: captions, confidences, verdict."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if self.map is not None and not self.map.lower().endswith(".png"):
            yield f"map: {self.map}: the change map is written to a file that ends in .png"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if not all(Path(path).is_file() or "://" in path for path in (self.before, self.after)):
            return  # which is said without asking the hub for a model
        try:
            if self.loader.objects != DEFAULTS.objects:
                untrained_captioner(self.objects)
        except ValueError as error:
            setting = str(error).partition(":")[0].partition(".")[0]
            yield str(error) if setting in type(self).model_fields else f"artifact: {error}"

    @cached_property
    def headers(self) -> list[GeoHeader]:
        """The headers of both images, if both are GeoTIFFs; else none."""
        paths = self.before, self.after
        if not all(path.lower().endswith((".tif", ".tiff")) for path in paths):
            return []
        try:
            headers = [header for path in paths if (header := geo_header(_file(path).read())) is not None]
        except OSError:
            return []
        return headers if len(headers) == len(paths) else []

    @cached_property
    def chosen_artifact(self) -> str:
        """The artifact, or the one that these images get where none is named."""
        return self.artifact or (SHIPPED_SATELLITE if self.headers else AUTO)

    @cached_property
    def loader(self) -> CaptionerLoader:
        """Of the captioner; ValueError as of :class:`~idc.captioning.loading.CaptionerLoader`."""
        return CaptionerLoader(self.chosen_artifact, self)


def caption_pair(job: PairJob, geotiffs: ReadGeotiffs | None = None) -> dict[str, Any]:
    """Caption two image files or URIs. ``geotiffs``: reads two GeoTIFFs, where rasterio is installed; by default they
    are images like others. Returns the object that ``--json`` prints.

    Raises:
        ValueError: images that cannot be read (all of them are named), no captioner, or a captioner without a
            requested capability.
        OSError: a file cannot be written; where that can be captioned out, before anything is captioned.
    """
    if job.map is not None:
        _check_map_file(Path(job.map))
    before, after = names = job.before, job.after
    if job.headers and geotiffs is not None and _has_rasterio(job):
        pixels = geotiffs(_file(before).read(), _file(after).read(), names)
    else:
        first, second = read_images(*names)
        pixels = pixels_of(first, second)
    pixels = pixels.counting(read_areas(job.ignore), read_areas(job.only))
    options = replace(job.search_options(), change_map=job.map is not None)
    [captioned] = describe_batch(job.loader(), [pixels], [options], job.objects)
    assert captioned.description is not None
    assert isinstance(captioned.pixels, Pixels)
    description = with_objects(captioned.description, pixels, options, job.objects)
    captioner = description.captioner or job.chosen_artifact
    if job.map is not None:
        if description.change_map is None:
            raise ValueError(
                f"--map: {captioner}, to which this pair went, has no change map; name another: --artifact"
            )
        Path(job.map).write_bytes(encode_png(draw_map(description.change_map, captioned.pixels.after.shape[:2])))
    return {
        "before": before,
        "after": after,
        "artifact": job.loader.folder_of(description),
        **description.to_dict(),
        "captioner": captioner,
        **({} if job.map is None else {"map": job.map}),
    }


def caption_text(result: dict[str, Any]) -> str:
    """The lines for a terminal, of a result of :func:`caption_pair`: for an unfamiliar pair what `objects` says;
    caption, confidence, verdict and captioner; then the other candidates."""
    captioner = result["captioner"] + (f": {result['chosen']}" if result["chosen"] else "")
    first = f"{result['caption']}  [{assessment_text(result)}; captioner {captioner}]"
    others = [
        f"{candidate['caption']}  [confidence {100 * candidate['confidence']:.0f} %]"
        for candidate in result["candidates"][1:]
    ]
    return "\n".join(filter(None, [sentence_without_model(result), first, *others]))


def _check_map_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{path}: cannot be written; give another file")


def read_images(*paths: str) -> list[DecodedFile]:
    """The images or documents of files or URIs; a ValueError names all that cannot be read."""
    images, faults = [], []
    for path in paths:
        try:
            images.append(decode_file(_file(path).read()))
        except (OSError, ImageError) as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise ValueError("\n".join(faults))
    return images


def _has_rasterio(job: PairJob) -> bool:
    """Whether GeoTIFFs are read by the rules of scenes; without rasterio 8-bit ones are images like others, and those
    of other bits or bands a ValueError."""
    if find_spec("rasterio") is not None:
        return True
    for path, header in zip((job.before, job.after), job.headers, strict=True):
        if header.bits > 8 or header.bands > 4:
            raise ValueError(
                f"{path} is a GeoTIFF of {header.bands} band{'s' * (header.bands > 1)} of {header.bits} bits; "
                "pip install 'idc[geo]', with which jobs/caption.py --out reads it, or convert it to 8-bit RGB"
            )
    return False


def _file(path: str) -> Location:
    """The location of an image; an OSError says what to do with a web address or a folder."""
    if path.lower().startswith(("http://", "https://")):
        raise OSError("a web address; download the image, and give its file")
    location = locate(path)
    if first_look(location.is_folder, path):
        raise OSError(
            "a folder, not an image; for many pairs: python jobs/caption.py --input FOLDER --out captions, where FOLDER"
            " holds before/ and after/"
        )
    return location
