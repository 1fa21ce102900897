"""A screenshot of the served page with a result, or with a name that ends in .gif a moving picture of its use.

python -m tests.browser.screenshot auto docs/serve.png --examples 13
python -m tests.browser.screenshot auto docs/serve_photograph.png
python -m tests.browser.screenshot auto docs/serve.gif --examples 5 1 7
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageOps
from playwright.sync_api import Page, sync_playwright

from serve.api import create_api
from tests.browser.chromium import chromium
from tests.serve.local import LocalBackend, local_config, serving


def usage(page: Page, examples: list[int]) -> Iterator[tuple[bytes, int]]:
    """Screenshots of examples that are captioned and looked at, each with its milliseconds."""
    page.locator("#examples img").first.wait_for()
    yield page.screenshot(), 1200
    for number in examples:
        with page.expect_response("**/v1/captions*"):
            page.locator("#examples button").nth(number - 1).click()
        page.locator("#map[data-drawn]").wait_for()
        page.mouse.move(0, 0)
        page.evaluate("document.querySelector('#result').scrollIntoView()")
        yield page.screenshot(), 3000
    for share in (10, 30, 50, 70, 90, 50):
        page.locator("#slider").fill(str(share))
        yield page.screenshot(), 250


def moving_picture(shots: list[tuple[bytes, int]], out: str) -> None:
    """Write the screenshots, at four fifths of their size, as a GIF that repeats."""
    pictures = [Image.open(io.BytesIO(shot)).convert("RGB") for shot, _ in shots]
    pictures = [ImageOps.scale(picture, 0.8, Image.Resampling.LANCZOS) for picture in pictures]
    width, height = pictures[0].size
    montage = Image.new("RGB", (width, height * len(pictures)))
    for number, picture in enumerate(pictures):
        montage.paste(picture, (0, height * number))
    palette = montage.quantize(256)  # one palette for all: frames then differ where the page does
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    durations = [milliseconds for _, milliseconds in shots]
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", help="a captioner")
    parser.add_argument("out", help="the PNG or GIF file")
    parser.add_argument("--examples", type=int, nargs="+", default=[1], help="of the page, from 1 (default: 1)")
    parser.add_argument("--pair", nargs=2, metavar=("BEFORE", "AFTER"), help="image files in place of an example")
    parser.add_argument(
        "--width", type=int, default=1000, help="of the window (default: 1000); below 500 a telephone's"
    )
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    args = parser.parse_args()
    name = Path(args.artifact).name
    api = create_api(local_config("", models={name: args.artifact}), LocalBackend(args.artifact, (name,)))
    with serving(api) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(
            viewport={"width": args.width, "height": 900},
            color_scheme="dark" if args.dark else "light",
            reduced_motion="reduce",
            has_touch=args.width < 500,
        )
        page.goto(f"{url}/")
        if args.out.endswith(".gif"):
            moving_picture(list(usage(page, args.examples)), args.out)
            browser.close()
            return
        if args.pair:
            for side, file in zip(("before", "after"), args.pair, strict=True):
                page.locator(f"#{side}").set_input_files(file)
                page.locator(f".slot.full[data-side={side}]").wait_for()
            page.locator("#ask").click()
        else:
            page.locator("#examples button").nth(args.examples[0] - 1).click()
        page.locator("#map[data-drawn]").wait_for()
        page.emulate_media(reduced_motion="no-preference")  # with all buttons; nothing moves any more
        page.mouse.move(0, 0)
        shot = page.screenshot(full_page=True)
        browser.close()
    # Six bits a channel look the same and pack better: the pictures' grain is in the other two.
    ImageOps.posterize(Image.open(io.BytesIO(shot)).convert("RGB"), 6).save(args.out, optimize=True)


if __name__ == "__main__":
    main()
