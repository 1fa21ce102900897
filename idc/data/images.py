"""Image bytes to pixels and back. Every decoder of the project goes through :func:`decode_image`.

Pixels are uint8 RGB ``(H, W, 3)``. Decisions, the same everywhere so that before and after stay comparable:

- 16-bit grey is scaled by its full range (65535 becomes 255), never stretched to the content of one image;
- transparent pixels are laid over black: they mean "no data", and zero is what padding is elsewhere;
- the EXIF orientation is applied; of an animation the first frame counts.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from idc.data.files import Reader, read_bytes

__all__ = [
    "MAX_PIXELS",
    "ImageError",
    "cell_bytes",
    "cell_name",
    "check_image",
    "decode_image",
    "encode_png",
    "read_bytes",
    "resize_image",
    "stored_bytes",
]

MAX_PIXELS = 50_000_000
"""Above this an image is refused before a single pixel is decoded (an RGB array of 150 MB)."""

_PLAIN_MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB", "HSV", "RGBX")
_ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")
_GREY_16_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_KEPT_FORMATS = ("PNG", "JPEG", "WEBP")
_KEPT_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


class ImageError(ValueError):
    """An image that cannot be used.

    Attributes:
        code: one of "empty file", "truncated image", "damaged image", "not an image", "too many pixels",
            "unsupported mode", "missing file", "unreadable file"; stable, the text of the error begins with it.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """What :func:`check_image` found: the size in pixels and the bytes worth storing."""

    data: bytes
    height: int
    width: int


def cell_bytes(cell: Any, reader: Reader) -> bytes:
    """The encoded image that a table's cell holds, or the file that it names.

    Raises:
        ImageError: "missing file" (also of an empty cell) or "unreadable file".
    """
    if not isinstance(cell, bytes | str) or cell == "":
        raise ImageError("missing file")
    try:
        return reader.read(cell) if isinstance(cell, str) else cell
    except FileNotFoundError as exc:
        raise ImageError("missing file") from exc
    except (OSError, ValueError) as exc:
        raise ImageError("unreadable file", f"{type(exc).__name__}: {exc}") from exc


def cell_name(cell: Any) -> str:
    """What a message calls the image of such a cell."""
    if isinstance(cell, bytes):
        return "bytes in the table"
    return cell if isinstance(cell, str) and cell else "the cell is empty"


def decode_image(data: bytes, max_pixels: float = MAX_PIXELS) -> np.ndarray:
    """Decode to uint8 RGB ``(H, W, 3)``.

    Raises:
        ImageError: with its stable ``code``, if the bytes are no usable image.
    """
    return _decode(data, max_pixels)[0]


def check_image(data: bytes, max_pixels: float = MAX_PIXELS) -> CheckedImage:
    """Decode once to see that it works, and give the bytes to keep.

    The original bytes are kept, except where other software would show other pixels than :func:`decode_image`
    (16-bit grey, CMYK, TIFF and the like): those become an 8-bit RGB PNG.

    Raises:
        ImageError: as :func:`decode_image`.
    """
    pixels, keep = _decode(data, max_pixels)
    return CheckedImage(data if keep else encode_png(pixels), pixels.shape[0], pixels.shape[1])


def stored_bytes(data: bytes, max_pixels: float = MAX_PIXELS) -> bytes:
    """The bytes that :func:`check_image` keeps, without decoding the pixels where the original is kept.

    Raises:
        ImageError: as :func:`decode_image`; damage in the pixels of an image that is kept as it is goes unnoticed.
    """
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
            if _is_kept(image):
                return data
    except Exception:  # what decoders raise: check_image names the reason
        pass
    return check_image(data, max_pixels).data


def _is_kept(image: Image.Image) -> bool:
    return image.format in _KEPT_FORMATS and image.mode in _KEPT_MODES


def _decode(data: bytes, max_pixels: float) -> tuple[np.ndarray, bool]:
    if not data:
        raise ImageError("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own bomb and EXIF warnings; max_pixels decides here
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise ImageError("too many pixels", f"{width}x{height} is more than {max_pixels:.0f} pixels")
                keep = _is_kept(image)
                image.load()
                return _to_rgb(ImageOps.exif_transpose(image)), keep
    except ImageError:
        raise
    except Image.DecompressionBombError as exc:
        raise ImageError("too many pixels", str(exc)) from exc
    except UnidentifiedImageError as exc:
        raise ImageError("not an image", f"{len(data)} bytes beginning with {data[:8]!r}") from exc
    except MemoryError:
        raise
    except Exception as exc:  # decoders raise OSError, SyntaxError, struct.error, zlib.error, ... for damaged files
        text = f"{type(exc).__name__}: {exc}"
        cut = isinstance(exc, EOFError) or any(w in text.lower() for w in ("truncat", "unexpected end", "eof"))
        raise ImageError("truncated image" if cut else "damaged image", text) from exc


def _to_rgb(image: Image.Image) -> np.ndarray:
    if image.mode in _GREY_16_MODES:
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ImageError("unsupported mode", f"{image.mode} with values {grey.min()} to {grey.max()}")
        return np.repeat(((grey + 128) // 257).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        return np.asarray(Image.alpha_composite(black, rgba).convert("RGB")).copy()
    if image.mode not in _PLAIN_MODES:
        raise ImageError("unsupported mode", image.mode)
    return np.asarray(image.convert("RGB")).copy()


def encode_png(pixels: np.ndarray, compress_level: int = 4) -> bytes:
    """uint8 ``(H, W, 3)`` RGB or ``(H, W)`` grey as PNG bytes; equal pixels give equal bytes."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise ValueError(f"encode_png takes uint8 (H, W, 3) or (H, W), got {pixels.dtype} {pixels.shape}")
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, format="PNG", compress_level=compress_level)
    return out.getvalue()


def resize_image(pixels: np.ndarray, size: int | tuple[int, int]) -> np.ndarray:
    """Resize uint8 ``(H, W, 3)`` or ``(H, W)`` to ``size`` (height, width; one number for a square).

    The whole image is squeezed into the size, as ProCap does with 480x320 to 224x224; bicubic with antialiasing.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
