"""Animations and TIFFs of several pages: the frames that differ are described, and others are not passed over."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idc.captioning.apply import Pixels, decode_pair, describe_batch
from idc.captioning.contract import SearchOptions
from idc.data.frames import frames_to_describe, has_frames
from idc.data.images import check_image, encode_png
from tests.geo.scenes import DifferenceCaptioner

GREY = np.full((16, 24, 3), 100, np.uint8)


def film(format: str, *values: int, **options: Any) -> bytes:
    """An image whose frames have a square of these values."""
    frames = []
    for value in values:
        frame = GREY.copy()
        frame[4:8, 4:8] = value
        frames.append(Image.fromarray(frame))
    file = io.BytesIO()
    lossless = {"lossless": True} if format == "WEBP" else {}
    frames[0].save(file, format, save_all=True, append_images=frames[1:], **lossless, **options)
    return file.getvalue()


FORMATS = ("GIF", "PNG", "WEBP", "TIFF")


@pytest.mark.parametrize("format", FORMATS)
def test_the_first_frames_that_differ_are_described(format: str) -> None:
    before, after = film(format, 10, 20, 30, 40), film(format, 10, 20, 250, 200)
    frames = frames_to_describe(before, after)
    assert frames.note == "Of 4 frames 2 differ (3, 4): only frame 3 is described."
    assert (frames.before[5, 5, 0], frames.after[5, 5, 0]) == pytest.approx((30, 250), abs=3)
    assert frames_to_describe(before, before).note is None
    assert has_frames(before)
    assert not has_frames(film(format, 10)) or format == "GIF"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("values", [(10,), (10, 20)])
def test_frames_of_unequal_numbers_are_not_passed_over(format: str, values: tuple[int, ...]) -> None:
    pixels = decode_pair(film(format, *values), film(format, 10, 20, 30))
    assert isinstance(pixels, Pixels)
    [captioned] = describe_batch(DifferenceCaptioner(), [pixels], [SearchOptions(change_map=True)])
    assert "only the first ones were compared" in str(captioned.description.warning)
    assert pixels.before[5, 5, 0] == pytest.approx(10, abs=3)


def test_what_is_no_frame_is_none() -> None:
    """Overviews and masks of a TIFF, and the second picture of a phone's JPEG, which is kept as it is."""
    file = io.BytesIO()
    pages = [Image.fromarray(GREY), Image.fromarray(GREY[::2, ::2])]
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:], tiffinfo={254: 1})
    page = file.getvalue()
    assert frames_to_describe(page, film("TIFF", 100)).note is None
    phone = film("MPO", 10, 20)
    assert not has_frames(phone)
    assert check_image(phone).data == phone
    assert not has_frames(encode_png(GREY))


def test_large_films_and_damaged_frames_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idc.data.frames.MAX_PIXELS", 2 * GREY.shape[0] * GREY.shape[1])
    frames = frames_to_describe(film("TIFF", 1, 2, 3, 4), film("TIFF", 1, 2, 3, 9))
    assert frames.note == "Of the frames of both images only the first 2 were compared."
    whole = film("PNG", 1, 200)
    assert "or damaged: only the first" in str(frames_to_describe(whole[: whole.index(b"fdAT") + 9], whole).note)
