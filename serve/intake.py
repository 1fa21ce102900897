"""What both interfaces make of a request, and the reading of its images, within the limits. No pixel is decoded here:
images are measured by their headers, and what exceeds the limits is refused first."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from starlette.datastructures import UploadFile

from idc.captioning.region_of_interest import Box
from idc.data.images import FORMAT_NAMES, ImageError, open_image, refused_format
from idc.data.pdf import NO_PDFIUM, PAGE_PIXELS, is_pdf
from idc.data.tiff_header import geo_header
from serve.backend import EncodedPair, Options, PolygonsOption, RequestDialogue
from serve.config import LimitsConfig
from serve.errors import ApiError

Source = str | UploadFile
"""An image in a request: a data URL, or an uploaded file."""
_SAMPLES = 4
"""Bytes of a pixel, of all bands together, that a GeoTIFF of the most pixels may have; GDAL decodes all bands of a
block."""


@dataclass(frozen=True)
class PairSource:
    """The two images of a pair as the client sent them, the names of their fields, and the conversation's text."""

    before: Source
    after: Source
    fields: tuple[str, str] = ("before", "after")
    dialogue: RequestDialogue | None = None

    def field_of(self, error: str) -> str | None:
        """The field of the image that a reason begins with; None if it is about both."""
        side = error.partition(": ")[0]
        return dict(zip(("before", "after"), self.fields, strict=True)).get(side, side if side in self.fields else None)


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request for captions.

    Attributes:
        model: name of the requested model; None for the default.
        stream: whether to answer by server-sent events.
        include_usage: whether a streamed chat completion ends with its usage.
        stop: a chat completion's texts end before the first of these.
        ignore, only: parts of the images after that do not count, and that alone count.
    """

    model: str | None
    options: Options
    pairs: tuple[PairSource, ...]
    stream: bool
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    ignore: tuple[Box | Source, ...] = ()
    only: tuple[Box | Source, ...] = ()

    @property
    def single(self) -> bool:
        """Whether the request fails if a pair cannot be captioned: it is the only one."""
        return len(self.pairs) == 1


class RequestPairReader:
    """Reads the images of jobs within the limits."""

    def __init__(self, limits: LimitsConfig):
        self._limits, self._max_bytes = limits, int(limits.image_mib * 2**20)

    async def read(self, job: ParsedRequest) -> list[EncodedPair | str]:
        """The image files of all pairs, their headers checked; a refused pair is represented by the reason.

        Raises:
            ApiError: the only pair of a ``single`` job is refused, or a mask.
        """
        ignore, ignored = await self._parts(job.ignore, "ignore")
        only, selected = await self._parts(job.only, "only")
        if (masked := ignored + selected) > (most := 2 * self._limits.image_pixels):  # as the images of a pair may have
            why = f"the masks have {masked:,} pixels; the limit is {most:,} together; send fewer or smaller ones"
            raise _refused("ignore" if ignored else "only", "too_many_pixels", why, 413)

        async def read(pair: PairSource) -> EncodedPair | str:
            try:
                files, pixels, both = await self._files((pair.before, pair.after), pair.fields, job.options.polygons)
            except ApiError as error:
                if job.single:
                    raise
                return error.message
            return EncodedPair(files[0], files[1], pair.dialogue, both, pixels + masked, ignore, only)

        return [await read(*job.pairs)] if job.single else await asyncio.gather(*map(read, job.pairs))

    async def _parts(self, parts: Sequence[Box | Source], field: str) -> tuple[tuple[Box | bytes, ...], int]:
        """Boxes and the files of masks, and the number of the masks' pixels."""
        masks = [part for part in parts if not isinstance(part, tuple)]
        files, pixels, _ = await self._files(masks, [field] * len(masks)) if masks else ([], 0, False)
        return (*(part for part in parts if isinstance(part, tuple)), *files), pixels

    async def _files(
        self, sources: Sequence[Source], fields: Sequence[str], polygons: PolygonsOption = "never"
    ) -> tuple[list[bytes], int, bool]:
        """Image files, their headers checked; the number of their pixels; whether polygons of them are possible."""
        # Slightly more than the limit of a file that is too large.
        received = [each if isinstance(each, str) else await each.read(self._max_bytes + 1) for each in sources]

        def checked() -> tuple[list[bytes], int, bool]:
            files = [self._file(*each) for each in zip(received, fields, strict=True)]
            if fields[0] != fields[-1] and all(map(is_pdf, files)):
                return files, self._document_pixels(fields[0]), False
            if polygons != "never" and (pixels := self._check_geotiffs(files, fields, polygons == "always")):
                return files, pixels, True
            return files, sum(map(self._check_header, files, fields)), False

        # In a thread: the parsers of headers are loops in Python, and other requests would wait for them.
        return await asyncio.to_thread(checked)

    def _file(self, received: bytes | str, field: str) -> bytes:
        if isinstance(received, str):
            head, comma, encoded = received.partition(",")
            if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
                why = "an image is a data URL of the form data:image/...;base64,..."
                raise _refused(field, "invalid_data_url", why)
            if len(encoded) * 3 // 4 > self._max_bytes + 3:
                raise self._too_large(field)
            try:
                received = base64.b64decode(encoded, validate=True)
            except ValueError:  # binascii.Error, or letters that are not ASCII
                raise _refused(field, "invalid_base64", "the data URL is not base64") from None
        if len(received) > self._max_bytes:
            raise self._too_large(field)
        return received

    def _check_geotiffs(self, files: Sequence[bytes], fields: Sequence[str], required: bool) -> int:
        """The pixels of two GeoTIFFs within the limits; 0 if one of the files is none, and this is not ``required``."""
        headers = []
        for data, field in zip(files, fields, strict=True):
            if (header := geo_header(data)) is not None:
                headers.append(header)
            elif not required:
                return 0
            else:
                self._check_header(data, field)
                why = (
                    "not a GeoTIFF with a georeference, so that polygons have no position; write it into the file (rio "
                    "edit-info), or leave polygons=always out"
                )
                raise _refused(field, "no_georeference", why)
        if find_spec("rasterio") is None:
            why = (
                "a GeoTIFF, for which this server lacks rasterio: pip install 'idc[geo]' there, or send "
                "polygons=never for a caption alone"
            )
            raise _refused(fields[0], "extra_missing", why, 422)
        pixels = 0
        for header, field in zip(headers, fields, strict=True):
            pixels += self._check_size(header.width, header.height, field)
            if header.height * header.width * header.bands * header.bits > 8 * _SAMPLES * self._limits.image_pixels:
                raise self._too_many_pixels(field, f"{header.bands} bands of {header.bits} bits")
        return pixels

    def _document_pixels(self, field: str) -> int:
        """Most pixels of the pages of two documents that are in memory."""
        if find_spec("pypdfium2") is None:
            raise _refused(field, "extra_missing", NO_PDFIUM, 422)
        return 2 * min(PAGE_PIXELS, self._limits.image_pixels)

    def _check_header(self, data: bytes, field: str) -> int:
        if not data:
            raise _refused(field, "empty_image", "the image is empty")
        try:
            with open_image(data) as image:
                size = image.size
        except ImageError as error:
            if error.code == "too many pixels":
                raise self._too_many_pixels(field, "an implausible number of pixels") from None
            name = refused_format(data)
            hint = f"{name} is not read; convert it to JPEG" if name else f"supported formats are {FORMAT_NAMES}"
            metadata = "the image has too much metadata (text or a colour profile); save it without"
            code, why = {
                "too many scans": ("too_many_scans", f"{error.detail}, which takes too long; save it as a plain JPEG"),
                "too much metadata": ("too_much_metadata", metadata),
            }.get(error.code, ("not_an_image", f"not a readable image; {hint}"))
            raise _refused(field, code, why) from None
        return self._check_size(*size, field)

    def _check_size(self, width: int, height: int, field: str) -> int:
        limits = self._limits
        if width * height > limits.image_pixels or max(width, height) > limits.image_side:
            raise self._too_many_pixels(field, f"{width} x {height} pixels")
        if min(width, height) < (least := limits.image_min_side):
            raise _refused(field, "image_too_small", f"{width} x {height} pixels; the minimum is {least} per side")
        return width * height

    def _too_large(self, field: str) -> ApiError:
        why = f"the image file exceeds the limit of {self._limits.image_mib:g} MiB"
        return _refused(field, "image_too_large", why, 413)

    def _too_many_pixels(self, field: str, size: str) -> ApiError:
        most, side = self._limits.image_pixels, self._limits.image_side
        why = f"{size}; the limit is {most:,} pixels and {side:,} per side; send a smaller copy"
        return _refused(field, "too_many_pixels", why, 413)


def _refused(field: str, code: str, why: str, status: int = 400) -> ApiError:
    return ApiError(status, code, f"{field}: {why}", field)
