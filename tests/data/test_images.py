"""Every kind of image there is, as RGB, profiles against their equations; what cannot be used, with its reason."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms

from idc.data.images import (
    FORMATS,
    MAX_SCANS,
    ImageError,
    check_image,
    decode_image,
    encode_png,
    image_of,
    image_size,
    num_pixels,
    on_one_ground,
    open_image,
    resize_image,
)
from tests.data.tiffs import tiff
from tests.serve.bad_images import jpeg_of_scans


def encoded(array: np.ndarray, format: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(array)
    image = Image.new("LAB", image.size, (128, 128, 128)) if mode == "LAB" else image.convert(mode or image.mode)
    image.save(out, format=format, **options)
    return out.getvalue()


def gradient(height: int = 20, width: int = 30) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 8 % 256, y * 12 % 256, (x + y) * 5 % 256], axis=2).astype(np.uint8)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, raw: bytes, *before: bytes, bits: int = 8, colour: int = 2) -> bytes:
    """A PNG of filtered rows, with chunks before the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"".join([b"\x89PNG\r\n\x1a\n", header, *before, chunk(b"IDAT", zlib.compress(raw, 1)), chunk(b"IEND", b"")])


def bomb(side: int = 20_000) -> bytes:
    return png(side, side, bytes(side * (1 + -(-side // 8))), bits=1, colour=0)


def test_16_bit_colour_scales_as_16_bit_grey() -> None:
    values = (np.arange(4096) * 16 + 7).astype(np.uint16).reshape(64, 64)
    expected = (values >> 8).tolist()
    rows = {n: np.stack([values] * n, axis=2).astype(">u2") for n in (1, 3)}
    for colour, channels in ((0, 1), (2, 3)):
        raw = b"".join(b"\0" + row.tobytes() for row in rows[channels])
        assert decode_image(png(64, 64, raw, bits=16, colour=colour))[..., 0].tolist() == expected
    assert decode_image(cv2.imencode(".tif", np.stack([values] * 3, axis=2))[1].tobytes())[..., 2].tolist() == expected
    assert decode_image(encoded(values, "TIFF"))[..., 0].tolist() == expected
    assert decode_image(encoded(values, "JPEG2000"))[..., 0].tolist() == expected
    grey, colour = (decode_image(b"P%d 64 64 65535\n" % kind + rows[n].tobytes()) for kind, n in ((5, 1), (6, 3)))
    assert np.array_equal(grey, colour)  # of this format Pillow rounds


OPEN, SHUT = np.zeros((2, 24, 64, 4), np.uint8)  # black letters on nothing: on black, no letters
for letters, columns in ((OPEN, slice(4, 30)), (SHUT, slice(30, 60))):
    letters[6:18, columns, 3] = 255


@pytest.mark.parametrize(
    "kind", ["PNG RGBA", "PNG LA", "PNG P", "WEBP RGBA", "GIF P", "TIFF RGBA", "JPEG2000 RGBA", "Pillow", "array"]
)
def test_of_a_pair_transparency_is_seen_whatever_the_kind_and_after_an_import(kind: str) -> None:
    pairs = []
    for pixels in (OPEN, SHUT):
        image = Image.fromarray(pixels)
        if kind in ("Pillow", "array"):
            pairs.append([image_of(image if kind == "Pillow" else pixels, alpha=True)] * 2)
            continue
        file_format, mode = kind.split()
        out = io.BytesIO()
        if mode == "P":
            palette = Image.fromarray(pixels[..., 3] // 255).convert("P")
            palette.putpalette([0] * 6)
            palette.save(out, file_format, transparency=0)
        else:
            image.convert(mode).save(out, file_format, **({"lossless": True} if file_format == "WEBP" else {}))
        stored = check_image(out.getvalue()).data
        pairs.append([decode_image(data, alpha=True) for data in (out.getvalue(), stored)])
        assert decode_image(out.getvalue()).max() == 0, "on black"
    for before, after in zip(*pairs, strict=True):
        first, second = on_one_ground(before, after)
        assert first.shape == second.shape == (24, 64, 3)
        assert ((first != second).any(axis=-1) == (OPEN != SHUT)[..., 3]).all()
        assert [image[0, 0].tolist() for image in (first, second)] == [[255] * 3] * 2


def test_both_black_and_white_that_changed_are_seen_and_an_opaque_pair_is_kept() -> None:
    both = OPEN.copy()
    both[2:4, 4:60] = 255
    blank = np.zeros_like(both)
    first, second = on_one_ground(both, blank)
    assert ((first != second).any(axis=-1) == (both[..., 3] > 0)).all()
    assert on_one_ground(NOISE, NOISE)[0] is NOISE


def test_pixels_are_kept_and_alpha_is_laid_over_black() -> None:
    pixels = gradient()
    assert np.array_equal(decode_image(encode_png(pixels)), pixels)
    assert np.array_equal(decode_image(encode_png(pixels[..., 0]))[..., 1], pixels[..., 0])
    with pytest.raises(ValueError, match="float32"):
        encode_png(np.zeros((4, 4, 3), np.float32))
    alpha = np.full((1, 3, 4), 200, np.uint8)
    alpha[0, :, 3] = (0, 128, 255)
    assert decode_image(encoded(alpha))[0, :, 0].tolist() == [0, pytest.approx(100, abs=1), 200]


NOISE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
PNG = encoded(NOISE)
FILMED: dict[str, Any] = {"save_all": True, "append_images": [Image.fromarray(255 - NOISE)]}
USABLE = {
    **{f"{format} {mode}": encoded(NOISE, format, mode) for format, mode in (
        ("PNG", "P"), ("PNG", "1"), ("PNG", "LA"), ("BMP", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("WEBP", "RGB"),
        ("TIFF", "LAB"),
    )},
    "palette with a transparent colour": encoded(NOISE, "PNG", "P", transparency=3),
    "animated gif": encoded(NOISE, "GIF", **FILMED),
    "many pages": encoded(NOISE, "TIFF", **FILMED),
    "trailing zip": PNG + b"PK\x03\x04" + bytes(100),
    "a strange chunk": PNG[:33] + chunk(b"zzZz", bytes(1000)) + PNG[33:],
}  # fmt: skip


@pytest.mark.parametrize("name", USABLE)
def test_what_is_unusual_and_can_be_used_becomes_rgb(name: str) -> None:
    out = decode_image(USABLE[name])
    assert (out.shape, out.dtype, out.flags.writeable) == (NOISE.shape, np.uint8, True)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
PLANE = struct.pack("<HH", 65_535, 65_535)
REFUSED = {
    "empty": (b"", "empty file"),
    "text": (b"this is no image at all", "not an image"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>', "not an image"),
    "postscript in binary": (
        b"\xc5\xd0\xd3\xc6" + struct.pack("<IIIIIIH", 32, 60, 0, 0, 0, 0, 0xFFFF) + EPS, "not an image"
    ),
    "signature alone": (PNG[:8], "not an image"),
    "header alone": (PNG[:33], "not an image"),
    "no width": (png(0, 5, b""), "not an image"),
    "cut png": (PNG[:5000], "truncated image"),
    "cut jpeg": (encoded(NOISE, "JPEG")[:1500], "truncated image"),
    "cut webp": (encoded(NOISE, "WEBP")[:1500], "damaged image"),
    "cut tiff": (encoded(NOISE, "TIFF", compression="tiff_lzw")[:3000], "not an image"),
    "float": (encoded(np.full((4, 4), 0.5, np.float32), "TIFF"), "unsupported mode: F; scale both images alike to 8"),
    "float map": (b"Pf\n2 2\n-1.0\n" + bytes(16), "unsupported mode: F; scale both images alike to 8"),
    "negative": (encoded(np.full((4, 4), -5, np.int32), "TIFF"), "unsupported mode: I with values -5 to -5; scale"),
    "tiff of five bands": (
        tiff({256: (3, [4]), 257: (3, [4]), 258: (3, [8] * 5), 277: (3, [5]), 273: (4, [8]), 279: (4, [80])}),
        "not an image: a TIFF that is damaged, or of bits, bands",
    ),
    "bomb": (bomb(), "too many pixels"),
    "gif of a plane": (
        b"GIF89a" + PLANE + b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0" + PLANE + b"\0\x02\x02D\x01\0;", "too many pixels"
    ),
    "ppm of a plane": (b"P6\n100000 100000\n255\n" + bytes(300), "too many pixels"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_says_why(name: str) -> None:
    data, code = REFUSED[name]
    with pytest.raises(ImageError) as caught:
        decode_image(data)
    assert caught.value.code == code.partition(":")[0]
    assert str(caught.value).startswith(code)


HEIC = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf\0\0\x01|meta\0\0\0\0\0\0\0!hdlr" + bytes(400)
"""The beginning of a file that pillow-heif wrote."""
AVIF = encoded(gradient(), "AVIF")
assert b"ftypavif\0\0\0\0avif" in AVIF


@pytest.mark.parametrize(
    ("data", "name"),
    [(HEIC, "HEIC"), (AVIF, "AVIF"), (AVIF.replace(b"ftypavif", b"ftypavis"), "AVIF"),
     (AVIF.replace(b"ftypavif", b"ftypmif1"), "AVIF")],
)  # fmt: skip
def test_a_format_that_is_refused_is_named(data: bytes, name: str) -> None:
    """Also AVIF, whose header may claim fewer pixels than are decoded."""
    with pytest.raises(ImageError, match=f"not an image: {name}, which is not read; convert it to JPEG"):
        decode_image(data)


BLACK = b"\0" * (1 + 3 * 4) * 4
EXIF_TEXT = b"Raw profile type exif"
ZEROS = zlib.compress(bytes(2**26 + 2**20))


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(b"zTXt", EXIF_TEXT + b"\0\0" + ZEROS)],
        [chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + ZEROS)],
        [chunk(b"iCCP", b"a\0\0" + ZEROS)],
        [chunk(b"tEXt", EXIF_TEXT + b"\0" + bytes(2**26 + 1))],
        [chunk(b"zTXt", EXIF_TEXT + b"%d\0\0" % n + zlib.compress(bytes(2**20))) for n in range(70)],
    ],
    ids=["packed text", "packed international text", "colour profile", "text", "many texts"],
)
def test_too_much_before_the_pixels_is_called_so(chunks: list[bytes]) -> None:
    with pytest.raises(ImageError, match="too much metadata"):
        decode_image(png(4, 4, BLACK, *chunks))


@pytest.mark.parametrize(
    "text",
    [
        chunk(b"zTXt", b"Raw profile type app1\0\0" + zlib.compress(b"\napp1\n 1400000\n" + b"4578" * 700_000)),
        chunk(b"iTXt", b"a\0\1\0\0\0" + ZEROS),
        chunk(b"tEXt", b"a\0" + bytes(2**26 + 1)),
    ],
    ids=["of a phone", "international", "long"],
)
@pytest.mark.parametrize("before", [b"IDAT", b"IEND"])
def test_texts_that_nobody_reads_are_passed_over(text: bytes, before: bytes) -> None:
    exif = chunk(b"eXIf", b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x0112, 3, 1, 6) + bytes(4))
    plain = encode_png(gradient())
    data = plain.replace(plain[plain.index(before) - 4 :], text + exif + plain[plain.index(before) - 4 :])
    assert np.array_equal(decode_image(data), np.rot90(gradient(), -1))
    assert image_size(data) == (30, 20)
    assert check_image(data).data == data


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_long_exif_is_refused(format: str) -> None:
    """Its two million fractions would be parsed to turn the image."""
    exif = tiff({274: (3, [6]), 282: (5, bytes(16 * 10**6))})
    data = encoded(gradient(), format, exif=b"Exif\0\0" + exif)
    for read in (decode_image, image_size, check_image):
        with pytest.raises(ImageError, match="too much metadata: EXIF of more than 1,048,576 bytes"):
            read(data)


def test_formats_of_other_programs_are_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """EPS would start Ghostscript; every format that is not in the list is no image."""
    opened: list[tuple[object, ...]] = []

    def opener(*given: object) -> None:
        opened.append(given)

    Image.init()
    for name in set(Image.OPEN) - set(FORMATS):
        monkeypatch.setitem(Image.OPEN, name, (opener, None))  # it would be tried with any file
    for data in (EPS, encoded(gradient(), "TGA"), encoded(gradient(), "PCX"), encoded(gradient(), "ICO")):
        with pytest.raises(ImageError, match="not an image"):
            decode_image(data)
    assert opened == []


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("orientation", [None, 3, 6, 77])
def test_a_kept_image_is_decoded_and_has_the_size_of_its_pixels(mode: str, orientation: int | None) -> None:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    data = encoded(gradient(), "PNG", mode, exif=exif)
    checked = check_image(data)
    assert checked.data == data
    size = (30, 20) if orientation == 6 else (20, 30)
    assert (checked.height, checked.width) == decode_image(data).shape[:2] == image_size(data) == size
    with pytest.raises(ImageError, match="image"):
        check_image(data[: data.index(b"IDAT") + 6])


def test_bytes_that_others_would_misread_are_stored_anew() -> None:
    assert check_image(encoded(gradient(), "JPEG")).data == encoded(gradient(), "JPEG")
    for data in (encoded(np.full((20, 30), 40000, np.uint16)), encoded(gradient(), "BMP")):
        found = check_image(data)
        assert Image.open(io.BytesIO(found.data)).mode == "RGB"
        assert np.array_equal(decode_image(found.data), decode_image(data))
        assert (found.height, found.width) == (20, 30)


def test_the_size_is_read_from_the_header_and_from_an_orientation_behind_the_pixels() -> None:
    plain = encode_png(gradient())
    exif = chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x0112, 3, 1, 6) + bytes(4))
    xmp = chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>')
    for part, at in ((exif, b"IDAT"), (exif, b"IEND"), (xmp, b"IDAT")):
        data = plain.replace(plain[plain.index(at) - 4 :], part + plain[plain.index(at) - 4 :])
        assert image_size(data) == decode_image(data).shape[:2] == (30, 20)
    damaged = plain.partition(b"IDAT")[0][:-4] + chunk(b"IDAT", b"no pixels")
    assert image_size(damaged) == (20, 30)
    assert num_pixels(damaged) == num_pixels(damaged + exif) == 600
    with pytest.raises(ImageError, match=r"damaged|truncated"):
        decode_image(damaged)
    with pytest.raises(ImageError, match="30x20 is more than 599"):
        decode_image(plain, max_pixels=599)


def test_resize() -> None:
    assert resize_image(gradient(), (7, 9)).shape == (7, 9, 3)
    assert resize_image(pixels := gradient(), (20, 30)) is pixels
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    small = resize_image(np.repeat(checks[..., None], 3, 2).astype(np.uint8), 16)
    assert abs(float(small[4:-4, 4:-4].mean()) - 127.5) < 3  # antialiased: no moire of black or white


def scans(count: int, *, between: bytes = b"", after: bytes = b"") -> bytes:
    """A small progressive JPEG of ``count`` further scans, with bytes between them and after its end."""
    plain = jpeg_of_scans(count, 64)
    scan = plain[plain.rindex(b"\xff\xda") : -2]
    return plain[: plain.index(scan)] + (between + scan) * count + b"\xff\xd9" + after


def test_jpegs_of_too_many_scans_are_refused_before_they_are_decoded() -> None:
    assert decode_image(scans(MAX_SCANS - 1)).shape == (64, 64, 3)
    with (
        pytest.raises(ImageError, match="too many scans: a progressive JPEG of more than 100"),
        open_image(scans(MAX_SCANS)),
    ):
        pytest.fail("opened")


@pytest.mark.parametrize(
    "between",
    [
        b"\xff" * 9,  # fill bytes
        b"\xff\xd0",  # a restart
        b"\0\1",  # bytes that libjpeg skips
        b"\xff\xfe\0\4\xff\xd9",  # a comment with the mark of the end in it
        b"\xff\xfe\0\0",  # a length that is too small
        b"\xff\xdb\0\x43\0" + b"\1" * 64,  # a table
    ],
)
def test_scans_are_counted_whatever_is_between_them(between: bytes) -> None:
    with pytest.raises(ImageError, match="too many scans"):
        decode_image(scans(MAX_SCANS, between=between))


MARKS = b"\xff\xda\0\2" * 150
HIDDEN_MARKS = b"\xff\xe1" + struct.pack(">H", len(MARKS) + 2) + MARKS
"""A segment of metadata."""


def test_only_scans_are_counted() -> None:
    """A preview in the metadata and a film after the end (motion photos) may have bytes like those of a scan."""
    for data in (scans(1, after=MARKS), scans(1, between=HIDDEN_MARKS)):
        assert decode_image(data).shape == (64, 64, 3)


@pytest.mark.parametrize(
    "data",
    [
        scans(0)[:2] + b"\xff\xed\0\2" * 2000 + scans(0)[2:],
        png(8, 8, bytes(8 * 25), *[chunk(b"abCd", b"")] * 2000),
        b"P6\n#" + b"x" * 2000 + b"\n8 8\n255\n" + bytes(192),
        scans(1, between=HIDDEN_MARKS + b"\xff\xfe\0\2" * 10_000),
    ],
)
def test_headers_of_too_many_parts_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match="too much metadata"):
        decode_image(data)


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


def with_profile(icc: bytes, alpha: bool = False) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(COLORS[None])
    (image.convert("RGBA") if alpha else image).save(out, "PNG", icc_profile=icc)
    return out.getvalue()


@pytest.mark.parametrize(("primaries", "gamma", "alpha"), [(PROPHOTO, 1.8, False), (ADOBE, 563 / 256, True)])
def test_a_wide_gamut_becomes_srgb(primaries: np.ndarray, gamma: float, alpha: bool) -> None:
    linear = np.linalg.inv(SRGB) @ primaries @ ((COLORS / 255) ** gamma).T
    linear = linear.clip(0, 1)
    expected = 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055).T
    decoded = decode_image(with_profile(profile(primaries, gamma), alpha))[0]
    assert abs(decoded - expected).max() < 3
    assert abs(COLORS - expected).max() > 10


def test_srgb_and_what_is_no_profile_stay() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    wide = profile(PROPHOTO, 1.8)
    table = wide.replace(b"cprt", b"A2B0")
    for icc in (srgb, b"no profile", wide[:150], wide[:-60], wide.replace(b"RGB ", b"GRAY", 1), table):
        assert np.array_equal(decode_image(with_profile(icc))[0], COLORS)
