"""Decoding within a limit of time. A decoder in C cannot be stopped in a thread, so large images are decoded in
processes, which can be ended. No Ray, no torch.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from io import BufferedReader
from typing import NamedTuple, TypeVar, cast

import numpy as np

from idc.captioning.apply import Fault, Pixels
from idc.data.images import MAX_PIXELS, ImageError, decode_image, num_pixels
from idc.geo.pixel_grid import PixelGrid
from serve.backend import EncodedPair, RequestDialogue
from serve.decoder_process import REPLY, REQUEST
from serve.pieces import Hear

_NAME = "bytes of a request"
Decoded = TypeVar("Decoded")
"""What a decoder returns."""

_LIGHT_BYTES, _LIGHT_PIXELS = 2**18, 2**20
"""An image of at most so many bytes and pixels takes a fraction of a second, whatever is in it: it is decoded in a
thread, without the way to another process and back."""


class DecodedPair(NamedTuple):
    """A pair whose images are decoded: its pixels, or the reason why it has none.

    Attributes:
        hear: called with the pieces of the answer in the dialogue, in the captioner's thread.
        grid: of a pair of GeoTIFFs whose polygons are wanted.
    """

    pixels: Pixels | Fault
    dialogue: RequestDialogue | None = None
    hear: Hear | None = None
    grid: PixelGrid | None = None


class Decoders:
    """Decodes the images of pairs, several at a time; for one event loop.

    A process starts with its first image. It ends if the request of its image is given up (the task is cancelled), if
    the image takes too long, and if it crashes the decoder; another one takes its place.

    Args:
        count: number of processes, and of threads for small images.
        seconds: most processor time of an image, or of a pair of GeoTIFFs.
        max_pixels: of an image of such a pair.
    """

    def __init__(self, count: int, seconds: float, max_pixels: int = MAX_PIXELS):
        self._seconds, self._max_pixels = seconds, max_pixels
        self._light = ThreadPoolExecutor(count, thread_name_prefix="decode")
        self._waiting = ThreadPoolExecutor(count, thread_name_prefix="decoder")  # for the processes
        self._free: asyncio.Queue[_Process | None] = asyncio.Queue()
        for _ in range(count):
            self._free.put_nowait(None)
        self._running: dict[object, float] = {}

    @property
    def running_since(self) -> float | None:
        """Start of the decoding that has run longest, by the event loop's clock; None if none runs."""
        return min(self._running.values(), default=None)

    async def pair(self, pair: EncodedPair) -> DecodedPair:
        """The pixels of both images, or why there are none."""
        decoded = await self._placed(pair) if pair.placed else await self._images(pair)
        try:
            masks = {part: await self._image(part) for part in (*pair.ignore, *pair.only) if isinstance(part, bytes)}
        except ImageError as error:
            return DecodedPair(masks_fault(error), pair.dialogue)
        return with_counted(decoded, pair, masks)

    async def _images(self, pair: EncodedPair) -> DecodedPair:
        images = []
        for role, data in (("before", pair.before), ("after", pair.after)):
            try:
                images.append(await self._image(data))
            except ImageError as error:
                return DecodedPair(Fault(role, _NAME, error), pair.dialogue)
        return DecodedPair(Pixels(*images), pair.dialogue)

    async def _image(self, data: bytes) -> np.ndarray:
        if len(data) <= _LIGHT_BYTES and num_pixels(data) <= _LIGHT_PIXELS:
            return await self._timed(self._light, partial(decode_image, data))
        return await self._in_process(lambda process: process.decode(data, self._seconds))

    async def _placed(self, pair: EncodedPair) -> DecodedPair:
        try:
            pixels, grid = await self._in_process(
                lambda process: process.decode_placed(pair.before, pair.after, self._seconds, self._max_pixels)
            )
        except ImageError as error:
            return DecodedPair(placed_fault(error), pair.dialogue)
        return DecodedPair(pixels, pair.dialogue, grid=grid)

    async def _in_process(self, decode: Callable[[_Process], Decoded]) -> Decoded:
        process = await self._free.get()
        try:
            if process is None or process.ended:
                process = _Process()
            return await self._timed(self._waiting, partial(decode, process))
        except asyncio.CancelledError:
            if process is not None:
                process.kill()
            raise
        finally:
            self._free.put_nowait(process)

    async def _timed(self, threads: ThreadPoolExecutor, decode: Callable[[], Decoded]) -> Decoded:
        loop, key = asyncio.get_running_loop(), object()

        def run() -> Decoded:
            self._running[key] = loop.time()
            try:
                return decode()
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

    def groups(self, pairs: Sequence[EncodedPair]) -> list[list[EncodedPair]]:
        """The pairs in order, in groups that fill half of the room: while the model has one, the next is decoded."""
        groups: list[list[EncodedPair]] = []
        for pair in pairs:
            if groups and _needed([*groups[-1], pair]) <= self._pixels // 2:
                groups[-1].append(pair)
            else:
                groups.append([pair])
        return groups

    @asynccontextmanager
    async def taken(self, pairs: Sequence[EncodedPair]) -> AsyncIterator[None]:
        """Wait for room for all these pairs; it is theirs inside the ``with``."""
        if not (pixels := _needed(pairs)):
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


def _needed(pairs: Sequence[EncodedPair]) -> int:
    return sum(pair.pixels for pair in pairs if pair.pixels > 2 * _LIGHT_PIXELS)


class _Process:
    """A running :mod:`serve.decoder_process`. It ends with this object; if this process is killed, at the latest when
    the time of its image is over.

    Attributes:
        ended: it decodes no more.
    """

    def __init__(self) -> None:
        self.ended = False
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "serve.decoder_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        weakref.finalize(self, _ended, self._process)

    def kill(self) -> None:
        """End it, also while another thread waits for an image of it."""
        self.ended = True
        self._process.kill()

    def decode(self, data: bytes, seconds: float) -> np.ndarray:
        """The pixels of an image.

        Raises:
            ImageError: as :func:`decode_image`; "takes too long"; "damaged image" if it crashed the decoder.
        """
        height, width, reply = self._reply(REQUEST.pack(seconds, len(data), 0, 0), data, seconds)
        return np.frombuffer(reply, np.uint8).reshape(height, width, 3)

    def decode_placed(self, before: bytes, after: bytes, seconds: float, max_pixels: int) -> tuple[Pixels, PixelGrid]:
        """The pixels of a pair of GeoTIFFs, and their grid.

        Raises:
            ImageError: "not comparable", with which and why; "takes too long"; "damaged image".
        """
        request = REQUEST.pack(seconds, len(before), len(after), max_pixels)
        height, width, reply = self._reply(request, before + after, seconds)
        pixels, area = height * width * 3, height * width
        bits = 2 * pixels + -(-area // 8)
        values = np.frombuffer(reply, np.uint8)
        images = (values[start : start + pixels].reshape(height, width, 3) for start in (0, pixels))
        valid = np.unpackbits(values[2 * pixels : bits], count=area).reshape(height, width) > 0
        georeference = json.loads(reply[bits:])
        a, b, c, d, e, f = georeference["transform"]
        return Pixels(*images), PixelGrid((a, b, c, d, e, f), georeference["crs"], valid)

    def _reply(self, request: bytes, data: bytes, seconds: float) -> tuple[int, int, bytearray]:
        """Height, width and payload of the reply to a request.

        Raises:
            ImageError: as :meth:`decode`.
        """
        assert self._process.stdin is not None
        replies = cast("BufferedReader", self._process.stdout)
        try:
            self._process.stdin.write(request)
            self._process.stdin.write(data)
            self._process.stdin.flush()
            height, width, length = REPLY.unpack(replies.read(REPLY.size))
            reply = bytearray(length)
            if replies.readinto(reply) < length:
                raise EOFError
        except (OSError, EOFError, struct.error):
            self.kill()
            with suppress(OSError):  # the rest of the request
                self._process.stdin.close()
            if self._process.wait() == -signal.SIGPROF:
                detail = f"more than {seconds:g} s of processor time; save it as a plain PNG or JPEG"
                raise ImageError("takes too long", detail) from None
            raise ImageError("damaged image", "it ended its decoder") from None
        if not height:
            raise ImageError(*reply.decode().split("\n", 1))
        return height, width, reply


def placed_fault(error: ImageError) -> Fault:
    """The fault of a pair of GeoTIFFs, of the image that its error names first."""
    role = "after" if error.detail.startswith("after") else "before"
    return Fault(role, _NAME, error)


def masks_fault(error: ImageError) -> Fault:
    """The fault of a mask."""
    return Fault("ignore, only", _NAME, error)


def with_counted(decoded: DecodedPair, pair: EncodedPair, masks: Mapping[bytes, np.ndarray]) -> DecodedPair:
    """A pair with the part in which differences count, or why there is none.

    Args:
        masks: the decoded image of each mask.
    """
    if not isinstance(decoded.pixels, Pixels):
        return decoded
    parts = ([masks[part] if isinstance(part, bytes) else part for part in each] for each in (pair.ignore, pair.only))
    try:
        return decoded._replace(pixels=decoded.pixels.counting(*parts))
    except ValueError as error:
        return decoded._replace(pixels=masks_fault(ImageError("not possible", str(error))))


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
