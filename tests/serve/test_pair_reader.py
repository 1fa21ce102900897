"""Images of a request: the accepted formats are those of the rest of the project, and refusals name their reason."""

from __future__ import annotations

import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image

from idc.data.images import FORMATS, decode_image
from serve.config import LimitsConfig
from serve.errors import ApiError
from serve.pair_reader import RequestPairReader
from tests.serve.bad_images import IMAGES


def image(data: bytes) -> bytes:
    return asyncio.run(RequestPairReader(LimitsConfig()).image(base64.b64encode(data).decode(), "before"))


@pytest.mark.parametrize("format", FORMATS)
def test_all_supported_formats_are_accepted(format: str) -> None:
    out = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 90, np.uint8)).save(out, format)
    assert image(out.getvalue()) == out.getvalue()
    assert decode_image(out.getvalue()).shape == (48, 64, 3)


@pytest.mark.parametrize("name", [name for name in IMAGES if "MiB" in name])
def test_too_much_metadata_is_named(name: str) -> None:
    with pytest.raises(ApiError, match="too much metadata") as caught:
        image(IMAGES[name]())
    assert caught.value.code == "too_much_metadata"


@pytest.mark.parametrize("name", ["EPS, a program", "SVG", "HTML"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(
        ApiError, match="supported formats are PNG, JPEG, WebP, BMP, GIF, TIFF, JPEG 2000 and PPM"
    ) as caught:
        image(IMAGES[name]())
    assert caught.value.code == "not_an_image"


def test_a_camera_format_is_named() -> None:
    with pytest.raises(ApiError, match="AVIF is not read; convert it to JPEG") as caught:
        image(IMAGES["AVIF"]())
    assert caught.value.code == "not_an_image"
