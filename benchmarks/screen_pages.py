"""Web pages made here, rendered by Chromium (the program `chromium`, or that of the variable CHROMIUM), and the same
pages with one element changed. Where it was and is, and what it read, comes from the page itself."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ElementHandle, Page

SIZE = 1280, 800
CONTROLS = ("again", "caret", "later", "scrolled", "other process")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]

_WORDS = re.findall(
    r"\w+",
    """harbour invoice window ladder copper meadow signal bridge basket engine winter orange letter market silver
garden planet button ticket camera kitchen summer forest island mirror pocket rocket saddle tunnel velvet wallet yellow
anchor beacon candle dragon falcon guitar hammer jacket kettle lemon magnet needle oyster pepper quartz ribbon sailor
timber umbrella violin walnut zipper account balance delivery estimate festival gallery holiday journal keyboard
library midnight network opinion package quality railway station theatre village weather""",
)
_ICONS = ("M3 8 L7 12 L13 4", "M3 3 L13 13 M13 3 L3 13", "M8 2 L14 13 L2 13 Z", "M8 3 V13 M3 8 H13",
          "M3 5 H13 M3 8 H13 M3 11 H13")  # fmt: skip
_PALETTES = (("#1a73e8", "#f8f9fa", "#202124"), ("#0b7a4b", "#ffffff", "#1f2933"), ("#b3261e", "#fffbf7", "#2d1b17"),
             ("#6741d9", "#f5f3ff", "#1e1b2e"), ("#e8a33d", "#1d2330", "#e6e9ef"))  # fmt: skip

# The operators: each takes an element, a random number in [0, 1), a word and an icon.
OPERATORS = {
    "colour": (".button, .badge, h1, h2, td, .card", """(e, r) => {
        const property = r < 0.5 ? "color" : "backgroundColor";
        e.style[property] = r % 0.5 < 0.25 ? "#c2185b" : "#00838f"; }"""),
    "size": (".button, .card, .icon, input, h2", """(e, r) => {
        const box = e.getBoundingClientRect(), by = 4 + 20 * r;
        if (e.tagName === "H2") e.style.fontSize = parseFloat(getComputedStyle(e).fontSize) * (1.1 + 0.4 * r) + "px";
        else { e.style.boxSizing = "border-box"; e.style.width = box.width + by + "px"; } }"""),
    "font": ("h1, h2, td, .button, p, label", """(e, r) => {
        if (r < 0.35) e.style.fontFamily = "DejaVu Serif"; else if (r < 0.7) e.style.fontStyle = "italic";
        else e.style.fontWeight = getComputedStyle(e).fontWeight >= 600 ? 400 : 700; }"""),
    "border": (".card, .button, input, table", """(e, r) => {
        e.style.border = r < 0.3 ? "1px solid red" : r < 0.6 ? "2px dashed #555" : "1px solid transparent"; }"""),
    "position": (".button, .badge, .icon, h2, .card", """(e, r) => {
        e.style.position = "relative"; e.style.left = Math.round(4 + 30 * r) + "px";
        e.style.top = Math.round(20 * ((7 * r) % 1) - 10) + "px"; }"""),
    "text": (".button, h1, h2, label, .badge, td:first-child", "(e, r, word) => { e.textContent = word; }"),
    "order": ("tr + tr, .card + .card, .item + .item",
        "(e) => { e.parentElement.insertBefore(e, e.previousElementSibling); }"),
    "hidden": (".button, .badge, .icon, h2, p, td", """(e, r) => {
        if (r < 0.5) e.style.visibility = "hidden"; else e.style.display = "none"; }"""),
    "number": (".number", """(e, r) => {
        const digits = [...e.textContent], at = digits.map((d, i) => /\\d/.test(d) ? i : -1).filter((i) => i >= 0);
        const i = at[Math.floor(r * at.length)]; digits[i] = (+digits[i] + 1 + Math.floor(8 * ((9 * r) % 1))) % 10;
        e.textContent = digits.join(""); }"""),
    "icon": (".icon", "(e, r, word, icon) => { e.querySelector('path').setAttribute('d', icon); }"),
    "1 px shift": (".button, .badge, .icon, h2, .card, input", """(e, r) => {
        e.style.position = "relative"; e.style[r < 0.5 ? "left" : "top"] = "1px"; }"""),
    "row added": ("tbody tr, .item", """(e, r, word) => {
        const row = e.cloneNode(true), cells = row.children.length > 1 ? [...row.children] : [row];
        for (const [i, cell] of cells.entries()) cell.textContent = cell.querySelector(".number") && i ?
            (1000 * (i + r)).toFixed(2) : i ? word.split(" ")[0] : word;
        e.after(row); return row; }"""),
    "row gone": ("tbody tr, .item", "(e) => { e.remove(); }"),
}  # fmt: skip


def page_html(number: int) -> str:
    """A page: palette, font, sizes, and five of the kinds of blocks drawn by chance."""
    rng = random.Random(number)
    accent, ground, ink = _PALETTES[number % len(_PALETTES)]
    edge = "#3a4252" if ground < "#8" else "#d0d4da"
    panel = "#262d3d" if ground < "#8" else "#ffffff"
    family = rng.choice(("Liberation Sans", "DejaVu Sans", "Liberation Serif"))
    kinds = [_table, _cards, _form, _article, _chart, _list]
    blocks = "".join(kind(rng, accent) for kind in rng.sample(kinds, 4))
    aside = _list(rng, accent) + _icons(rng, accent)
    return f"""<!doctype html><meta charset="utf-8"><style>
    * {{ box-sizing: border-box }} body {{ margin: 0; font: {rng.choice((13, 14, 15))}px/1.45 "{family}";
      background: {ground}; color: {ink} }} header {{ display: flex; gap: 16px; align-items: center; padding: 10px 20px;
      border-bottom: 1px solid {edge} }} h1 {{ font-size: {rng.choice((20, 24, 28))}px; margin: 0; flex: 1 }}
    h2 {{ font-size: 17px; margin: 14px 0 6px }} main {{ display: grid; grid-template-columns: 220px 1fr; gap: 20px;
      padding: 8px 20px }} table {{ border-collapse: collapse; width: 100%; background: {panel} }}
    td, th {{ border-bottom: 1px solid {edge}; padding: 4px 10px; text-align: left }}
    .cards {{ display: flex; gap: 12px }}
    .card {{ flex: none; width: 190px; padding: 10px; background: {panel}; border: 1px solid {edge};
      border-radius: 6px }}
    .button {{ display: inline-block; padding: 5px 14px; background: {accent}; color: #fff; border-radius: 4px }}
    .badge {{ display: inline-block; font-size: 12px; padding: 1px 7px; border-radius: 9px; background: {edge} }}
    .big {{ font-size: 26px }} .item {{ padding: 5px 8px; border-bottom: 1px solid {edge} }} p {{ margin: 6px 0 }}
    input {{ padding: 4px; width: 220px; border: 1px solid {edge}; font: inherit; background: {panel}; color: {ink} }}
    label {{ display: inline-block; width: 130px }} .field {{ margin: 5px 0 }}</style>
    <header>{_icon(rng, accent)}<h1>{_text(rng, 2)}</h1><span class="badge">{_text(rng, 1)}</span>
    <span class="button">{_text(rng, 1)}</span></header>
    <main><aside>{aside}</aside><section>{blocks}</section></main>"""


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words)).capitalize()


def _number(rng: random.Random) -> str:
    return f'<span class="number">{rng.choice(("{:,.2f}", "{:.0f}", "{:.1f} %")).format(rng.uniform(10, 9999))}</span>'


def _icon(rng: random.Random, accent: str) -> str:
    path = f'<path d="{rng.choice(_ICONS)}" fill="none" stroke="{accent}" stroke-width="1.6"/>'
    return f'<svg class="icon" width="20" height="20" viewBox="0 0 16 16">{path}</svg>'


def _icons(rng: random.Random, accent: str) -> str:
    return "<p>" + " ".join(_icon(rng, accent) for _ in range(4)) + "</p>"


def _table(rng: random.Random, accent: str) -> str:
    head = "".join(f"<th>{_text(rng, 1)}</th>" for _ in range(4))
    rows = "".join(
        f"<tr><td>{_text(rng, 2)}</td><td>{_number(rng)}</td><td>{_number(rng)}</td><td>{_text(rng, 1)}</td></tr>"
        for _ in range(rng.randint(4, 7))
    )
    return f"<h2>{_text(rng, 2)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cards(rng: random.Random, accent: str) -> str:
    return '<div class="cards">' + "".join(
        f'<div class="card">{_text(rng, 1)}<div class="big">{_number(rng)}</div>'
        f'<span class="badge">{_text(rng, 1)}</span></div>'
        for _ in range(4)
    ) + "</div>"  # fmt: skip


def _form(rng: random.Random, accent: str) -> str:
    fields = "".join(
        f'<div class="field"><label>{_text(rng, 1)}</label><input value="{_text(rng, 2)}"></div>' for _ in range(3)
    )
    return f'<h2>{_text(rng, 2)}</h2>{fields}<span class="button">{_text(rng, 2)}</span>'


def _article(rng: random.Random, accent: str) -> str:
    return f"<h2>{_text(rng, 3)}</h2>" + "".join(f"<p>{_text(rng, 28)}.</p>" for _ in range(2))


def _chart(rng: random.Random, accent: str) -> str:
    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="'
        + " ".join(f"{40 + 30 * x},{rng.randint(15, 105)}" for x in range(20)) + '"/>'
        for colour in (accent, "#888")
    )  # fmt: skip
    axes = '<path d="M40 5 V110 H620" stroke="#999" fill="none"/>'
    return f'<h2>{_text(rng, 2)}</h2><svg width="640" height="125">{axes}{lines}</svg>'


def _list(rng: random.Random, accent: str) -> str:
    return "".join(
        f'<div class="item">{_text(rng, 2)} {_number(rng) if rng.random() < 0.5 else ""}</div>' for _ in range(5)
    )


class Screens(NamedTuple):
    """A pair of screenshots with what was changed.

    Attributes:
        before, after: uint8 RGB.
        boxes: of the element, before and after (left, top, right, bottom); empty for a control.
        words: what it read before and after.
    """

    before: np.ndarray
    after: np.ndarray
    boxes: list[tuple[float, ...]]
    words: tuple[str, str]


def _program() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A new process of the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_program(), args=FLAGS)
        yield browser
        browser.close()


def screenshot(page: Page) -> np.ndarray:
    """The window's pixels."""
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))


def changed_screens(browser: Browser, number: int, operator: str) -> Screens | None:
    """A page and the same with an element changed, such that a pixel differs; None if it has no such element."""
    rng = random.Random(f"{number} {operator}")
    selector, change = OPERATORS[operator]
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    try:
        page.set_content(page_html(number))
        before = screenshot(page)
        inside = [index for index, element in enumerate(page.query_selector_all(selector)) if _inside(element)]
        for index in rng.sample(inside, min(6, len(inside))):
            page.set_content(page_html(number))
            element = page.query_selector_all(selector)[index]
            boxes, old, new = [_box(element)], _read(element), ""
            word, icon = _text(rng, rng.randint(1, 2)), rng.choice(_ICONS)
            row = element.evaluate_handle(
                f"(e, [r, word, icon]) => ({change})(e, r, word, icon)", [rng.random(), word, icon]
            ).as_element()
            if row is not None:  # a new one
                boxes, old, element = [], "", row
            after = screenshot(page)
            if operator not in ("row gone", "hidden"):
                boxes.append(_box(element))
                new = _read(element)
            if (before != after).any():
                return Screens(before, after, boxes, (old, new))
        return None
    finally:
        page.close()


def control_screens(browser: Browser, number: int, control: str) -> Screens:
    """A page twice, with nothing changed but how it came to be on the screen."""
    shots = []
    for again in (False, True):
        new = again and control == "other process"
        process = browser.browser_type.launch(executable_path=_program(), args=FLAGS) if new else browser
        page = process.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.set_content(page_html(number))
        if control == "caret":
            page.evaluate(
                """(at) => {
                document.body.insertAdjacentHTML("beforeend", "<input value=text style='position: fixed'>");
                document.body.lastChild.focus(); document.body.lastChild.setSelectionRange(at, at); }""",
                4 * again,
            )
        if again and control == "later":
            page.wait_for_timeout(700)
        if again and control == "scrolled":
            page.evaluate("scrollTo(0, 300)")
            screenshot(page)
            page.evaluate("scrollTo(0, 0)")
        shots.append(screenshot(page))
        page.close()
        if new:
            process.close()
    return Screens(shots[0], shots[1], [], ("", ""))


def _inside(element: ElementHandle) -> bool:
    """Whether an element is in the window as a whole."""
    left, top, right, bottom = _box(element)
    return 0 <= left < right <= SIZE[0] and 0 <= top < bottom <= SIZE[1]


def _read(element: ElementHandle) -> str:
    return str(element.evaluate("(e) => e.innerText || ''"))


def _box(element: ElementHandle) -> tuple[float, ...]:
    box = element.bounding_box() or {"x": 0, "y": 0, "width": 0, "height": 0}
    return box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]
