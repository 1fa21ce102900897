"""Images are decoded within a limit of time, and a decoder that is given up is free for the next image."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest

from idc.captioning.apply import Pixels
from idc.data.images import decode_image
from serve.backend import EncodedPair
from serve.batching import Batcher
from serve.decoding import Decoders, PixelRoom
from serve.deployment.model import Model
from tests.serve.bodies import picture
from tests.serve.local import local_config
from tests.serve.waiting import happens

SMALL, LARGE = picture(), picture(1200, 1000)


def slow(side: int = 5000) -> bytes:
    """A BMP of runs of one pixel each, which Pillow decodes in Python: seconds for these 16 MiB."""
    head = struct.pack("<IHHIIiiHHIIiiII", 0, 0, 0, 54 + 1024, 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    return b"BM" + head + bytes(1024) + b"\1\5" * 2**23


EARLIER: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def _of_other_tests() -> None:
    """Their servers in this process may still have decoders."""
    EARLIER.update(psutil.Process().children())


def decoders() -> list[psutil.Process]:
    """The decoder processes of this test."""
    running = []
    for child in psutil.Process().children():
        with suppress(psutil.ZombieProcess):  # it has ended, and has not been waited for
            if child not in EARLIER and "serve.decoder_process" in child.cmdline():
                running.append(child)
    return running


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test; the decoder processes end with their pool."""
    asyncio.run(test())
    gc.collect()
    _, alive = psutil.wait_procs(decoders(), timeout=60)
    assert not alive


@pytest.mark.parametrize(("data", "processes"), [(SMALL, 0), (LARGE, 1)])
def test_pixels_are_those_of_decode_image(data: bytes, processes: int) -> None:
    async def test() -> None:
        pool = Decoders(1, 60)
        pixels, *_ = await pool.pair(EncodedPair(SMALL, data))
        assert isinstance(pixels, Pixels)
        assert np.array_equal(pixels.after, decode_image(data))
        assert pixels.after.flags.writeable
        assert len(decoders()) == processes

    run(test)


def test_an_image_that_takes_too_long_is_given_up() -> None:
    async def test() -> None:
        pool = Decoders(1, 1)
        pixels, *_ = await pool.pair(EncodedPair(slow(), SMALL))
        assert str(pixels).startswith("before: takes too long: more than 1 s")
        assert isinstance((await pool.pair(EncodedPair(LARGE, LARGE))).pixels, Pixels)
        assert pool.running_since is None

    run(test)


@pytest.mark.parametrize("end", ["given up", "crash"])
def test_an_image_that_is_given_up_or_crashes_its_decoder_leaves_room_for_the_next(end: str) -> None:
    async def test() -> None:
        pool = Decoders(1, 1000)
        hung = asyncio.create_task(pool.pair(EncodedPair(slow(), SMALL)))
        waiting = asyncio.create_task(pool.pair(EncodedPair(LARGE, LARGE)))
        await happens(lambda: pool.running_since is not None)
        (decoder,) = decoders()
        if end == "crash":
            decoder.kill()
            assert str((await hung).pixels) == "before: damaged image: it ended its decoder"
        else:
            hung.cancel()
            await happens(lambda: not decoder.is_running())
        assert isinstance((await waiting).pixels, Pixels)

    run(test)


def test_health_watches_decoding() -> None:
    async def test() -> None:
        replica = Model.__new__(Model)  # without Ray
        replica._config = local_config("artifact", limits={"timeout_s": 0.01})
        replica._batcher, replica._decoders = Batcher(lambda key, items: [], 1, threads=1), Decoders(1, 1000)
        await replica.check_health()
        hung = asyncio.create_task(replica._decoders.pair(EncodedPair(slow(), SMALL)))
        await happens(lambda: replica._decoders.running_since is not None)
        await asyncio.sleep(2 * replica._config.limits.timeout_s)
        with pytest.raises(RuntimeError, match="decoding has been running"):
            await replica.check_health()
        hung.cancel()
        await happens(lambda: replica._decoders.running_since is None)
        await replica.check_health()

    run(test)


def test_pairs_wait_for_room_for_their_pixels_in_their_order() -> None:
    async def test() -> None:
        large = 2**22
        room = PixelRoom(8 * large)
        sizes = [size * large for size in (1, 3, 1, 9, 2, 2)]
        groups = room.groups([EncodedPair(b"", b"", pixels=pixels) for pixels in sizes])
        assert [[pair.pixels // large for pair in group] for group in groups] == [[1, 3], [1], [9], [2, 2]]
        small = [EncodedPair(b"", b"", pixels=large // 2)] * 100
        assert room.groups(small) == [small]
        begun: list[int] = []
        doors = [asyncio.Event() for _ in groups]

        async def enter(index: int) -> None:
            async with room.taken(groups[index]):
                begun.append(index)
                await doors[index].wait()

        tasks = [asyncio.create_task(enter(index)) for index in range(4)]
        await happens(lambda: begun == [0, 1])
        doors[0].set()
        await tasks[0]
        async with room.taken(small):
            assert begun == [0, 1]  # the last one, for which there is room, waits behind the one with 9
        doors[1].set()
        await happens(lambda: begun == [0, 1, 2])  # more than the room, but alone
        tasks[2].cancel()
        await happens(lambda: begun == [0, 1, 2, 3])
        doors[3].set()
        await tasks[3]

    run(test)
