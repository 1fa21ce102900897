"""Hostile images and folders: each with what must come of it.

Every folder also has the pair ``good``, which must come out whatever else there is.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from idc.data.images import encode_png
from tests.data.test_images import bomb
from tests.faults.hostile import HOST, OUTSIDE, Content, Hostile, crc, fifo, folder, link, unix_socket

NOISE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
PNG = encode_png(NOISE)
GOOD: dict[str, Content] = {"before/good.png": 1, "after/good.png": 2}


def saved(array: np.ndarray | Image.Image, format: str, mode: str | None = None, **options: Any) -> bytes:
    """An image as bytes of a format."""
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    out = io.BytesIO()
    (image.convert(mode) if mode else image).save(out, format, **options)
    return out.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return len(data).to_bytes(4, "big") + kind + data + crc(kind + data)


def with_chunk(kind: bytes, data: bytes) -> bytes:
    """A good PNG with one more chunk before its pixels."""
    return PNG[:33] + chunk(kind, data) + PNG[33:]


def png16(array: np.ndarray) -> bytes:
    """RGB of 16 bits a channel, which Pillow does not write."""
    height, width, _ = array.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return PNG[:8] + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bmp_header(width: int, height: int) -> bytes:
    """A BMP that says it has so many pixels and has none."""
    return b"BM" + struct.pack("<IHHIIiiHHIIIIII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def gif_header(width: int, height: int) -> bytes:
    """A GIF with a screen of that size and one pixel."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff" + (
        b",\0\0\0\0" + struct.pack("<HH", width, height) + b"\0\x02\x02D\x01\0;"
    )  # fmt: skip


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


TEXT = b"I am a text file, not a picture.\n"
FRAMES = [Image.fromarray(NOISE), Image.fromarray(255 - NOISE)]
OTHERS: dict[str, Any] = {"save_all": True, "append_images": FRAMES[1:]}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(/etc/passwd) (r) file\n%%EOF\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
BILLION = b'<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa">]><svg>' + b"&a;" * 1000 + b"</svg>"

USABLE: dict[str, bytes] = {
    "jpeg": saved(NOISE, "JPEG"),
    "progressive": saved(NOISE, "JPEG", progressive=True),
    "cmyk": saved(NOISE, "JPEG", "CMYK"),
    "grey 16": saved(np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16), "PNG"),
    "colour 16": png16(np.full((6, 8, 3), 40_000, np.uint16)),
    "palette": saved(NOISE, "PNG", "P"),
    "palette transparent": saved(NOISE, "PNG", "P", transparency=3),
    "one bit": saved(NOISE, "PNG", "1"),
    "grey alpha": saved(NOISE, "PNG", "LA"),
    "alpha": saved(NOISE, "PNG", "RGBA"),
    "gif": saved(NOISE, "GIF"),
    "animated gif": saved(FRAMES[0], "GIF", **OTHERS),
    "animated png": saved(FRAMES[0], "PNG", **OTHERS),
    "animated webp": saved(FRAMES[0], "WEBP", **OTHERS),
    "tiff": saved(NOISE, "TIFF"),
    "many pages": saved(FRAMES[0], "TIFF", **OTHERS),
    "bmp": saved(NOISE, "BMP"),
    "one pixel": saved(NOISE[:1, :1], "PNG"),
    "a line": saved(np.zeros((1, 20_000, 3), np.uint8), "PNG"),
    "turned": saved(NOISE, "JPEG", exif=orientation(6)),
    "no orientation": saved(NOISE, "JPEG", exif=orientation(77)),
    "trailing zip": PNG + b"PK\x03\x04" + bytes(100),
    "a comment": with_chunk(b"tEXt", b"Comment\0<script>alert(1)</script>"),
    "a strange chunk": with_chunk(b"zzZz", bytes(1000)),
}
"""Called ``.png`` all of them: what they are is seen from their bytes."""

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty file"),
    "text": (TEXT, "not an image"),
    "html": (b"<!doctype html><img src=x>", "not an image"),
    "svg": (SVG, "not an image"),
    "entities": (BILLION, "not an image"),
    "pdf": (b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n%%EOF\n", "not an image"),
    "eps": (EPS, "not an image"),
    "postscript in binary": (
        b"\xc5\xd0\xd3\xc6" + struct.pack("<IIIIIIH", 32, 60, 0, 0, 0, 0, 0xFFFF) + EPS,
        "not an image",
    ),
    "icon": (saved(NOISE[:32, :32], "ICO"), "not an image"),
    "tga": (saved(NOISE, "TGA"), "not an image"),
    "xbm": (b"#define x_width 8\n#define x_height 8\nstatic char x_bits[] = {\n0x00};\n", "not an image"),
    "zip": (b"PK\x05\x06" + bytes(18), "not an image"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(20), "not an image"),
    "zeros": (bytes(4096), "not an image"),
    "a shell script": (b"#!/bin/sh\nrm -rf /\n", "not an image"),
    "signature alone": (PNG[:8], "not an image"),
    "header alone": (PNG[:33], "not an image"),
    "cut png": (PNG[:5000], "truncated image"),
    "cut jpeg": (saved(NOISE, "JPEG")[:1500], "truncated image"),
    "cut webp": (saved(NOISE, "WEBP")[:1500], "damaged image"),
    "cut tiff": (saved(NOISE, "TIFF", compression="tiff_lzw")[:3000], "not an image"),
    "cut bmp": (saved(NOISE, "BMP")[:3000], "truncated image"),
    "cut gif": (saved(NOISE, "GIF")[:1500], "truncated image"),
    "pixels overwritten": (PNG[:2000] + bytes(500) + PNG[2500:], "damaged image"),
    "bomb": (bomb(20_000), "too many pixels"),
    "small bomb": (bomb(9_000), "too many pixels"),
    "bmp of a plane": (bmp_header(60_000, 60_000), "too many pixels"),
    "gif of a plane": (gif_header(65_535, 65_535), "too many pixels"),
    "ppm of a plane": (b"P6\n100000 100000\n255\n" + bytes(300), "too many pixels"),
    "float": (saved(np.full((4, 4), 0.5, np.float32), "TIFF"), "unsupported mode"),
    "negative": (saved(np.full((4, 4), -5, np.int32), "TIFF"), "unsupported mode"),
    "text bomb": (with_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80 * 2**20), 1)), "too much metadata"),
    "profile bomb": (with_chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(80 * 2**20), 1)), "too much metadata"),
    "no width": (PNG[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 5, 8, 2, 0, 0, 0)) + PNG[33:], "not an image"),
}
"""Content and code of what no decoder here takes, called ``.png``."""

OTHER_SUFFIXES = {"jpe": "JPEG", "jfif": "JPEG", "jp2": "JPEG2000", "PNG": "PNG", "TIF": "TIFF",
                  "webp": "WEBP", "dib": "BMP"}  # fmt: skip

NAMES = {
    "a new line": "x\ny",
    "a return": "x\ry",
    "spaces": " x y ",
    "quotes": "it's \"x\"",
    "markup": "<script>alert(1)<x>",
    "a dash": "-rf",
    "a shell": "$(touch pwned)`id`;|&",
    "an emoji": "\U0001f600",
    "right to left": "x\u202egnp",
    "a line separator": "x\u2028y",
    "a tab": "x\ty",
    "a percent": "%2e%2e%2fx",
    "backslashes": "x\\..\\..\\y",
    "a colon": "s3:x",
    "two dots": "x..",
    "a star": "*?[x]",
    "the longest": "x" * 251,
    "a number": "007",
    "a wide letter": "\uff58",
    "a zero width": "x\u200b",
    "a control": "x\x01\x1b[31m",
}  # fmt: skip
"""Stems that a file may have; each is its pair's id as it is."""


def pair(before: Content, **outcome: Any) -> Hostile:
    """The good pair, and ``x`` with that before image."""
    return Hostile("folder", {**GOOD, "before/x.png": before, "after/x.png": 3}, **outcome)


def entries() -> dict[str, Hostile]:
    """By name."""
    out = {f"image: {name}": pair(data, pairs=("good", "x")) for name, data in USABLE.items()}
    out |= {
        f"image: {name}": pair(data, pairs=("good",), rejects={"x": code}) for name, (data, code) in REFUSED.items()
    }
    for suffix, format in OTHER_SUFFIXES.items():
        files = {f"before/x.{suffix}": saved(NOISE, format), "after/x.png": 3}
        out[f"suffix: .{suffix}"] = Hostile("folder", {**GOOD, **files}, pairs=("good", "x"))
    for name, stem in NAMES.items():
        files = {f"before/{stem}.png": 5, f"after/{stem}.png": 6}
        out[f"name: {name}"] = Hostile("folder", {**GOOD, **files}, pairs=("good", stem))
    return out | _names() | _links() | _files() | _captions()


def _names() -> dict[str, Hostile]:
    bad = "\udcff"
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    return {
        "name: not UTF-8": Hostile(
            "folder", {**GOOD, f"before/{bad}.png": 5, f"after/{bad}.png": 6}, ("good",), {"\\xff": "not UTF-8"}
        ),
        "name: twins in case": Hostile(
            "folder",
            {**GOOD, "before/X.png": 5, "after/X.png": 6, "before/x.png": 7, "after/x.png": 8},
            ("X", "good", "x"),
        ),
        "name: twins in unicode": Hostile(
            "folder",
            {**GOOD, **{f"{role}/{name}.png": 5 for role in ("before", "after") for name in (composed, decomposed)}},
            ("good", composed, decomposed),
        ),
        "name: twins in suffix": Hostile(
            "folder",
            {**GOOD, "before/x.png": 5, "before/x.jpg": 6, "after/x.png": 7},
            ("good",),
            {"x": "duplicate pair id"},
        ),
        "name: an image of no pair": Hostile("folder", {**GOOD, "x.png": 5}, ("good",), {"x.png": "unplaced image"}),
        "name: no partner": Hostile("folder", {**GOOD, "before/x.png": 5}, ("good",), {"x": "missing partner"}),
        "name: a folder of a thousand levels": Hostile(
            "folder", {**GOOD, "before/" + "d/" * 300 + "x.png": 5}, ("good",), {"d/" * 300 + "x": "missing partner"}
        ),
        "name: hidden": Hostile(
            "folder", {**GOOD, "before/.x.png": 5, "after/.x.png": 6}, ("good",), named=(".x.png",)
        ),
        "name: of the report": Hostile("folder", {**GOOD, "validation.json": "{}", "manifest.txt": ""}, ("good",)),
    }


def _links() -> dict[str, Hostile]:
    more = {"before/x.png": 5, "after/x.png": 6}
    return {
        "link: to itself": pair(link("x.png"), pairs=("good",), rejects={"x": "unreadable file"}),
        "link: to nothing": pair(link("nowhere.png"), pairs=("good",), rejects={"x": "missing file"}),
        "link: inside": pair(link("good.png"), pairs=("good", "x")),
        "link: to an image outside": pair(
            link(f"{OUTSIDE}/canary.png"), pairs=("good",), rejects={"x": "outside the source"}
        ),
        "link: up and outside": pair(
            link("../../outside/canary.png"), pairs=("good",), rejects={"x": "outside the source"}
        ),
        "link: to a device": pair(link("/dev/null"), pairs=("good",), rejects={"x": "outside the source"}),
        "link: to the process": pair(link("/proc/self/environ"), pairs=("good",), rejects={"x": "outside the source"}),
        "link: the folder in itself": Hostile("folder", {**GOOD, **more, "loop": link(".")}, ("good", "x")),
        "link: the parent": Hostile("folder", {**GOOD, **more, "before/loop": link("..")}, ("good", "x")),
        "link: two folders in each other": Hostile(
            "folder", {**GOOD, **more, "a/to-b": link("../b"), "b/to-a": link("../a")}, ("good", "x")
        ),
        "link: a folder outside": Hostile(
            "folder", {**GOOD, **more, "before/far": link(OUTSIDE)}, ("good", "x"), {"before/far": "outside the source"}
        ),
        "link: the whole machine": Hostile(
            "folder", {**GOOD, **more, "root": link("/")}, ("good", "x"), {"root": "outside the source"}
        ),
        "link: captions outside": Hostile(
            "folder", {**GOOD, **more, "x.txt": link(f"{OUTSIDE}/canary.txt")}, ("good",), {"x": "outside the source"}
        ),
        "link: captions.json outside": Hostile(
            "folder",
            {**GOOD, **more, "captions.json": link(f"{OUTSIDE}/canary.json")},
            error="captions.json.* out of the source",
        ),
    }


def _files() -> dict[str, Hostile]:
    return {
        "file: a FIFO": pair(fifo, pairs=("good",), rejects={"x": "unreadable file"}),
        "file: a socket": pair(unix_socket, pairs=("good",), rejects={"x": "unreadable file"}),
        "file: a folder": pair(folder, pairs=("good",), rejects={"x": "missing partner"}),
        "file: a FIFO of captions": Hostile(
            "folder", {**GOOD, "before/x.png": 5, "after/x.png": 6, "x.txt": fifo}, ("good",), {"x": "unreadable file"}
        ),
        "file: a FIFO of all captions": Hostile(
            "folder", {**GOOD, "captions.json": fifo}, error="captions.json.*cannot be read"
        ),
        "file: other images": Hostile(
            "folder", {**GOOD, "before/x.svg": SVG, "after/x.svg": SVG}, ("good",), {"x": "not an image"}
        ),
        "file: an other image next to one": Hostile(
            "folder",
            {**GOOD, "before/x.svg": SVG, "before/x.png": 5, "after/x.png": 6},
            ("good", "x"),
            named=("before/x.svg",),
        ),
        "file: a video": Hostile("folder", {**GOOD, "before/x.mp4": TEXT}, ("good",), named=("before/x.mp4",)),
        "file: strangers": Hostile(
            "folder", {**GOOD, "notes.docx": TEXT, "after/Thumbs.db": TEXT}, ("good",), named=("2 files", ".docx")
        ),
        "file: captions of nobody": Hostile("folder", {**GOOD, "nobody.txt": "gone"}, ("good",), named=("nobody.txt",)),
        "file: nothing at all": Hostile("folder", {"notes.md": "x"}, error="has no pairs"),
        "file: captions not UTF-8": Hostile(
            "folder", {**GOOD, "before/x.png": 5, "after/x.png": 6, "x.txt": b"caf\xe9"}, ("good",), {"x": "not UTF-8"}
        ),
        "file: a mask that is none": Hostile(
            "folder",
            {**GOOD, "before/x.png": 5, "after/x.png": 6, "mask/x.png": TEXT},
            ("good",),
            {"x": "not an image"},
        ),
        "file: two masks": Hostile(
            "folder", {**GOOD, "mask/good.png": 5, "label/good.png": 6}, (), {"good": "duplicate pair id"}
        ),
    }


def _captions() -> dict[str, Hostile]:
    """``captions.json`` of a folder with the pairs ``good`` and ``x``."""

    def told(x: str, **outcome: Any) -> Hostile:
        text = f'{{"good": "moved", "x": {x}}}'
        return Hostile("folder", {**GOOD, "before/x.png": 5, "after/x.png": 6, "captions.json": text}, **outcome)

    def whole(text: str | bytes, **outcome: Any) -> Hostile:
        return Hostile("folder", {**GOOD, "captions.json": text}, **outcome)

    def refused(value: str, code: str = "bad row") -> Hostile:
        return told(value, pairs=("good",), rejects={"x": code})

    out = {
        "a mask above": refused('{"captions": [], "mask": "../outside/canary.png"}', "outside the source"),
        "a mask anywhere": refused(f'{{"captions": [], "mask": "{OUTSIDE}/canary.png"}}', "outside the source"),
        "a mask by URI": refused(f'{{"mask": "file://{OUTSIDE}/canary.png"}}', "outside the source"),
        "a mask on a host": refused(f'{{"mask": "s3://b/x.png?endpoint_override={HOST}"}}', "outside the source"),
        "a mask that is a number": refused('{"mask": 5}', "bad row"),
        "an image anywhere": told(f'{{"before": "{OUTSIDE}/canary.png"}}', pairs=("good", "x")),
        "an id": told('{"pair_id": "good", "captions": "moved"}', pairs=("good", "x")),
        "an error": told('{"error": "bad file: nothing"}', pairs=("good", "x")),
        "a split": refused('{"split": "everything"}', "bad split"),
        "a split that is a list": refused('{"split": ["train"]}', "bad split"),
        "a number": refused("5"),
        "numbers": refused("[1, 2]"),
        "an object of captions": refused('{"captions": {"en": "gone"}}'),
        "half a character": refused('"half \\ud83d"', "not UTF-8"),
        "meta that is no object": refused('{"meta": [1]}'),
        "nothing": told("null", pairs=("good", "x")),
        "empty captions": told('["", " "]', pairs=("good", "x")),
        "other names": told('"gone", "../x": "gone", "/etc/passwd": "gone"', pairs=("good", "x"), named=("../x",)),
    }  # fmt: skip
    out |= {
        "twice the same": whole('{"good": "one", "good": "two"}', error="captions.json.*'good' occurs twice"),
        "not a number": whole('{"good": {"meta": {"a": NaN}}}', error="captions.json.*NaN"),
        "a list": whole('["good"]', error="captions.json.*not an object"),
        "no JSON": whole('{"good": ', error="captions.json.*not JSON"),
        "deep": whole('{"good": ' + "[" * 100_000 + "]" * 100_000 + "}", error="captions.json.*nested too deep"),
        "digits": whole('{"good": {"meta": {"a": ' + "1" * 5_000 + "}}}", error="captions.json.*digits"),
        "a byte order mark": whole(b'\xef\xbb\xbf{"good": "gone"}', pairs=("good",)),
        "UTF-16": whole('{"good": "gone"}'.encode("utf-16"), error="captions.json"),
    }
    return {f"captions.json: {name}": entry for name, entry in out.items()}
