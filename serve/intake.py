"""The body of a request of either interface becomes a :class:`ParsedRequest` (a conversation in
:mod:`serve.conversation`), and its images become files. No pixel is decoded here: images are measured by their headers,
and what exceeds the limits is refused first."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from starlette.datastructures import UploadFile

from idc.captioning.counted import Box
from idc.data.images import FORMAT_NAMES, ImageError, open_image, refused_format
from idc.data.tiff_header import geo_header
from serve.backend import EncodedPair, Options, PolygonsOption, RequestDialogue
from serve.config import LimitsConfig
from serve.errors import ApiError
from serve.schema import CaptionForm

Source = str | UploadFile
"""An image in a request: a data URL, or an uploaded file."""
_SAMPLES = 4
"""Bytes of a pixel, of all bands together, that a GeoTIFF of the most pixels may have; GDAL decodes all bands of a
block."""
_FAULTS = {
    "too many scans": ("too_many_scans", "{detail}, which takes too long; save it as a plain JPEG"),
    "too much metadata": (
        "too_much_metadata",
        "the image has too much metadata (text or a colour profile); save it without",
    ),
}
"""Code of an :class:`ImageError` -> the code and the reason for clients."""


@dataclass(frozen=True)
class PairSource:
    """The two images of a pair as the client sent them.

    Attributes:
        fields: how error messages refer to the two images.
        dialogue: the text of the conversation in which they were sent, if it has any.
    """

    before: Source
    after: Source
    fields: tuple[str, str] = ("before", "after")
    dialogue: RequestDialogue | None = None


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request for captions.

    Attributes:
        model: name of the requested model; None for the default.
        single: whether the request has one pair by itself: if it cannot be captioned, the request fails.
        stream: whether to answer by server-sent events.
        include_usage: whether a streamed chat completion ends with its usage.
        stop: a chat completion's texts end before the first of these.
        ignore, only: parts of the images after that do not count, and that alone count.
    """

    model: str | None
    options: Options
    pairs: tuple[PairSource, ...]
    single: bool
    stream: bool
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    ignore: tuple[Box | Source, ...] = ()
    only: tuple[Box | Source, ...] = ()


def of_form(form: CaptionForm) -> ParsedRequest:
    """The job of a form: as many images before as after, in the same order.

    Raises:
        ApiError: 422, the numbers differ, or there are fewer beams than candidates.
    """
    before, after = form.before, form.after
    if len(before) != len(after):
        counts = f"{len(before)} files before and {len(after)} after"
        raise ApiError(422, "unequal_pairs", f"{counts}; send the same number of each", "after")
    if form.beams is not None and form.beams < (least := form.candidates):
        message = f"beams: {form.beams} is less than candidates={least}; set beams={least} or leave it out"
        raise ApiError(422, "too_few_beams", message, "beams")
    single = len(before) == 1
    pairs = tuple(
        PairSource(*files, ("before", "after") if single else (f"pairs.{index}.before", f"pairs.{index}.after"))
        for index, files in enumerate(zip(before, after, strict=True))
    )
    options = Options(form.beams, form.candidates, form.change_map, form.objects, form.polygons)
    return ParsedRequest(form.model, options, pairs, single, form.stream, ignore=form.ignore, only=form.only)


class RequestPairReader:
    """Reads the images of jobs within the limits."""

    def __init__(self, limits: LimitsConfig):
        self._limits, self._max_bytes = limits, int(limits.image_mib * 2**20)

    async def read(self, job: ParsedRequest) -> list[EncodedPair | str]:
        """The image files of all pairs, their headers checked; a refused pair is represented by the reason.

        Raises:
            ApiError: the only pair of a ``single`` job is refused, or a mask.
        """
        ignore, ignore_pixels = await self._parts(job.ignore, "ignore")
        only, only_pixels = await self._parts(job.only, "only")

        async def read(pair: PairSource) -> EncodedPair:
            sources = [await self._received(pair.before), await self._received(pair.after)]
            # In a thread: the parsers of headers are loops in Python, and other requests would wait for them.
            encoded = await asyncio.to_thread(self._encoded, pair, sources, job.options.polygons)
            return replace(encoded, pixels=encoded.pixels + ignore_pixels + only_pixels, ignore=ignore, only=only)

        async def pair_or_reason(pair: PairSource) -> EncodedPair | str:
            try:
                return await read(pair)
            except ApiError as error:
                return error.message

        return [await read(*job.pairs)] if job.single else await asyncio.gather(*map(pair_or_reason, job.pairs))

    async def _parts(self, parts: Sequence[Box | Source], field: str) -> tuple[tuple[Box | bytes, ...], int]:
        """Boxes and the files of masks, their headers checked, and the number of the masks' pixels."""
        received: list[Box | bytes] = []
        pixels = 0
        for part in parts:
            if isinstance(part, tuple):
                received.append(part)
            else:
                received.append(file := self._file(await self._received(part), field))
                pixels += await asyncio.to_thread(self._check_header, file, field)
        return tuple(received), pixels

    async def _received(self, source: Source) -> bytes | str:
        """An image file, slightly more than the limit of one that is too large; or its data URL."""
        return source if isinstance(source, str) else await source.read(self._max_bytes + 1)

    def _encoded(self, pair: PairSource, sources: Sequence[bytes | str], polygons: PolygonsOption) -> EncodedPair:
        """The files of a pair, their headers checked."""
        before, after = files = [self._file(*each) for each in zip(sources, pair.fields, strict=True)]
        pixels = 0 if polygons == "never" else self._check_geotiffs(files, pair.fields, polygons == "always")
        is_georeferenced = pixels > 0
        pixels = pixels or sum(map(self._check_header, files, pair.fields))
        return EncodedPair(before, after, pair.dialogue, is_georeferenced, pixels)

    def _file(self, received: bytes | str, field: str) -> bytes:
        """The bytes of a file, or of a data URL."""
        if isinstance(received, str):
            head, comma, encoded = received.partition(",")
            if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
                message = f"{field}: an image is a data URL of the form data:image/...;base64,..."
                raise ApiError(400, "invalid_data_url", message, field)
            if len(encoded) * 3 // 4 > self._max_bytes + 3:
                raise self._too_large(field)
            try:
                received = base64.b64decode(encoded, validate=True)
            except ValueError:  # binascii.Error, or letters that are not ASCII
                raise ApiError(400, "invalid_base64", f"{field}: the data URL is not base64", field) from None
        if len(received) > self._max_bytes:
            raise self._too_large(field)
        return received

    def _check_geotiffs(self, files: Sequence[bytes], fields: tuple[str, str], required: bool) -> int:
        """The pixels of two GeoTIFFs within the limits; 0 if one of the files is none, and this is not ``required``."""
        headers = [geo_header(data) for data in files]
        if None in headers:
            if not required:
                return 0
            data, field = files[headers.index(None)], fields[headers.index(None)]
            self._check_header(data, field)
            message = (
                f"{field}: not a GeoTIFF with a georeference, so that polygons have no position; write it into "
                "the file (rio edit-info), or leave polygons=always out"
            )
            raise ApiError(400, "no_georeference", message, field)
        if find_spec("rasterio") is None:
            message = (
                f"{fields[0]}: a GeoTIFF, for which this server lacks rasterio: pip install 'idc[geo]' there, or send "
                "polygons=never for a caption alone"
            )
            raise ApiError(422, "extra_missing", message, fields[0])
        pixels = 0
        for header, field in zip(headers, fields, strict=True):
            assert header is not None
            pixels += self._check_size(header.width, header.height, field)
            if header.height * header.width * header.bands * header.bits > 8 * _SAMPLES * self._limits.image_pixels:
                raise self._too_many_pixels(field, f"{header.bands} bands of {header.bits} bits")
        return pixels

    def _check_header(self, data: bytes, field: str) -> int:
        """The number of pixels of a readable image within the limits."""
        if not data:
            raise ApiError(400, "empty_image", f"{field}: the image is empty", field)
        try:
            with open_image(data) as image:
                size = image.size
        except ImageError as error:
            if error.code == "too many pixels":
                raise self._too_many_pixels(field, "an implausible number of pixels") from None
            name = refused_format(data)
            why = f"{name} is not read; convert it to JPEG" if name else f"supported formats are {FORMAT_NAMES}"
            code, reason = _FAULTS.get(error.code, ("not_an_image", f"not a readable image; {why}"))
            raise ApiError(400, code, f"{field}: {reason.format(detail=error.detail)}", field) from None
        return self._check_size(*size, field)

    def _check_size(self, width: int, height: int, field: str) -> int:
        limits = self._limits
        if width * height > limits.image_pixels or max(width, height) > limits.image_side:
            raise self._too_many_pixels(field, f"{width} x {height} pixels")
        if min(width, height) < limits.image_min_side:
            message = f"{field}: {width} x {height} pixels; the minimum is {limits.image_min_side} per side"
            raise ApiError(400, "image_too_small", message, field)
        return width * height

    def _too_large(self, field: str) -> ApiError:
        message = f"{field}: the image file exceeds the limit of {self._limits.image_mib:g} MiB"
        return ApiError(413, "image_too_large", message, field)

    def _too_many_pixels(self, field: str, size: str) -> ApiError:
        most, side = self._limits.image_pixels, self._limits.image_side
        message = f"{field}: {size}; the limit is {most:,} pixels and {side:,} per side; send a smaller copy"
        return ApiError(413, "too_many_pixels", message, field)
