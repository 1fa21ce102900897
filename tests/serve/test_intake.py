"""Reading the images of a request."""

from __future__ import annotations

import asyncio

from serve.backend import EncodedPair, Options
from serve.config import LimitsConfig
from serve.intake import PairSource, ParsedRequest, RequestPairReader
from tests.serve.bad_images import png, small_pixels
from tests.serve.bodies import url


def test_the_event_loop_runs_while_headers_are_parsed() -> None:
    """64 pairs whose headers have some hundred parts each, all of which Pillow reads in Python."""
    image = url(png(8, 8, small_pixels(), *[(b"abCd", b"")] * 500))
    request = ParsedRequest(None, Options(), (PairSource(image, image),) * 64, stream=False)

    async def turns() -> int:
        reading = asyncio.ensure_future(RequestPairReader(LimitsConfig()).read(request))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert all(isinstance(pair, EncodedPair) for pair in reading.result())
        return turns

    assert asyncio.run(turns()) > 4  # all of it in one turn, otherwise
