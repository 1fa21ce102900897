"""The process that decodes images for :mod:`serve.decoding`: pickled calls on standard input, their results on standard
output. Both ends are this program."""

from __future__ import annotations

import pickle
import signal
import sys
from typing import TYPE_CHECKING

from idc.data.images import ImageError

if TYPE_CHECKING:
    from idc.captioning.apply import Pixels
    from idc.geo.georeferenced_pair import PixelGrid


def main() -> None:
    """Decode one image after another, until standard input ends or an image exceeds its limit."""
    while True:
        try:
            seconds, decode, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process, also inside a decoder in C
        try:
            result = decode(*arguments)
        except ImageError as error:
            result = error
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(result, sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


def decode_geotiffs(before: bytes, after: bytes, max_pixels: int) -> tuple[Pixels, PixelGrid]:
    """The pixels of a pair of GeoTIFFs, and their grid.

    Raises:
        ImageError: "not comparable", with which and why.
    """
    from idc.geo.georeferenced_pair import decode_georeferenced  # rasterio, which a server may lack

    try:
        return decode_georeferenced(before, after, max_pixels)
    except ValueError as error:
        raise ImageError("not comparable", str(error)) from None


if __name__ == "__main__":
    main()
