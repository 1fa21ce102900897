"""PDF files drawn for tests: texts, scans and drawings."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.pagesizes import A4
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

Draw = Callable[[Canvas], None]
WORDS = [
    "harbour", "river", "contract", "delivery", "payment", "notice", "seller", "buyer", "goods", "clause", "party",
    "term", "price", "market",
]  # fmt: skip


def pdf(pages: Sequence[Draw], password: str | None = None) -> bytes:
    """A PDF file with these pages."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, encrypt=password)
    for draw in pages:
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def text_lines(seed: int, words: Mapping[tuple[int, int], str] = MappingProxyType({})) -> list[str]:
    """Forty lines of text; ``words`` replaces those of (line, number)."""
    rng = random.Random(seed)
    lines = [[rng.choice(WORDS) for _ in range(9)] for _ in range(40)]
    for (line, number), word in words.items():
        lines[line][number] = word
    return [" ".join(line) for line in lines]


def text_page(seed: int, words: Mapping[tuple[int, int], str] = MappingProxyType({})) -> Draw:
    """A page of :func:`text_lines`."""

    def draw(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 11)
        for number, line in enumerate(text_lines(seed, words)):
            canvas.drawString(70, 770 - 16 * number, line)

    return draw


def table_page(cell: str = "412.50") -> Draw:
    """A heading and a table of numbers, one of which is ``cell``."""

    def draw(canvas: Canvas) -> None:
        canvas.setFont("Helvetica-Bold", 16)
        canvas.drawString(70, 770, "Prices of the quarter")
        canvas.setFont("Helvetica", 11)
        for row in range(8):
            for column in range(4):
                x, y = 70 + 110 * column, 720 - 24 * row
                canvas.rect(x, y, 110, 24)
                text = cell if (row, column) == (5, 2) else f"{37 * (row + 1) * (column + 2) % 1000}.00"
                canvas.drawString(x + 8, y + 8, text)

    return draw


def picture_page(colours: tuple[str, str] = ("red", "blue"), title: str = "Plan of the site") -> Draw:
    """A drawing of lines and shapes, and a picture in it, of these colours."""

    def draw(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 14)
        canvas.drawString(70, 770, title)
        for number in range(12):
            canvas.line(70, 420 + 25 * number, 520, 420 + 25 * number)
            canvas.line(70 + 40 * number, 420, 70 + 40 * number, 700)
        picture = Image.new("RGB", (200, 120), colours[0])
        ImageDraw.Draw(picture).ellipse((40, 20, 160, 100), fill=colours[1])
        canvas.drawImage(ImageReader(picture), 120, 200, 200, 120)

    return draw


def scanned_page(seed: int, words: Mapping[tuple[int, int], str] = MappingProxyType({})) -> Draw:
    """A page that is one picture of a text, as scanners write it."""
    sheet = Image.new("L", (1240, 1754), 255)
    font = ImageFont.load_default(26)
    for number, line in enumerate(text_lines(seed, words)[:30]):
        ImageDraw.Draw(sheet).text((120, 120 + 50 * number), line, 0, font)

    def draw(canvas: Canvas) -> None:
        canvas.drawImage(ImageReader(sheet), 0, 0, *A4)

    return draw


def raw_pdf(objects: Sequence[bytes], pages: str = "[3 0 R]", count: int = 1, box: str = "0 0 612 792") -> bytes:
    """A file of one page, the object 3, whose content is the object 4; ``objects``: from that one on. Readers find
    objects without a table of them."""
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids {pages} /Count {count} >>".encode(),
        f"<< /Type /Page /Parent 2 0 R /MediaBox [{box}] /Contents 4 0 R /Resources 5 0 R >>".encode(),
        *objects,
    ]
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % entry for entry in enumerate(parts, 1))
    return b"%PDF-1.7\n" + body + b"trailer << /Root 1 0 R >>\n%%EOF\n"


def stream(content: bytes, entries: str = "") -> bytes:
    """A stream object."""
    return f"<< /Length {len(content)} {entries} >> stream\n".encode() + content + b"\nendstream"


def laughs(levels: int = 9) -> bytes:
    """A file of forms, each of which draws the next one ten times."""
    draw = b"/F Do " * 10
    resources = [f"<< /XObject << /F {6 + level} 0 R >> >>" for level in range(levels)]
    form = "/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources "
    forms = [stream(draw, form + resources[level]) for level in range(1, levels)]
    return raw_pdf([stream(draw), resources[0].encode(), *forms, stream(b"0 0 600 700 re f", form + "<< >>")])


def picture_bomb(side: int = 60_000) -> bytes:
    """A file with a picture of billions of pixels."""
    packed = zlib.compress(bytes(1 << 20), 9)
    picture = f"/Type /XObject /Subtype /Image /Width {side} /Height {side} /ColorSpace /DeviceRGB"
    picture += " /BitsPerComponent 8 /Filter /FlateDecode"
    content = b"q 612 0 0 792 0 0 cm /F Do Q"
    return raw_pdf([stream(content), b"<< /XObject << /F 6 0 R >> >>", stream(packed, picture)])
