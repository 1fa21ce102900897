"""RGB images with a colour profile other than sRGB (ProPhoto, Adobe RGB, Display P3) as sRGB."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from PIL import Image, ImageCms

_MAX_BYTES = 2**20
"""A longer profile is not read. Those of three primaries have some 500 bytes."""
_MAX_TAGS = 100
_SRGB = (0.4361, 0.3851, 0.1431, 0.2225, 0.7169, 0.0606, 0.0139, 0.0971, 0.7142)
"""X of red, green and blue, then Y and Z, of sRGB in a profile (for D50)."""
_SAME = 0.01
"""Largest difference of a primary to that of sRGB in a profile that is sRGB."""


def apply_profile(image: Image.Image) -> Image.Image:
    """The image in sRGB, if its profile has three other primaries; the image itself without such a profile, and with
    one that is damaged or a table, as scanners and printers have."""
    profile = image.info.get("icc_profile")
    if image.mode not in ("RGB", "RGBA") or not profile or len(profile) > _MAX_BYTES:
        return image
    primaries = list(_primaries(profile))
    if len(primaries) < 9 or max(abs(a - b) for a, b in zip(primaries, _SRGB, strict=True)) < _SAME:
        return image
    try:
        source, target = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, source, target) or image
    except (ImageCms.PyCMSError, OSError):
        return image


def _primaries(profile: bytes) -> Iterator[float]:
    """X, Y and Z of red, green and blue, by row; fewer of a profile of another kind."""
    try:
        (count,) = struct.unpack_from(">I", profile, 128)
        entries = [struct.unpack_from(">4sII", profile, 132 + 12 * i) for i in range(min(count, _MAX_TAGS))]
        tags = {name: position for name, position, _ in entries}
        if profile[16:20] != b"RGB " or b"A2B0" in tags:
            return
        columns = [struct.unpack_from(">3i", profile, tags[name] + 8) for name in (b"rXYZ", b"gXYZ", b"bXYZ")]
    except (struct.error, KeyError):
        return
    yield from (column[row] / 65536 for row in range(3) for column in columns)
