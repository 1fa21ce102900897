"""How often the captioner `objects` names what changed on a web page, by operator and difficulty.

    python -m benchmarks.screens make runs/screens
    python -m benchmarks.screens make runs/saved --pages FOLDER
    python -m benchmarks.screens judge runs/screens --kinds article,shop,form,chat,pricing

``make`` renders pages twice in Chromium, the second time with one CSS property of one element changed, in the manner of
DiffSpot (Tencent, 2026): 13 operators in three tiers, and unchanged controls, 1280x800, every fourth page at twice the
scale. The pages are those of `screen_pages.html`, of ten kinds, or the HTML files of a folder. The gate: pixels in the
element's box differ, and outside of it none, but where what follows moves with it. ``judge`` describes the pairs and
judges each clause of the sentence by rules; rules of the captioner were made on the five kinds of :data:`TUNED` alone.

Long because pages, mutations and the judge of their effects share the operators.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jinja2 import Environment, FileSystemLoader
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from idc.captioning.contract import Description
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image

TUNED = ("article", "shop", "form", "chat", "pricing")
UNTUNED = ("dashboard", "landing", "docs", "table", "gallery")
OPERATORS = (
    "font_weight", "font_size", "letter_spacing", "line_height", "text", "color", "gradient", "opacity", "position",
    "spacing", "justify", "border", "rounded",
)  # fmt: skip
TIERS = ("easy", "medium", "hard")
VERDICTS = ("right", "partly", "missed", "invented")
SIZE = 1280, 800
_PAGES = 4
"""Pages of each kind."""
_SHARE = 3
"""Every third operator and tier of a page is rendered."""
_REFLOW = ("font_weight", "font_size", "letter_spacing", "line_height", "text", "spacing", "border", "justify")
"""Operators after which what follows may be elsewhere."""
_SIZES = (12, 14, 16, 18, 20, 24, 30, 36, 48, 60)
_WORDS = {
    "en": "harbour window invoice meadow copper ladder signal garden river market orange winter silver bridge coffee "
    "summer report travel system update account payment delivery support project design office morning evening paper",
    "de": "Hafen Fenster Rechnung Wiese Kupfer Leiter Zeichen Garten Fluss Markt Winter Silber Brücke Kaffee Sommer "
    "Bericht Reise Konto Zahlung Lieferung Projekt Entwurf Büro Morgen Abend Papier größer Straße Übersicht",
    "ru": "гавань окно счёт луг медь лестница сигнал сад река рынок зима серебро мост кофе лето отчёт поездка система "
    "платёж доставка проект дизайн офис утро вечер бумага",
}
_THEMES = (
    {"page": "#ffffff", "ink": "#1f2937", "faint": "#6b7280", "accent": "#2563eb", "card": "#ffffff", "line": "#d1d5db",
     "tag": "#eef2f7", "from": "#7c3aed", "to": "#ec4899"},
    {"page": "#f8fafc", "ink": "#111111", "faint": "#555555", "accent": "#b91c1c", "card": "#ffffff", "line": "#e5e7eb",
     "tag": "#fde8d0", "from": "#0f766e", "to": "#84cc16"},
    {"page": "#111827", "ink": "#f3f4f6", "faint": "#9ca3af", "accent": "#10b981", "card": "#1f2937", "line": "#374151",
     "tag": "#273449", "from": "#1e3a8a", "to": "#06b6d4"},
    {"page": "#fffaf0", "ink": "#3b2f2f", "faint": "#7a6a5a", "accent": "#9333ea", "card": "#fff3e0", "line": "#e0c9a6",
     "tag": "#f3e0ff", "from": "#f59e0b", "to": "#ef4444"},
)  # fmt: skip
_COLOURS = ("#dc2626", "#16a34a", "#2563eb", "#d97706", "#9333ea", "#0891b2")
_FONTS = ("DejaVu Sans", "Liberation Sans", "Liberation Serif", "DejaVu Serif")
_CANDIDATES = """(operator) => {
  const box = (e) => e.getBoundingClientRect(), style = (e) => getComputedStyle(e);
  const inside = (e) => { const r = box(e); return e.checkVisibility() && r.width >= 10 && r.height >= 8 && r.top >= 0
    && r.left >= 0 && r.bottom <= innerHeight && r.right <= innerWidth && r.width * r.height < 400000; };
  const text = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim().length > 2);
  const drawn = (e) => box(e).width >= 24 && box(e).height >= 20 && (style(e).borderTopWidth !== "0px"
    || style(e).backgroundColor !== "rgba(0, 0, 0, 0)" || style(e).backgroundImage !== "none" || e.tagName === "IMG");
  const padding = (e) => parseFloat(style(e).paddingTop) + parseFloat(style(e).paddingBottom);
  const lines = (e) => (box(e).height - padding(e)) / parseFloat(style(e).lineHeight) > 1.9;
  const free = (e) => [...e.children].reduce((a, c) => a - box(c).width, box(e).width) > 40;
  const tests = {
    line_height: (e) => text(e) && lines(e), gradient: (e) => style(e).backgroundImage.includes("gradient"),
    opacity: (e) => text(e) || drawn(e), position: (e) => text(e) || drawn(e), border: drawn, rounded: drawn,
    spacing: (e) => (text(e) || drawn(e)) && e.nextElementSibling,
    justify: (e) => style(e).display === "flex" && e.children.length > 1 && free(e),
  };
  const suits = tests[operator] || text;
  const all = [...document.body.querySelectorAll("*")];
  return all.map((e, i) => [e, i]).filter(([e]) => inside(e) && suits(e)).map(([, i]) => i);
}"""
_STATE = """(index) => { const e = [...document.body.querySelectorAll("*")][index], r = e.getBoundingClientRect();
  const s = getComputedStyle(e), names = ["fontSize", "fontWeight", "lineHeight", "color", "opacity", "borderTopWidth",
  "borderRadius", "justifyContent", "borderTopColor", "display", "marginBottom"];
  return {text: e.innerText || "", box: [r.left, r.top, r.right, r.bottom], tag: e.tagName,
    css: Object.fromEntries(names.map((n) => [n, s[n]]))}; }"""
_APPLY = """([index, css, text]) => { const e = [...document.body.querySelectorAll("*")][index];
  for (const [name, value] of Object.entries(css)) e.style.setProperty(name, value, "important");
  if (text !== null) { const n = [...e.childNodes].find((n) => n.nodeType === 3 && n.textContent.trim().length > 2);
    n.textContent = text; } }"""
Row = dict[str, Any]


class Filler:
    """Texts and pictures of a page, by its number."""

    def __init__(self, number: int, photographs: Sequence[np.ndarray]):
        self.rng, self.photographs = random.Random(number), photographs
        self.words = _WORDS[("en", "en", "de", "en", "ru")[number % 5]].split()

    def word(self) -> str:
        return self.rng.choice(self.words).capitalize()

    def phrase(self, count: int) -> str:
        return " ".join(self.rng.choices(self.words, k=count)).capitalize()

    def sentence(self, count: int) -> str:
        return f"{self.phrase(count)}."

    def number(self) -> str:
        return f"{self.rng.randrange(10, 99999):,}"

    def price(self) -> str:
        return f"${self.rng.randrange(3, 900)}.{self.rng.randrange(10, 99)}"

    def date(self) -> str:
        return f"2026-{self.rng.randrange(1, 13):02}-{self.rng.randrange(1, 29):02}"

    def share(self) -> int:
        return self.rng.randrange(15, 100)

    def picture(self) -> str:
        image = self.rng.choice(self.photographs)
        top, left = self.rng.randrange(image.shape[0] // 3), self.rng.randrange(image.shape[1] // 3)
        stream = io.BytesIO()
        Image.fromarray(image[top : top + 300, left : left + 420]).save(stream, "JPEG", quality=88)
        return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def drawn_pages() -> Iterator[tuple[str, str, int]]:
    """Kind, HTML and number of the pages written for this."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    photographs = [*load_sample_images().images, data.astronaut(), data.coffee(), data.chelsea()]
    template = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template(
        "screen_pages.html"
    )
    for number, kind in enumerate((*TUNED, *UNTUNED)):
        for variant in range(_PAGES):
            filler = Filler(10 * number + variant, photographs)
            methods = {name: getattr(filler, name) for name in dir(Filler) if not name.startswith("_")}
            html = template.render(
                kind=kind, variant=variant, c=_THEMES[(number + variant) % 4], font=_FONTS[variant],
                size=(16, 15, 16, 17)[variant], **methods,
            )  # fmt: skip
            yield kind, html, number * _PAGES + variant


def mutation(operator: str, tier: str, state: Row, rng: random.Random) -> tuple[dict[str, str], str | None, str]:
    """CSS properties, the new text or None, and the direction of the visible effect; empty: not possible."""
    css, level, sign = state["css"], TIERS.index(tier), rng.choice((1, -1))
    size = float(css["fontSize"][:-2])
    match operator:
        case "font_weight":
            bold = int(css["fontWeight"]) >= 600
            return {"font-weight": "400" if bold else ("900", "700", "600")[level]}, None, "less" if bold else "more"
        case "font_size":
            at = min(range(len(_SIZES)), key=lambda index: abs(_SIZES[index] - size)) + sign * (3, 2, 1)[level]
            value = _SIZES[min(max(at, 0), len(_SIZES) - 1)]
            return {"font-size": f"{value}px"}, None, "more" if value > size else "less" if value < size else ""
        case "letter_spacing":
            spacing = sign * (0.2, 0.12, 0.06)[level] * (1 if sign > 0 else 0.5)
            return {"letter-spacing": f"{spacing:g}em"}, None, "more" if sign > 0 else "less"
        case "line_height":
            ratio = float(css["lineHeight"][:-2]) / size
            height = max(ratio + sign * (0.6, 0.35, 0.15)[level], 0.9)
            way = "more" if height > ratio else "less" if height < ratio else ""
            return {"line-height": f"{height:.2f}"}, None, way
        case "text":
            words = state["text"].split()
            new = [*words]
            if tier == "easy":
                new = rng.choices(_WORDS["en"].split(), k=len(words))
            elif tier == "medium" and len(words) > 1:
                del new[rng.randrange(len(words))]
            else:
                new[rng.randrange(len(words))] = rng.choice(_WORDS["en"].split())
            return {}, " ".join(new), "other" if new != words else ""
        case "color":
            old = np.array([float(value) for value in re.findall(r"[\d.]+", css["color"])[:3]])
            code = rng.choice(_COLOURS)
            target = np.array([int(code[at : at + 2], 16) for at in (1, 3, 5)])
            new = (old + (1.0, 0.5, 0.25)[level] * (target - old)).round().astype(int)
            return {"color": f"rgb({new[0]}, {new[1]}, {new[2]})"}, None, "" if abs(new - old).max() < 20 else "other"
        case "gradient":
            first, second = rng.sample(_COLOURS, 2)
            angle = (("300deg", first, second), ("120deg", first, "#ec4899"), ("160deg", first, second))[level]
            return {"background-image": f"linear-gradient({', '.join(angle)})"}, None, "other"
        case "opacity":
            return {"opacity": ("0.25", "0.5", "0.75")[level]}, None, "less"
        case "position":
            length = sign * (rng.randrange(24, 41), rng.randrange(10, 17), rng.randrange(4, 7))[level]
            across = rng.random() < 0.5
            way = ("right" if sign > 0 else "left") if across else ("down" if sign > 0 else "up")
            return {"transform": f"translate({length}px, 0)" if across else f"translate(0, {length}px)"}, None, way
        case "spacing":
            length = (28, 14, 6)[level]
            name = rng.choice(("margin-top", "margin-bottom", "padding-top"))
            return {name: f"calc(var(--was-{name}, 0px) + {length}px)", "display": css["display"]}, None, "more"
        case "justify":
            values = ["flex-start", "center", "flex-end", "space-between", "space-around"]
            other = rng.choice([each for each in values if each != css["justifyContent"]])
            return {"justify-content": other}, None, "other"
        case "border":
            width = float(css["borderTopWidth"][:-2])
            if not width:
                return {"border": f"{(4, 2, 1)[level]}px solid {rng.choice(_COLOURS)}"}, None, "more"
            changes = (
                {"border-width": f"{width + 4}px"}, {"border-color": rng.choice(_COLOURS)}, {"border-style": "dashed"},
            )  # fmt: skip
            return changes[level], None, ("more", "colour", "dashed")[level]
        case "rounded":
            radius = 99.0 if "%" in css["borderRadius"] else float(re.findall(r"[\d.]+", css["borderRadius"])[0])
            corner = (0 if radius >= 12 else radius + 20, 0 if radius >= 8 else radius + 10, radius + 5)[level]
            return {"border-radius": f"{corner:g}px"}, None, "more" if corner > radius else "less"
    raise AssertionError(operator)


def make(folder: Path, pages: Path | None) -> None:
    """Write the pairs as PNG files, and `pairs.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    if pages is None:
        sources = list(drawn_pages())
    else:
        files = sorted(pages.rglob("*.htm*"))
        sources = [(file.stem, file.read_text(encoding="utf-8", errors="replace"), at) for at, file in enumerate(files)]
    rows: list[Row] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        for kind, html, number in sources:
            scale = 2 if number % 4 == 3 else 1
            context = browser.new_context(
                viewport={"width": SIZE[0], "height": SIZE[1]}, device_scale_factor=scale, java_script_enabled=True,
                offline=True,
            )  # fmt: skip
            page = context.new_page()
            rng = random.Random(number)
            cells = [(operator, tier) for at, operator in enumerate(OPERATORS) for level, tier in enumerate(TIERS)
                     if operator == "gradient" or (at + level + number) % _SHARE == 0]  # fmt: skip
            for operator, tier in [*cells, ("none", "none")]:
                row = _pair(page, html, operator, tier, rng, folder / f"{number:03}_{kind}_{operator}_{tier}")
                if row is not None:
                    rows.append({**row, "kind": kind, "scale": scale})
            context.close()
        browser.close()
    (folder / "pairs.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(f"{len(rows)} pairs of {len(sources)} pages in {folder}")


def _shot(page: Page) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB"))


def _pair(page: Page, html: str, operator: str, tier: str, rng: random.Random, path: Path) -> Row | None:
    """One pair that passes the gate, or None."""
    page.set_content(html)
    before = _shot(page)
    row: Row = {"id": path.name, "operator": operator, "tier": tier, "text": "", "boxes": [], "direction": ""}
    if operator == "none":
        page.set_content(html)
        after = _shot(page)
    else:
        indices = page.evaluate(_CANDIDATES, operator)
        rng.shuffle(indices)
        for index in indices[:6]:
            page.set_content(html)
            state = page.evaluate(_STATE, index)
            css, text, direction = mutation(operator, tier, state, rng)
            if not direction:
                continue
            for name in ("margin-top", "margin-bottom", "padding-top"):  # added to what it was
                page.evaluate(
                    "([i, n]) => { const e = [...document.body.querySelectorAll('*')][i];"
                    " e.style.setProperty('--was-' + n, getComputedStyle(e).getPropertyValue(n)); }", [index, name],
                )  # fmt: skip
            page.evaluate(_APPLY, [index, css, text])
            after, now = _shot(page), page.evaluate(_STATE, index)
            different = cv2.absdiff(before, after).max(axis=2) > 2
            mask = np.zeros_like(different)
            scale = different.shape[1] / SIZE[0]
            boxes = [[round(scale * value) for value in each["box"]] for each in (state, now)]
            for left, top, right, bottom in boxes:
                mask[max(top - 8, 0) : bottom + 8, max(left - 8, 0) : right + 8] = True
            inside, outside = int((different & mask).sum()), int((different & ~mask).sum())
            if inside >= 12 and (operator in _REFLOW or not outside):
                row |= {"text": state["text"], "new": now["text"], "boxes": boxes, "direction": direction,
                        "css": css, "was": state["css"], "tag": state["tag"]}  # fmt: skip
                break
        else:
            return None
    for side, image in (("before", before), ("after", after)):
        row[side] = f"{path.name}_{side}.png"
        cv2.imwrite(str(path.with_name(row[side])), image[..., ::-1])
    return row


_NATURES = {
    "text": r'" became |no longer|(is|are) now |replaced by|with the words|now reads',
    "appear": r"appeared|(is|are) gone|was added|was removed|(is|are) hidden|disappeared",
    "move": r"\bmoved\b|space (above|below|around|next)|\bgap\b",
    "align": r"spread out|closer together|aligned|centred|other order",
    "size": r"\b(larger|smaller|taller|wider|narrower|shorter|bigger|higher|lower)\b",
    "weight": r"bolder|heavier|thinner letters|less bold|lighter strokes|thinner\b(?! (border|line))",
    "letters": r"between (the|its|their) letters",
    "lines": r"between (the|its|their) lines",
    "corner": r"round(er|ed)|square",
    "border": r"\bborder|outline|\bline\b(?!s)",
    "gradient": r"gradient",
    "shadow": r"shadow",
    "colour": r"from \S+( \S+){0,4} to |fainter|faded|opaque|transparent|lighter|darker|stronger",
    "image": r"(image|picture) .*(replaced|another)",
}
_ALLOWED = {
    "font_weight": ("weight", "move"), "font_size": ("size", "move"), "letter_spacing": ("letters", "move"),
    "line_height": ("lines", "move", "size"), "text": ("text", "move", "appear"), "color": ("colour",),
    "gradient": ("gradient", "colour"), "opacity": ("colour", "appear"), "position": ("move",),
    "spacing": ("move", "size"), "justify": ("move", "align"), "border": ("border", "move", "size", "colour"),
    "rounded": ("corner",),
}  # fmt: skip
_EFFECTS = {
    ("font_weight", "more"): r"bolder|heavier|thicker (letters|strokes)",
    ("font_weight", "less"): r"less bold|thinner|lighter strokes",
    ("font_size", "more"): r"larger|bigger", ("font_size", "less"): r"smaller",
    ("letter_spacing", "more"): r"more space between (the|its|their) letters|spread",
    ("letter_spacing", "less"): r"less space between (the|its|their) letters|closer together",
    ("line_height", "more"): r"more space between (the|its|their) lines",
    ("line_height", "less"): r"less space between (the|its|their) lines",
    ("color", "other"): r"from .+ to |fainter|stronger|lighter|darker",
    ("gradient", "other"): r"gradient|background .* from .+ to ",
    ("opacity", "less"): r"fainter|faded|more transparent|disappeared|(is|are) gone|no longer",
    ("spacing", "more"): r"more space|moved (down|right|up|left)|(taller|wider) by|taller|larger gap",
    ("justify", "other"): r"moved (left|right)|spread out|closer together|aligned|centred|(left|right) by",
    ("border", "more"): r"(border|outline|line).*(thicker|wider|appeared)|got an? .*(border|outline|line)",
    ("border", "colour"): r"border.* from .+ to |line .*from .+ to ",
    ("border", "dashed"): r"dashed|dotted|broken",
    ("rounded", "more"): r"rounder|more rounded", ("rounded", "less"): r"squarer|more square|less rounded|sharper",
}  # fmt: skip
_OPPOSITE = {"more": "less", "less": "more"}


def judge(description: Description, row: Row) -> tuple[str, list[str]]:
    """The verdict on a description of a pair, and its clauses that are not true.

    right: a clause names the effect in the right direction, at the element, and no clause is false. partly: a claim is
    at the element. missed: nothing is. invented: a clause says what did not happen.
    """
    claims, text = description.claims or (), description.best.caption
    if row["operator"] == "none":
        return ("invented", [text]) if claims else ("right", [])
    if not claims:
        return "missed", []
    parts = [re.sub(r"[\"\u201c].*?[\"\u201d]", lambda quote: f'"{len(quote[0])}"', text)]
    clauses = re.split(r"; |, and (?=what |everything )|\.(?= [A-Z]|$)", parts[0])
    clauses = [clause for clause in clauses if clause and not re.match(r"\s*(and \d+ more|Not all words)", clause)]
    wrong = [clause for clause in clauses if not _is_true(clause, row)]
    if row["operator"] == "text":
        said = [clause for clause in re.split(r"; ", text) if re.search(_NATURES["text"], clause)]
        wrong += _wrong_quotes("; ".join(said), row)
    near = any(_is_near(box, row["boxes"]) for claim in claims for box in (claim.box_before, claim.box_after) if box)
    if wrong:
        return "invented", wrong
    if not near:
        return "missed", []
    if row["operator"] == "text":
        return ("right" if any(re.search(_NATURES["text"], clause) for clause in clauses) else "partly"), []
    pattern = _EFFECTS.get((row["operator"], row["direction"])) or rf"moved .*\b{row['direction']}\b"
    return ("right" if any(re.search(pattern, clause, re.I) for clause in clauses) else "partly"), []


def _is_true(clause: str, row: Row) -> bool:
    operator, direction = row["operator"], row["direction"]
    natures = {nature for nature, pattern in _NATURES.items() if re.search(pattern, clause, re.I)}
    if natures & {"border", "corner"}:  # the colour, width and height of a border are its own
        natures -= {"colour", "size", "appear", "weight"}
    if natures & {"letters", "lines", "align"}:
        natures -= {"size", "move"}
    if "move" in natures and "colour" not in natures:
        natures -= {"lines", "size"}
    opposite = _EFFECTS.get((operator, _OPPOSITE.get(direction, "")))
    if opposite and re.search(opposite, clause) and not re.search(_EFFECTS[operator, direction], clause):
        return False
    same = re.search(r"from (.+?) to (\S+(?: \S+)?)$", clause)
    if same and same[1] == same[2]:
        return False
    return not natures or bool(natures & set(_ALLOWED[operator]))


def _wrong_quotes(text: str, row: Row) -> list[str]:
    """Quotes of a changed text with words that are on neither side of it."""
    letters = re.sub(r"\W", "", row["text"] + row["new"]).lower()
    quotes = re.findall(r'"(.*?)"', text)
    return [
        quote for quote in quotes
        if sum(re.sub(r"\W", "", word).lower() not in letters for word in quote.split()) > len(quote.split()) / 2
    ] if any(map(str.isascii, quotes)) and row["text"].isascii() else []  # fmt: skip


def _is_near(box: Sequence[int], boxes: Sequence[Sequence[int]]) -> bool:
    """Whether a claim's box has a part in the element's boxes, with 8 pixels around them."""
    return any(
        box[0] < right + 8 and box[2] > left - 8 and box[1] < bottom + 8 and box[3] > top - 8
        for left, top, right, bottom in boxes
    )


def judged_rows(folder: Path, rows: Sequence[Row], mode: str) -> list[Row]:
    """The judged descriptions."""
    from idc.systems.objects.captioner import ObjectsCaptioner

    captioner, judged = ObjectsCaptioner(ObjectsConfig(mode=mode)), []  # type: ignore[arg-type]
    for row in rows:
        before, after = (decode_image((folder / row[side]).read_bytes()) for side in ("before", "after"))
        started = time.process_time()
        description = captioner.describe([before], [after])[0]
        seconds = time.process_time() - started
        verdict, wrong = judge(description, row)
        judged.append({**row, "sentence": description.best.caption, "verdict": verdict, "wrong": wrong,
                       "claims": len(description.claims or ()), "seconds": seconds,
                       "clauses": description.best.caption.count("; ") + 1})  # fmt: skip
    return judged


def screens_report(rows: Sequence[Row]) -> list[str]:
    """A table by operator, its lines by tier, and the overall figures as DiffSpot weighs them (39 to 5)."""
    lines = [
        "| operator | n | right | partly | missed | invented | easy | medium | hard |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    cells: dict[str, list[Row]] = defaultdict(list)
    changed = [row for row in rows if row["operator"] != "none"]
    for row in changed:
        cells[row["operator"]].append(row)
    for operator, group in [*sorted(cells.items(), key=lambda item: OPERATORS.index(item[0])), ("all", changed)]:
        counts = Counter(row["verdict"] for row in group)
        tiers = []
        for tier in TIERS:
            part = [row["verdict"] == "right" for row in group if row["tier"] == tier]
            tiers.append(f"{100 * np.mean(part):.0f}" if part else "")
        values = [*(f"{counts[verdict]}" for verdict in VERDICTS), *tiers]
        lines.append(f"| {operator} | {len(group)} | {' | '.join(values)} |")
    recall = float(np.mean([row["verdict"] == "right" for row in changed])) if changed else 0.0
    kept = [row["verdict"] == "right" for row in rows if row["operator"] == "none"]
    specificity = float(np.mean(kept)) if kept else 1.0
    wrong, clauses = sum(len(row["wrong"]) for row in rows), sum(row["clauses"] for row in changed)
    seconds = [row["seconds"] for row in rows]
    return [
        *lines, "", f"right {100 * recall:.1f} %, specificity {100 * specificity:.1f} %, overall "
        f"{(39 * 100 * recall + 5 * 100 * specificity) / 44:.1f}; false clauses {wrong} of {clauses}; CPU seconds "
        f"{np.median(seconds):.2f} (median), {max(seconds):.2f} (most)",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker, judging = commands.add_parser("make"), commands.add_parser("judge")
    for command in (maker, judging):
        command.add_argument("folder", type=Path)
    maker.add_argument("--pages", type=Path, metavar="FOLDER", help="saved pages (HTML) instead of the written ones")
    judging.add_argument("--kinds", default="", help="of these kinds alone, as in article,shop")
    judging.add_argument("--operators", default="", help="of these operators alone")
    judging.add_argument("--mode", default="auto", help="of the captioner (default: auto)")
    judging.add_argument("--list", action="store_true", help="list the sentences that are not right")
    args = parser.parse_args()
    if args.command == "make":
        make(args.folder, args.pages)
        return
    rows = json.loads((args.folder / "pairs.json").read_text(encoding="utf-8"))
    for name, values in (("kind", args.kinds), ("operator", args.operators)):
        rows = [row for row in rows if not values or row[name] in values.split(",")]
    judged = judged_rows(args.folder, rows, args.mode)
    (args.folder / "judged.json").write_text(json.dumps(judged, indent=1), encoding="utf-8")
    print(*screens_report(judged), sep="\n")
    if args.list:
        for row in sorted(judged, key=lambda row: row["id"]):
            if row["verdict"] != "right":
                change = f"{row['direction']} {row.get('css')} {row['text'][:40]!r}"
                print(f"- {row['verdict']} {row['id']} [{change}]: {row['sentence']} {row['wrong'] or ''}")


if __name__ == "__main__":
    main()
