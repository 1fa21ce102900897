"""Decoding within a limit of time. A decoder in C cannot be stopped in a thread, so large images are decoded in
processes, which can be ended. No Ray, no torch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BufferedReader
from typing import NamedTuple, cast

import numpy as np

from idc.captioning.apply import Fault, Pixels
from idc.data.images import ImageError, decode_image, image_size
from serve.backend import EncodedPair, RequestDialogue
from serve.decoder_process import REPLY, REQUEST
from serve.pieces import Hear

_LIGHT_BYTES, _LIGHT_PIXELS = 2**18, 2**20
"""An image of at most so many bytes and pixels takes a fraction of a second, whatever is in it: it is decoded in a
thread, without the way to another process and back."""


class DecodedPair(NamedTuple):
    """A pair whose images are decoded: its pixels, or the reason why it has none.

    Attributes:
        hear: called with the pieces of the answer in the dialogue, in the captioner's thread.
    """

    pixels: Pixels | Fault
    dialogue: RequestDialogue | None = None
    hear: Hear | None = None


class Decoders:
    """Decodes the images of pairs, several at a time; for one event loop.

    A process starts with its first image. It ends if the request of its image is given up (the task is cancelled), if
    the image takes too long, and if it crashes the decoder; another one takes its place.

    Args:
        count: number of processes, and of threads for small images.
        seconds: most processor time of an image.
    """

    def __init__(self, count: int, seconds: float):
        self._seconds = seconds
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
        images = []
        for role, data in (("before", pair.before), ("after", pair.after)):
            try:
                images.append(await self._image(data))
            except ImageError as error:
                return DecodedPair(Fault(role, "bytes of a request", error), pair.dialogue)
        return DecodedPair(Pixels(*images), pair.dialogue)

    async def _image(self, data: bytes) -> np.ndarray:
        height, width = image_size(data)
        if len(data) <= _LIGHT_BYTES and height * width <= _LIGHT_PIXELS:
            return await self._timed(self._light, partial(decode_image, data))
        process = await self._free.get()
        try:
            if process is None or process.ended:
                process = _Process()
            return await self._timed(self._waiting, partial(process.decode, data, self._seconds))
        except asyncio.CancelledError:
            if process is not None:
                process.kill()
            raise
        finally:
            self._free.put_nowait(process)

    async def _timed(self, threads: ThreadPoolExecutor, decode: Callable[[], np.ndarray]) -> np.ndarray:
        loop, key = asyncio.get_running_loop(), object()

        def run() -> np.ndarray:
            self._running[key] = loop.time()
            try:
                return decode()
            finally:
                del self._running[key]

        return await loop.run_in_executor(threads, run)


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
        assert self._process.stdin is not None
        replies = cast("BufferedReader", self._process.stdout)
        try:
            self._process.stdin.write(REQUEST.pack(seconds, len(data)))
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
        return np.frombuffer(reply, np.uint8).reshape(height, width, 3)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
