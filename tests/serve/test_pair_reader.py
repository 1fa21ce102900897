"""Images of a request: the accepted formats are those of the rest of the project, and refusals name their reason."""

from __future__ import annotations

import asyncio
import io

import numpy as np
import pytest
from PIL import Image

from idc.data.images import FORMATS, decode_image
from serve.backend import EncodedPair, Options
from serve.config import LimitsConfig
from serve.intake import PairSource, ParsedRequest
from serve.pair_reader import RequestPairReader
from tests.serve.bad_images import png, small_pixels
from tests.serve.bodies import url


def job(*files: bytes, count: int = 1) -> ParsedRequest:
    """A request with a pair of these files, or several times the same."""
    before, after = map(url, files)
    return ParsedRequest(None, Options(), (PairSource(before, after),) * count, count == 1, stream=False)


def image(data: bytes) -> bytes:
    """What is read of a file, in a pair with itself."""
    [read] = asyncio.run(RequestPairReader(LimitsConfig()).read(job(data, data)))
    assert isinstance(read, EncodedPair)
    return read.before


@pytest.mark.parametrize("format", FORMATS)
def test_all_supported_formats_are_accepted(format: str) -> None:
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 90, np.uint8)).save(out, format)
    assert image(out.getvalue()) == out.getvalue()
    assert decode_image(out.getvalue()).shape == (48, 64, 3)


def test_the_event_loop_runs_while_headers_are_parsed() -> None:
    """64 pairs whose headers have some hundred parts each, all of which Pillow reads in Python."""
    parts = png(8, 8, small_pixels(), *[(b"abCd", b"")] * 500)

    async def turns() -> int:
        reading = asyncio.ensure_future(RequestPairReader(LimitsConfig()).read(job(parts, parts, count=64)))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert all(isinstance(pair, EncodedPair) for pair in reading.result())
        return turns

    assert asyncio.run(turns()) > 10  # all of it in one turn, otherwise
