"""The process that decodes images for :mod:`serve.decoding`: files on standard input, pixels on standard output."""

from __future__ import annotations

import json
import signal
import struct
import sys

import numpy as np

from idc.data.images import ImageError, decode_image

REQUEST = struct.Struct("<dQQQ")
"""Head of a request: the limit in seconds of processor time, the length of the image file that follows, and for a pair
of GeoTIFFs that of the second one and the most pixels of each, else 0."""
REPLY = struct.Struct("<IIQ")
"""Head of a reply: height, width and length of the pixels; or 0, 0 and that of an error, its code and its detail. Of a
pair, the pixels of the image before, of the image after, a bit per pixel where both have data, and JSON: ``transform``
and ``crs`` of :class:`idc.geo.pixel_grid.PixelGrid`."""
NOT_COMPARABLE = "not comparable"
"""Code of the error of a pair of GeoTIFFs."""


def main() -> None:
    """Decode one image after another, until standard input ends or an image exceeds its limit."""
    read, write = sys.stdin.buffer, sys.stdout.buffer
    while head := read.read(REQUEST.size):
        seconds, length, length_after, max_pixels = REQUEST.unpack(head)
        data, data_after = read.read(length), read.read(length_after)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process, also inside a decoder in C
        reply: tuple[bytes | memoryview, ...]
        try:
            if length_after:
                reply = _pair(data, data_after, max_pixels)
            else:
                pixels = decode_image(data)
                reply = REPLY.pack(*pixels.shape[:2], pixels.nbytes), pixels.data
        except ImageError as error:
            text = f"{error.code}\n{error.detail}".encode()
            reply = REPLY.pack(0, 0, len(text)), memoryview(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for part in reply:
            write.write(part)
        write.flush()


def _pair(before: bytes, after: bytes, max_pixels: int) -> tuple[bytes | memoryview, ...]:
    """The reply to a pair of GeoTIFFs.

    Raises:
        ImageError: they cannot be compared.
    """
    from idc.geo.placed_pair import decode_placed  # rasterio, which a server may lack

    try:
        pixels, grid = decode_placed(before, after, max_pixels)
    except ValueError as error:
        raise ImageError(NOT_COMPARABLE, str(error)) from None
    images = [np.ascontiguousarray(image) for image in pixels.images]
    bits = np.packbits(grid.valid).tobytes()
    text = json.dumps({"transform": grid.transform, "crs": grid.crs}).encode()
    length = sum(image.nbytes for image in images) + len(bits) + len(text)
    return REPLY.pack(*grid.valid.shape, length), *(image.data for image in images), bits, text


if __name__ == "__main__":
    main()
