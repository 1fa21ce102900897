"""Image bytes to pixels and back. Every decoder of the project goes through :func:`decode_image`.

The formats are those of :data:`FORMATS` everywhere: for decoding, for file names in a folder, and in serving. Pillow
supports more, of which some start other programs (EPS) or are guessed (TGA); those are never tried.

Pixels are uint8 RGB ``(H, W, 3)``. Decisions, the same everywhere so that before and after stay comparable:

- of 16 bits the upper 8 are used (65535 becomes 255), in grey as in colour, never stretched to one image's range;
- RGB with another colour profile (ProPhoto, Adobe RGB, Display P3) becomes sRGB;
- transparent pixels are composited over black: they mean "no data", and padding is zero elsewhere too; of a pair that
  is captioned, over the ground on which the two images differ most (:func:`on_one_ground`);
- the EXIF orientation is applied; of an animation the first frame is used (:mod:`idc.data.frames` has the others).

Pillow decodes everything: OpenCV composites no transparent pixels, and to read a PNG of 480x320 takes it 0.93 of the
time of :func:`check_image`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from idc.data.color_profiles import apply_profile
from idc.data.jpeg2000_header import refuse_costly_codestream
from idc.data.tiff_header import MAX_BLOCKS, refuse_large_blocks, tiff_directories

MAX_PIXELS = 50_000_000
"""Above this an image is refused before a single pixel is decoded (an RGB array of 150 MB)."""

MAX_BYTES = 2**30
"""A larger file is refused before it is read."""

MAX_SCANS = 100
"""A JPEG with more scans is refused before a single pixel is decoded: each one costs a pass over all pixels, in a dozen
bytes. Encoders write up to some twenty; libtiff has the same limit."""

_MAX_SEGMENTS = 10_000
"""Most segments between the scans of a JPEG that are looked at."""

_MAX_READS = 2000
"""Most reads of the file that Pillow may need to open it. Its parsers are loops in Python with some reads for each
segment, chunk or box, so that a file of millions of empty ones would take seconds for each MiB."""

_MAX_EXIF = 2**20
"""Most bytes of EXIF, which Pillow parses in Python to turn an image; a JPEG holds 64 kB."""

FORMATS: dict[str, tuple[str, ...]] = {
    "PNG": (".png", ".apng"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "JPEG2000": (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
"""Pillow's names of the supported formats, with their file suffixes."""

IMAGE_SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)

OTHER_IMAGE_SUFFIXES = frozenset(
    {
        ".heic", ".heif", ".hif", ".svg", ".svgz", ".psd", ".eps", ".ps", ".ai", ".ico", ".cur", ".tga", ".exr", ".hdr",
        ".pfm", ".dds", ".jxl", ".jxr", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".qoi",
        ".pcx", ".sgi", ".ras", ".xcf", ".xbm", ".xpm", ".wmf", ".emf", ".fits", ".fit", ".icns", ".avif",
        ".avifs",
    }
)  # fmt: skip
"""Suffixes of other image formats; such files are reported instead of ignored."""

FORMAT_NAMES = "PNG, JPEG, WebP, BMP, GIF, TIFF, JPEG 2000 and PPM"
"""For messages."""

_BRANDS = {"AVIF": (b"avif", b"avis"), "HEIC": (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")}
"""Refused formats by the brands in a file's header. AVIF: a file that claims 8x8 pixels may hold 16384x16384, which
Pillow's decoder decodes (552 MiB) before it scales them down, and no limit of it can be set. HEIC: no decoder has a
permissive licence; pillow-heif's wheel is GPL-2.0 (x265), pi-heif's LGPL-3.0 (libheif, libde265)."""

_PLAIN_MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB", "HSV", "RGBX")
_ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")
_GREY_16_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_SCALE = "scale both images alike to 8 bits first: gdal_translate -ot Byte -scale BLACK WHITE 0 255 IN OUT.png"
"""The remedy for values that have no black and white of their own."""
_KEPT_FORMATS = ("PNG", "JPEG", "MPO", "WEBP")
_KEPT_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MAX_CHUNKS = 100_000
"""Chunks of a PNG among which texts are looked for."""
_PNG_ORIENTATION = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""The parts of a PNG that may have an orientation in them, before or behind the pixels."""


class ImageError(ValueError):
    """An image that cannot be used.

    Attributes:
        code: one of "empty file", "truncated image", "damaged image", "not an image", "too many pixels",
            "too many scans", "too much metadata", "unsupported mode", "missing file", "unreadable file",
            "too many bytes", "outside the source", "bad row"; stable, the text of the error begins with it.
        detail: never contains parts of the file.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """Result of :func:`check_image`: the size in pixels, the bytes to store, and what ``look`` returned."""

    data: bytes
    height: int
    width: int
    look: Any = None


Look = Callable[[np.ndarray], Any] | None
_GROUNDS = (0, 255, 128)
"""Grey levels of the grounds of :func:`on_one_ground`; of two that show as much, the first one."""


def on_one_ground(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two images, uint8 RGB or RGBA (H, W, 3 or 4), as RGB on the ground, black, white or grey, on which most of their
    pixels differ, and by most: on black alone, black letters would be as invisible as none."""
    if before.shape[2] == after.shape[2] == 3:
        return before, after
    laid = [(_over(before, ground), _over(after, ground)) for ground in _GROUNDS]
    height, width = np.minimum(before.shape[:2], after.shape[:2])
    shown = []
    for first, second in laid:
        distance = np.abs(first[:height, :width].astype(np.int16) - second[:height, :width]).max(axis=2)
        shown.append((np.count_nonzero(distance), int(distance.sum())))
    return laid[shown.index(max(shown))]


def _over(image: np.ndarray, ground: int) -> np.ndarray:
    if image.shape[2] == 3:
        return image
    laid = Image.new("RGBA", image.shape[1::-1], (ground, ground, ground, 255))
    return np.asarray(Image.alpha_composite(laid, Image.fromarray(image)).convert("RGB")).copy()


def decode_image(data: bytes, max_pixels: float = MAX_PIXELS, alpha: bool = False) -> np.ndarray:
    """Decode to uint8 RGB ``(H, W, 3)``; with ``alpha`` to RGBA ``(H, W, 4)`` if any pixel is transparent.

    Raises:
        ImageError: with its stable ``code``, if the bytes are not a usable image.
    """
    with loaded_image(data, max_pixels) as image:
        return upright(image, alpha)


def image_of(value: Any, alpha: bool = False) -> np.ndarray:
    """The pixels of an image of Pillow, as :func:`decode_image` would make them, or of an array.

    Raises:
        ValueError: it is neither, or an array of another shape or type.
    """
    if isinstance(value, Image.Image):
        return _to_rgb(ImageOps.exif_transpose(value), rounded=False, alpha=alpha)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"an image is a path, an image of Pillow or a NumPy array, got {type(value).__name__}")
    channels = value.shape[2:] or (1,)
    if value.dtype != np.uint8 or value.ndim not in (2, 3) or channels[0] not in (1, 3, 4) or not value.size:
        shape = "x".join(map(str, value.shape))
        raise ValueError(
            f"an array of an image is uint8 of shape (H, W), (H, W, 3) or (H, W, 4), got {value.dtype} {shape}"
        )
    image = Image.fromarray(value[..., 0] if value.ndim == 3 and channels[0] == 1 else value)
    return _to_rgb(image, rounded=False, alpha=alpha)


def check_image(data: bytes, max_pixels: float = MAX_PIXELS, look: Look = None) -> CheckedImage:
    """Decode once to verify the image, and return the bytes to store. ``look`` is called with the pixels, as
    :func:`decode_image` returns them.

    The original bytes are kept unless other software would show other pixels than :func:`decode_image` (16-bit grey,
    CMYK, TIFF and the like): those become an 8-bit RGB or RGBA PNG.

    Raises:
        ImageError: as :func:`decode_image`.
    """
    with loaded_image(data, max_pixels) as image:
        keep, seen = _is_kept(image), None if look is None else look(upright(image))
        # An upright image in a mode that is kept always becomes pixels, which nobody asks for here. Transparency beside
        # a palette may be damaged.
        if keep and "transparency" not in image.info and _orientation(image) == 1:
            return CheckedImage(data, image.height, image.width, seen)
        pixels = upright(image, alpha=True)
    return CheckedImage(data if keep else encode_png(pixels), pixels.shape[0], pixels.shape[1], seen)


def stored_bytes(data: bytes, max_pixels: float = MAX_PIXELS) -> bytes:
    """The bytes that :func:`check_image` stores, without decoding the pixels if the original is kept.

    Raises:
        ImageError: as :func:`decode_image`; damaged pixels of an image that is kept unchanged are not detected.
    """
    with open_image(data) as image:
        if _is_kept(image):
            return data
    return check_image(data, max_pixels).data


def _is_kept(image: Image.Image) -> bool:
    return image.format in _KEPT_FORMATS and image.mode in _KEPT_MODES


@contextmanager
def loaded_image(data: bytes, max_pixels: float) -> Iterator[Image.Image]:
    """As :func:`open_image`, with the pixels of the first frame decoded."""
    with open_image(data) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError("too many pixels", f"{width}x{height} is more than {max_pixels:.0f} pixels")
        image.load()
        _refuse_long_exif(image)
        yield image


def upright(image: Image.Image, alpha: bool = False) -> np.ndarray:
    """The pixels of an open image, as :func:`decode_image` returns them."""
    return _to_rgb(ImageOps.exif_transpose(image), rounded=image.format == "PPM", alpha=alpha)


def _orientation(image: Image.Image) -> Any:
    """EXIF's number of it; 1 for an image that is not turned."""
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # as getexif does
    _refuse_long_exif(image)
    return image.getexif().get(ExifTags.Base.Orientation, 1)


def _refuse_long_exif(image: Image.Image) -> None:
    if len(image.info.get("exif", b"")) > _MAX_EXIF:
        raise ImageError("too much metadata", f"EXIF of more than {_MAX_EXIF:,} bytes")


def image_size(data: bytes) -> tuple[int, int]:
    """Height and width of :func:`decode_image`. The pixels are not decoded, except of a PNG that may have its
    orientation behind them.

    Raises:
        ImageError: the header is not that of a usable image.
    """
    with open_image(data) as image:
        width, height = image.size
        # Of every PNG that does not begin with EXIF, Pillow decodes the pixels to read on.
        may_turn = image.format != "PNG" or any(mark in data for mark in _PNG_ORIENTATION)
        turned = may_turn and _orientation(image) in (5, 6, 7, 8)  # they exchange height and width
    return (width, height) if turned else (height, width)


def num_pixels(data: bytes) -> int:
    """Height times width, from the header alone.

    Raises:
        ImageError: as :func:`image_size`.
    """
    with open_image(data) as image:
        width, height = image.size
    return width * height


@contextmanager
def open_image(data: bytes) -> Iterator[Image.Image]:
    """The image with its header read and no pixel decoded; every fault, also inside the block, becomes an ImageError.

    Raises:
        ImageError: with its stable ``code``, if the bytes are not a usable image.
    """
    if not data:
        raise ImageError("empty file")
    try:
        if data.startswith(_PNG):
            data = _without_texts(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own bomb and EXIF warnings; the caller's limits decide
            check_tiff(data)
            file = _Counted(data)
            with Image.open(file, formats=list(FORMATS)) as image:
                file.reads_left = None
                if image.format in ("JPEG", "MPO"):
                    _refuse_many_scans(data)
                elif image.format == "JPEG2000":
                    with _costly():
                        refuse_costly_codestream(data, image.size)
                yield image
    except ImageError:
        raise
    except Image.DecompressionBombError as exc:
        raise ImageError("too many pixels", str(exc)) from exc
    except UnidentifiedImageError as exc:
        if name := refused_format(data):
            raise ImageError("not an image", f"{name}, which is not read; convert it to JPEG") from exc
        if data[:2] in (b"II", b"MM"):
            text = "a TIFF that is damaged, or of bits, bands or a compression that are not read"
            raise ImageError("not an image", f"{text}; convert it to 8-bit RGB") from exc
        raise ImageError("not an image", f"{len(data)} bytes that are none of {FORMAT_NAMES}") from exc
    except MemoryError:
        raise
    except Exception as exc:  # decoders raise OSError, SyntaxError, struct.error, zlib.error, ... for damaged files
        text = f"{type(exc).__name__}: {_QUOTED.sub('...', str(exc))}"
        raise ImageError(_code(exc, text.lower()), text) from exc


def _without_texts(data: bytes) -> bytes:
    """A PNG without texts that nobody reads, which phones and editors write in megabytes and Pillow unpacks."""
    if not any(kind in data for kind in _PNG_TEXTS):
        return data
    position, parts = len(_PNG), [data[: len(_PNG)]]
    for _ in range(_MAX_CHUNKS):
        length, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        end = position + 12 + length
        if kind not in _PNG_TEXTS or data[position + 8 : end].startswith(_PNG_ORIENTATION):
            parts.append(data[position:end])
        position = end
        if position >= len(data):
            break
    return b"".join([*parts, data[position:]])


def check_tiff(data: bytes, others: bool = False) -> None:
    """Refuse a TIFF whose header makes Pillow or libtiff parse or allocate much; ``others``: also its further pages."""
    if data[:4] == b"MM\0+":  # Pillow would read another directory than this one
        raise ImageError("not an image", "a BigTIFF of big-endian numbers, which Pillow does not read")
    try:
        directories = tiff_directories(io.BytesIO(data), others)
    except ValueError as error:
        raise ImageError("too much metadata", str(error)) from None
    with _costly():
        for image in directories[: None if others else 1]:
            refuse_large_blocks(image, directories[0])
            if image.stored_blocks > MAX_BLOCKS:
                raise ValueError(f"it is stored in {image.stored_blocks:,} blocks, more than {MAX_BLOCKS:,}")


@contextmanager
def _costly() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ImageError("too many pixels", str(error)) from None


def refused_format(data: bytes) -> str | None:
    """The name of a format of images that is refused, HEIC or AVIF, by the main brand of the file or the first three
    compatible ones."""
    brands = [data[at : at + 4] for at in (8, 16, 20, 24)] if data[4:8] == b"ftyp" else []
    return next((name for name, refused in _BRANDS.items() if set(refused) & set(brands)), None)


class _Counted(io.BytesIO):
    """A file that can be read ``reads_left`` times; None for any number."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self.reads_left: int | None = _MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise ImageError("too much metadata", f"its header has more than {_MAX_READS} parts")
        return super().read(size)


_MARKER = re.compile(rb"\xff([\xc0-\xcf\xda-\xfe])|\xff\xd9")
"""A marker of a JPEG that a length follows, or its end. Compressed data have no such bytes: there \xff is followed by
zero or by a marker without a length (restarts, invalid ones); any number of fill bytes \xff may precede a marker."""
_SCAN = b"\xff\xda"


def _refuse_many_scans(data: bytes) -> None:
    """Count the scans of a JPEG as libjpeg finds them: not in previews, nor behind its end."""
    if data.count(_SCAN) <= MAX_SCANS:
        return
    scans, position = 0, 2
    for _ in range(_MAX_SEGMENTS):
        marker = _MARKER.search(data, position)
        if marker is None or marker[1] is None:
            return
        scans += marker[0] == _SCAN
        if scans > MAX_SCANS:
            raise ImageError("too many scans", f"a progressive JPEG of more than {MAX_SCANS} scans")
        position = marker.end() + max(2, int.from_bytes(data[marker.end() : marker.end() + 2], "big"))
    raise ImageError("too much metadata", f"a JPEG of more than {_MAX_SEGMENTS} segments")


_QUOTED = re.compile(r"""b?(['"]).*\1""", re.DOTALL)
"""Matches bytes of the file in Pillow's messages."""


def _code(exc: Exception, text: str) -> str:
    if "decompressed data too large" in text or "too much memory used in text" in text:
        return "too much metadata"
    cut = isinstance(exc, EOFError) or any(word in text for word in ("truncat", "unexpected end", "eof"))
    return "truncated image" if cut else "damaged image"


def _to_rgb(image: Image.Image, rounded: bool, alpha: bool) -> np.ndarray:
    """``alpha``: RGBA where a pixel is transparent.
    ``rounded``: divide 16 bits by 257 and round, as Pillow does for colours in this format."""
    if image.mode in _GREY_16_MODES:
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ImageError("unsupported mode", f"{image.mode} with values {grey.min()} to {grey.max()}; {_SCALE}")
        eight = (grey + 128) // 257 if rounded else grey // 256
        return np.repeat(eight.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        pixels = np.array(apply_profile(image.convert("RGBA")))
        return pixels if alpha and pixels[..., 3].min() < 255 else _over(pixels, ground=0)
    if image.mode not in _PLAIN_MODES:
        raise ImageError("unsupported mode", f"{image.mode}; {_SCALE}")
    image = apply_profile(image)
    return np.asarray(image.convert("RGB")).copy()


def encode_png(pixels: np.ndarray, compress_level: int = 4) -> bytes:
    """uint8 ``(H, W, 3)`` RGB, RGBA or ``(H, W)`` grey as PNG bytes; equal pixels give equal bytes."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise ValueError(f"encode_png takes uint8 (H, W, 3) or (H, W), got {pixels.dtype} {pixels.shape}")
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, format="PNG", compress_level=compress_level)
    return out.getvalue()


def resize_image(pixels: np.ndarray, size: int | tuple[int, int]) -> np.ndarray:
    """Resize uint8 ``(H, W, 3)`` or ``(H, W)`` to ``size`` (height, width; one number for a square).

    The aspect ratio is not kept, as in ProCap (480x320 to 224x224); bicubic with antialiasing.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
