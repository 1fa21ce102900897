"""A screenshot of the served page with a result, or with a name that ends in .gif a moving picture of its use.

python -m tests.browser.screenshot docs/serve.png --examples 13
python -m tests.browser.screenshot docs/serve.gif --examples 5 1 7
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageOps
from playwright.sync_api import Page

from tests.browser.driving import chromium
from tests.serve.command import serving


def usage(page: Page, examples: list[int]) -> Iterator[tuple[bytes, int]]:
    """Screenshots of examples that are captioned and looked at, each with its milliseconds."""
    yield page.screenshot(), 1200
    for number in examples:
        page.locator("#examples button").nth(number - 1).click()
        page.locator("#waiting").filter(has_text="Captioning").wait_for()
        page.locator("#result").wait_for()
        page.mouse.move(0, 0)
        yield page.screenshot(), 3000
    page.locator("#show-slider").check()
    for share in (10, 30, 50, 70, 90, 50):
        page.locator("#slider").fill(str(share))
        yield page.screenshot(), 250
    page.locator("#show-slider").uncheck()


def write_gif(shots: list[tuple[bytes, int]], out: str) -> None:
    """Write the screenshots, at four fifths of their size, as a GIF that repeats."""
    pictures = [ImageOps.scale(Image.open(io.BytesIO(shot)).convert("RGB"), 0.8) for shot, _ in shots]
    palette = pictures[-1].quantize(256)  # for all: then frames differ where the page does
    first, *others = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    durations = [milliseconds for _, milliseconds in shots]
    first.save(out, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the PNG or GIF file")
    parser.add_argument("--examples", type=int, nargs="+", default=[1], help="of the page, from 1 (default: 1)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as command, chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.goto(f"{command.url}/", wait_until="networkidle")
        shots = list(usage(page, args.examples))
        if args.out.endswith(".gif"):
            write_gif(shots, args.out)
        else:  # six bits a channel look the same and pack better: the pictures' grain is in the other two
            shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
            ImageOps.posterize(shot, 6).save(args.out, optimize=True)


if __name__ == "__main__":
    main()
