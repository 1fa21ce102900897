"""Chromium, a reader's actions on a page, and what is observed: pixels, accessible names, contrasts, overflow."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

NAMED = {"button", "link", "combobox", "slider", "textbox", "meter", "image"}  # roles that must have a name

CONTRASTS = """() => {
  const channels = (css) => css.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const contrasts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    if (element.closest("script, noscript, option, :disabled, [aria-disabled=true]")) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    contrasts.push([(a + 0.05) / (b + 0.05), text]);
  }
  return contrasts;
}"""
"""Contrast ratio (WCAG 2, from 1 to 21) and text of all visible texts; disabled controls are exempt."""

TOO_WIDE = """() => {
  const scrolled = (e) => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolled(e.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter((e) => e.checkVisibility() && !e.closest(".unseen") && !scrolled(e.parentElement))
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
    .map((e) => `${e.tagName}#${e.id} ${e.getBoundingClientRect().right}`)
    .concat(document.documentElement.scrollWidth > innerWidth ? ["the document"] : []);
}"""
"""Elements that extend beyond the window, unless a box around them scrolls, and the document if it scrolls sideways."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, which the variable CHROMIUM may name."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("this test needs Chromium: `apt-get install chromium`, or name the program in CHROMIUM")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


def bounds(shown: Locator) -> np.ndarray:
    """Left, top, right and bottom in pixels of the window."""
    box = shown.bounding_box()
    return np.array([box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]])


def drop(page: Page, target: str, *files: Path) -> None:
    """Drag local files onto the middle of what the window shows of an element and drop them."""
    page.locator(target).scroll_into_view_if_needed()
    left, top, right, bottom = bounds(page.locator(target))
    bottom = min(bottom, page.evaluate("innerHeight"))
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    point = {"x": (left + right) / 2, "y": (top + bottom) / 2, "data": data}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **point})
    session.detach()


def drag(page: Page, target: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag between two points of an element, given as shares of its size."""
    page.locator(target).scroll_into_view_if_needed()
    left, top, right, bottom = bounds(page.locator(target))
    page.mouse.move(left + start[0] * (right - left), top + start[1] * (bottom - top))
    page.mouse.down()
    page.mouse.move(left + end[0] * (right - left), top + end[1] * (bottom - top), steps=4)
    page.mouse.up()


def pixels(shown: Locator) -> np.ndarray:
    """The rendered pixels, uint8 (Y, X, 3)."""
    return np.asarray(Image.open(io.BytesIO(shown.screenshot())).convert("RGB"))


def assert_readable(page: Page, scheme: str = "light") -> None:
    """The page follows the reader's colours, nothing is wider than the window, every text has a contrast of 4.5 or
    more, every control has a name."""
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(paper.removeprefix("rgb(").split(",")[0]) < 60) == (scheme == "dark"), paper
    assert page.evaluate(TOO_WIDE) == []
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 10
    assert [contrast for contrast in contrasts if contrast[0] < 4.5] == []
    session = page.context.new_cdp_session(page)
    nodes: list[Any] = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    controls = [node for node in nodes if not node["ignored"] and node.get("role", {}).get("value") in NAMED]
    assert [node for node in controls if not node.get("name", {}).get("value", "").strip()] == []
