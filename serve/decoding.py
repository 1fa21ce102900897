"""Decoding within a limit of time. A decoder in C cannot be stopped in a thread, so large images are decoded in
processes, which can be ended. No Ray, no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from idc.captioning.apply import Fault, Pixels, decode_pair, described_frames
from idc.data.decoder_process import DecoderProcess
from idc.data.frames import has_frames
from idc.data.images import MAX_PIXELS, ImageError, decode_image, num_pixels
from idc.data.pdf import is_pdf
from serve.backend import EncodedPair, RequestDialogue, TextCallback

if TYPE_CHECKING:
    from idc.geo.georeferenced_pair import PixelGrid

_NAME = "bytes of a request"
Decoded = TypeVar("Decoded")
_LIGHT_BYTES, _LIGHT_PIXELS = 2**18, 2**20
"""An image of at most so many takes a fraction of a second, whatever is in it: it is decoded in a thread."""


def is_light(pair: EncodedPair) -> bool:
    """Whether the images of a pair are small: they are decoded in a moment, and need no :class:`PixelRoom`."""
    return pair.pixels <= 2 * _LIGHT_PIXELS


class DecodedPair(NamedTuple):
    """A pair whose images are decoded: its pixels, or the reason why it has none."""

    pixels: Pixels | Fault
    dialogue: RequestDialogue | None = None
    on_text: TextCallback | None = None
    """Called with the pieces of the answer in the dialogue, in the captioner's thread."""
    grid: PixelGrid | None = None
    """Of a pair of GeoTIFFs whose polygons are wanted."""


class Decoders:
    """Decodes the images of pairs, several at a time; for one event loop. A process ends if the request of its image is
    given up (the task is cancelled), if the image takes too long, and if it crashes the decoder; another one takes its
    place.

    Args:
        count: number of processes, and of threads for small images.
        seconds: most processor time of an image, or of a pair of GeoTIFFs.
        max_pixels: of an image of such a pair.
    """

    def __init__(self, count: int, seconds: float, max_pixels: int = MAX_PIXELS):
        self._seconds, self._max_pixels = seconds, max_pixels
        self._light = ThreadPoolExecutor(count, thread_name_prefix="decode")
        self._waiting = ThreadPoolExecutor(count, thread_name_prefix="decoder")  # for the processes
        self._free: asyncio.Queue[DecoderProcess | None] = asyncio.Queue()
        for _ in range(count):
            self._free.put_nowait(None)
        self._running: dict[object, float] = {}

    @property
    def running_since(self) -> float | None:
        """Start of the decoding that has run longest, by the event loop's clock; None if none runs."""
        return min(self._running.values(), default=None)

    async def pair(self, pair: EncodedPair) -> DecodedPair:
        """The pixels of both images, or why there are none."""
        role, grid = "before", None
        try:
            if pair.georeferenced:
                pixels, grid = await self._in_process(decode_geotiffs, pair.before, pair.after, self._max_pixels)
            elif is_pdf(pair.before) and is_pdf(pair.after):
                documents = await self._in_process(decode_pair, pair.before, pair.after, None, self._max_pixels)
                if isinstance(documents, Fault):
                    return DecodedPair(documents, pair.dialogue)
                pixels = documents
            else:
                before = await self._image(pair.before, alpha=True)
                role = "after"
                after = await self._image(pair.after, alpha=True)
                pixels = await self._timed(self._light, Pixels, before, after)  # of transparent ones work for a thread
                if has_frames(pair.before) or has_frames(pair.after):
                    pixels = await self._in_process(described_frames, pair.before, pair.after)
            role = "ignore, only"
            ignore, only = [
                [await self._image(part) if isinstance(part, bytes) else part for part in parts]
                for parts in (pair.ignore, pair.only)
            ]
            try:
                pixels = await self._timed(self._light, pixels.counting, ignore, only)
                return DecodedPair(pixels, pair.dialogue, grid=grid)
            except ValueError as error:
                raise ImageError("not possible", str(error)) from None
        except ImageError as error:
            if pair.georeferenced and error.detail.startswith("after"):  # the image that the error names first
                role = "after"
            return DecodedPair(Fault(role, _NAME, error), pair.dialogue)

    async def _image(self, data: bytes, alpha: bool = False) -> np.ndarray:
        if len(data) <= _LIGHT_BYTES and num_pixels(data) <= _LIGHT_PIXELS:
            return await self._timed(self._light, decode_image, data, MAX_PIXELS, alpha)
        return await self._in_process(decode_image, data, MAX_PIXELS, alpha)

    async def _in_process(self, decode: Callable[..., Decoded], *arguments: Any) -> Decoded:
        process = await self._free.get()
        try:
            if process is None or process.ended:
                process = DecoderProcess()
            return await self._timed(self._waiting, process.run, self._seconds, decode, *arguments)
        except asyncio.CancelledError:
            if process is not None:
                process.kill()
            raise
        finally:
            self._free.put_nowait(process)

    async def _timed(self, threads: ThreadPoolExecutor, decode: Callable[..., Decoded], *arguments: Any) -> Decoded:
        loop, key = asyncio.get_running_loop(), object()

        def run() -> Decoded:
            self._running[key] = loop.time()
            try:
                return decode(*arguments)
            finally:
                del self._running[key]

        return await loop.run_in_executor(threads, run)


class PixelRoom:
    """Bounds the decoded images that wait for the model or are in it; for one event loop. Pairs of small images, which
    are decoded in threads, never wait for it.

    Args:
        pixels: most pixels at once. Only a pair that alone has more exceeds them.
    """

    def __init__(self, pixels: int):
        self._pixels, self._taken = pixels, 0
        self._turn = asyncio.Lock()  # first come, first served
        self._left = asyncio.Event()

    @asynccontextmanager
    async def taken(self, pair: EncodedPair) -> AsyncIterator[None]:
        """Wait for room for a pair; it has it inside the ``with``."""
        pixels = pair.pixels
        if is_light(pair):
            yield
            return
        async with self._turn:
            while self._taken and self._taken + pixels > self._pixels:
                self._left.clear()
                await self._left.wait()
            self._taken += pixels
        try:
            yield
        finally:
            self._taken -= pixels
            self._left.set()


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
