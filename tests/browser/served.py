"""The page as ``python -m serve.app`` serves it, with four captioners, and what those captioners say themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from playwright.sync_api import Page

from idc.captioning.apply import Pixels
from idc.captioning.contract import Captioner, Description
from idc.captioning.loading import AUTO, DEFAULTS, SHIPPED, SHIPPED_SATELLITE, CaptionerLoader
from idc.data.images import decode_image
from tests.serve.command import Command, serving
from tests.vlm.artifacts import wrapped

EXAMPLES = Path(__file__).parents[2] / "serve/web/examples"
RENDERED = EXAMPLES / "color-before.png", EXAMPLES / "color-after.png"
BOTTLES = tuple(EXAMPLES / "photographs" / f"bottle_{number}.jpg" for number in ("00100", "00260"))

Visit = Callable[..., Page]
"""``visit(model="auto", prepare=None, **settings of the browser's context)`` opens the page; see the fixture."""


@contextlib.contextmanager
def served_page(folder: Path) -> Iterator[Command]:
    """The command with the models ``auto``, ``shipped``, ``satellite`` and ``dialogue``."""
    sources = {"auto": AUTO, "shipped": SHIPPED, "satellite": SHIPPED_SATELLITE, "dialogue": wrapped(folder / "vlm")}
    with serving(folder, *(f"models.{name}={source}" for name, source in sources.items())) as command:
        yield command


@cache
def captioner(source: str = AUTO) -> Captioner:
    with contextlib.chdir(EXAMPLES):  # where no training has left a captioner that `auto` would prefer
        return CaptionerLoader(source, DEFAULTS)()


def describe(files: tuple[Path, ...], ignore: list[list[float]] | None = None) -> Description:
    """What ``auto`` itself says of a pair, without these boxes."""
    pair = Pixels(*(decode_image(file.read_bytes()) for file in files)).counting(ignore or [], [])
    return captioner().describe([pair.before], [pair.after], candidates=3, counted=[pair.counted])[0]
