"""Profiles with other primaries than sRGB, against the equations of matrix profiles."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from idc.data.images import decode_image

PROPHOTO = np.array([[0.7977, 0.1352, 0.0313], [0.2880, 0.7119, 0.0001], [0.0, 0.0, 0.8249]])
ADOBE = np.array([[0.6097, 0.2053, 0.1492], [0.3111, 0.6257, 0.0632], [0.0195, 0.0609, 0.7446]])
SRGB = np.array([[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7142]])
"""Red, green and blue as columns of X, Y, Z for D50 (the ICC profiles of these spaces)."""
COLORS = np.array(
    [[128, 128, 128], [200, 120, 90], [90, 140, 110], [60, 70, 120], [255, 255, 255], [0, 0, 0]], np.uint8
)


def profile(primaries: np.ndarray, gamma: float) -> bytes:
    """A matrix profile of ICC version 2."""
    xyz = lambda values: b"XYZ " + bytes(4) + struct.pack(">3i", *(round(65536 * v) for v in values))  # noqa: E731
    curve = b"curv" + bytes(4) + struct.pack(">IHH", 1, round(256 * gamma), 0)
    text = b"desc" + bytes(4) + struct.pack(">I", 2) + b"x\0" + bytes(78)
    tags = {b"wtpt": xyz((0.9642, 1.0, 0.8249)), b"desc": text, b"cprt": b"text" + bytes(6)}
    tags |= {name: xyz(column) for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries.T, strict=True)}
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, data = struct.pack(">I", len(tags)), b""
    for name, value in tags.items():
        table += struct.pack(">4sII", name, 132 + 12 * len(tags) + len(data), len(value))
        data += value + bytes(-len(value) % 4)
    head = struct.pack(">I4sI4s4s4s", 132 + 12 * len(tags) + len(data), bytes(4), 0x02100000, b"mntr", b"RGB ", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + table + data


def encoded(icc: bytes, alpha: bool = False) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(COLORS[None])
    (image.convert("RGBA") if alpha else image).save(out, "PNG", icc_profile=icc)
    return out.getvalue()


@pytest.mark.parametrize(("primaries", "gamma", "alpha"), [(PROPHOTO, 1.8, False), (ADOBE, 563 / 256, True)])
def test_a_wide_gamut_becomes_srgb(primaries: np.ndarray, gamma: float, alpha: bool) -> None:
    linear = np.linalg.inv(SRGB) @ primaries @ ((COLORS / 255) ** gamma).T
    linear = linear.clip(0, 1)
    expected = 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055).T
    decoded = decode_image(encoded(profile(primaries, gamma), alpha))[0]
    assert abs(decoded - expected).max() < 3
    assert abs(COLORS - expected).max() > 10


def test_srgb_and_what_is_no_profile_stay() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    wide = profile(PROPHOTO, 1.8)
    table = wide.replace(b"cprt", b"A2B0")
    for icc in (srgb, b"no profile", wide[:150], wide[:-60], wide.replace(b"RGB ", b"GRAY", 1), table):
        assert np.array_equal(decode_image(encoded(icc))[0], COLORS)
