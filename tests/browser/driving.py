"""User actions on a page and observations of it: dropped files, pixels, accessible names, contrasts."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Locator, Page

CONTROLS = {"button", "link", "combobox", "slider", "textbox", "meter", "image"}
"""Roles of the accessibility tree that must have a name."""

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
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    if (element.closest("script, noscript, option, :disabled, [aria-disabled=true]")) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), text]);
  }
  return found;
}"""
"""Contrast ratio (WCAG 2, from 1 to 21) and text of all visible texts; disabled controls are exempt."""


def drop(page: Page, target: Locator, *files: Path) -> None:
    """Drag local files onto the middle of ``target`` and drop them."""
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "data": data}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **place})
    session.detach()


def paste(page: Page, file: Path) -> None:
    """Paste a PNG from the clipboard by the keyboard."""
    data = base64.b64encode(file.read_bytes()).decode()
    page.evaluate(
        """async (data) => {
          const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
          await navigator.clipboard.write([new ClipboardItem({"image/png": new Blob([bytes], {type: "image/png"})})]);
        }""",
        data,
    )
    page.keyboard.press("Control+V")


def pixels(shown: Locator) -> np.ndarray:
    """The rendered pixels, uint8 (Y, X, 3)."""
    return np.asarray(Image.open(io.BytesIO(shown.screenshot())).convert("RGB"))


def unnamed(page: Page) -> list[Any]:
    """Controls and pictures without a name, in the accessibility tree as screen readers get it."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    named = [node for node in nodes if not node["ignored"] and node.get("role", {}).get("value") in CONTROLS]
    assert len(named) > 10, "the tree was read"
    return [node for node in named if not node.get("name", {}).get("value", "").strip()]


def too_wide(page: Page) -> list[str]:
    """Elements that extend beyond the window, and the document if it scrolls sideways. The contents of a scrolling box,
    such as a table, may be wider, and so may a magnified image in its frame."""
    found: list[str] = page.evaluate(
        """() => {
          const scrolled = (e) => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolled(e.parentElement));
          return [...document.querySelectorAll("body *")]
            .filter((e) => e.checkVisibility() && !e.closest(".unseen, .view > *") && !scrolled(e.parentElement))
            .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
            .map((e) => `${e.tagName}#${e.id} ${e.getBoundingClientRect().right}`)
            .concat(document.documentElement.scrollWidth > innerWidth ? ["the document"] : []);
        }"""
    )
    return found
