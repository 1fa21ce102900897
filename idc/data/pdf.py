"""Documents: PDF files, rendered by PDFium (the extra ``documents``) page by page in a process of their own, which ends
if a page takes too long, needs too much memory or crashes it.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom) in their pixels.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from idc.data.decoder_process import DecoderProcess
from idc.data.images import ImageError

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

MOST_PAGES = 1000
"""Pages of a document that is read: twenty seconds of a core for a thousand of text."""
_SCALE, PAGE_PIXELS = 2.0, 8_000_000
"""Pixels for a point, 1/72 inch, as far as a page has not more pixels: an A2 sheet has as many."""
_DOCUMENT_SECONDS, _PAGE_SECONDS = 45.0, 20.0
"""Most processor time for all pages, and for one that is looked at closely."""
_MEMORY = 3 * 2**30
"""Of the process, in bytes of addresses, half of which libraries take for themselves."""
_INK, _BINS = (32, 24), 512
"""Rows and columns at which pages are compared to pair them, and the length of their vector of words."""
_PASSWORD = 4
"""PDFium's number for a file that needs a password, or of which the encryption is not known."""

NO_PDFIUM = "a PDF, which needs PDFium: pip install 'idc[documents]'"
"""Why there is no document where the extra is not installed."""

Result = TypeVar("Result")


class PlacedWord(NamedTuple):
    """A word of a page and its box."""

    text: str
    box: tuple[int, int, int, int]


class PageLook(NamedTuple):
    """What pages are paired by: a hash of all pixels and the text, the vector of its words (V,), and its darkness less
    the mean (N,), both of length 1 or 0."""

    key: bytes
    words: np.ndarray
    ink: np.ndarray


class RenderedPage(NamedTuple):
    """The pixels of a page, and its words in the order of the file."""

    image: np.ndarray
    words: tuple[PlacedWord, ...]


def is_pdf(data: bytes) -> bool:
    """Whether a file is a PDF, by its beginning."""
    return data[:1024].lstrip().startswith(b"%PDF-")


class Document:
    """A PDF file; picklable. All documents of a program are read by one process, which starts with the first call.

    Args:
        data: the file.
        max_pixels: of a page; larger ones are rendered smaller.

    Raises:
        ImageError: PDFium is not installed. Of the methods: "damaged document", "needs a password", "too many pages",
            "takes too long", "too much memory".
    """

    def __init__(self, data: bytes, max_pixels: float = PAGE_PIXELS) -> None:
        if find_spec("pypdfium2") is None:
            raise ImageError("not an image", NO_PDFIUM)
        self.data, self._max_pixels = data, min(max_pixels, PAGE_PIXELS)

    def looks(self) -> list[PageLook]:
        """Of all pages, one after the other in memory."""
        return self._run(_DOCUMENT_SECONDS, _looks)

    def page(self, number: int) -> RenderedPage:
        """The page of a number, from 0."""
        return self._run(_PAGE_SECONDS, partial(_rendered, number=number))

    def _run(self, seconds: float, read: Callable[..., Result]) -> Result:
        with _TURN:
            if _decoder().ended:
                _decoder.cache_clear()
            return _decoder().run(seconds, _read, read, self.data, self._max_pixels)


_TURN = Lock()
"""Held while the process of the documents reads one of them."""


@cache
def _decoder() -> DecoderProcess:
    return DecoderProcess("document", _MEMORY)


def _read(read: Callable[[PdfDocument, float], Result], data: bytes, max_pixels: float) -> Result:
    from pypdfium2 import PdfDocument, PdfiumError

    try:
        document = PdfDocument(data)
        if (count := len(document)) > MOST_PAGES:
            raise ImageError("too many pages", f"{count:,}; at most {MOST_PAGES:,} are compared, so split the document")
        if count:
            document.init_forms()
            return read(document, max_pixels)
    except PdfiumError as error:
        if error.err_code == _PASSWORD:
            raise ImageError("needs a password", "an encrypted document; save a copy without a password") from None
        raise ImageError("damaged document", " ".join(str(error).split())) from None
    raise ImageError("damaged document", "it has no pages")


def _looks(document: PdfDocument, max_pixels: float) -> list[PageLook]:
    return [_look(document[number], max_pixels) for number in range(len(document))]


def _look(page: PdfPage, max_pixels: float) -> PageLook:
    import cv2

    image, text = _image(page, max_pixels), page.get_textpage().get_text_range()
    key = hashlib.blake2b(image.tobytes() + repr((image.shape, text)).encode(), digest_size=16).digest()
    bins = [zlib.crc32(word.encode()) % _BINS for word in text.split()]
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    ink = 255 - cv2.resize(grey, _INK[::-1], interpolation=cv2.INTER_AREA).astype(np.float32).ravel()
    page.close()
    return PageLook(key, _unit(np.bincount(bins, minlength=_BINS)), _unit(ink - ink.mean()))


def _unit(values: np.ndarray) -> np.ndarray:
    return np.asarray(values / max(float(np.linalg.norm(values)), 1e-6), np.float32)


def _rendered(document: PdfDocument, max_pixels: float, number: int) -> RenderedPage:
    page = document[number]
    return RenderedPage(_image(page, max_pixels), tuple(_words(page, max_pixels)))


def _scale_of(page: PdfPage, max_pixels: float) -> float:
    width, height = page.get_size()
    return min(_SCALE, math.sqrt(max_pixels / max(width * height, 1.0)))


def _image(page: PdfPage, max_pixels: float) -> np.ndarray:
    bitmap = page.render(scale=_scale_of(page, max_pixels), rev_byteorder=True)
    return np.array(bitmap.to_numpy()[..., :3])


def _words(page: PdfPage, max_pixels: float) -> list[PlacedWord]:
    """The words that are on the page, as far as they are."""
    from ctypes import byref, c_double, c_int

    from pypdfium2 import raw

    text = page.get_textpage()
    scale = _scale_of(page, max_pixels)
    size = [math.ceil(length * scale) for length in page.get_size()]
    ends = [c_double() for _ in range(4)]  # left, right, bottom, top, in points
    words: list[PlacedWord] = []
    letters, boxes = list[str](), list[list[float]]()

    def end_word() -> None:
        if boxes:
            (left, _, bottom, _), (_, right, _, top) = np.min(boxes, axis=0), np.max(boxes, axis=0)
            pixels = []
            for x, y in ((left, bottom), (right, top)):
                at = c_int(), c_int()
                raw.FPDF_PageToDevice(page, 0, 0, *size, 0, x, y, byref(at[0]), byref(at[1]))
                pixels.append([min(max(end.value, 0), length) for end, length in zip(at, size, strict=True)])
            (left, top), (right, bottom) = np.min(pixels, axis=0).tolist(), np.max(pixels, axis=0).tolist()
            if left < right and top < bottom:
                words.append(PlacedWord(_whole("".join(letters)), (left, top, right, bottom)))
        letters.clear()
        boxes.clear()

    for index in range(text.count_chars()):
        letter = chr(raw.FPDFText_GetUnicode(text, index) or 0x20)
        if letter.isspace() or letter in "\x02\ufffe":  # the last two end a line with a hyphen
            end_word()
            continue
        letters.append(letter)
        if raw.FPDFText_GetCharBox(text, index, *map(byref, ends)):
            boxes.append([end.value for end in ends])
    end_word()
    return words


def _whole(text: str) -> str:
    """Text without halves of letters, which no file can store."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
