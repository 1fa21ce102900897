"""What explains a part of two drawn images that differs: a border, rounder corners, another fill, fainter or other
colours, the same marks moved or in another size, weight or spacing, other words. Each is tested by undoing it, and
the simplest one that leaves nothing is said.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from idc.captioning.contract import Claim, ClaimKind
from idc.systems.objects.canvas import is_flat
from idc.systems.objects.geometry import around_all, box_area, boxes_overlap, shifted_box, slices_of
from idc.systems.objects.marks import (
    Explanation,
    Marks,
    differing_lines,
    moved_by,
    same_letters,
    same_marks,
    typographic,
)
from idc.systems.objects.outlines import stroke_finding, strokes_of
from idc.systems.objects.reading import DrawnWords, Word
from idc.systems.objects.recolouring import Colour, main_colour, names_of, same_colour
from idc.systems.objects.screen_pair import (
    ALL,
    FILLED,
    PLAIN,
    Element,
    Finding,
    ScreenPair,
    border_of,
    claim_of,
    empty_sides,
    grounds_of,
    is_line,
    moved_claim,
    one_sided,
    quoted_words,
    way_of,
    with_words,
)
from idc.systems.objects.wording import MIXED, colour_of, sampled, with_article, words_clause

CAUSES = ("font size", "font weight", "letter spacing", "line height")
"""Aspects of texts after which their words may be on other lines, and what follows elsewhere."""
_PICTURE = 32
"""Shorter side, in pixels, of the smallest picture that is told from something drawn."""
_LIGHTER = 8
"""Grey levels by which parts of many colours became lighter or darker."""
_UNDONE = 0.12
"""Share of a difference that may be left where it is undone by blending with the ground."""
_ONE_COLOUR = 0.15
"""Second singular value of the distances from the ground, as a share of the first, of marks of one colour."""
_SAME_FADE = 0.04
"""Differences of opacity that are one."""
_MOST_PIXELS = 1_000_000
"""Area of the largest element that may be a text."""
_MOST_READ = 400
"""Pixels from the top of a text that are read to compare it."""
_LETTERS = 3
"""Letters by which a text is recognised, or another one."""


def explained(pair: ScreenPair, element: Element) -> list[Finding]:
    """The findings on an element: the first explanation that leaves nothing, else the words and look of its parts."""
    mask = pair.mask(element)
    thickness = border_of(mask, pair.scale)
    if is_line(element.box, pair.scale) or thickness:
        return [stroke_finding(pair, element, mask, "border" if thickness else "line")]
    if (findings := block(pair, [element])) is not None:
        return findings
    split = pair.split(element)
    if len(split) > 1:
        blocks = [block(pair, [part]) for part in split]
        if all(each is not None for each in blocks):
            return [finding for each in blocks for finding in each or ()]
        element = pair.joined([element, *split])
    parts = [image[slices_of(element.box)][mask] for image in pair.images]
    grounds = [grounds_of(image, element, mask) for image in pair.images]
    words = pair.words(element, mask)
    if any(words) and (any(words.changed()) or mask.mean() < FILLED):
        return _with_rest(pair, element, mask, words, parts, grounds)
    return [_look(pair, element, mask, parts, grounds)]


def block(pair: ScreenPair, elements: Sequence[Element]) -> list[Finding] | None:
    """The one explanation of several lines of marks, if there is one: empty where nothing is to be seen."""
    element = pair.joined(elements)
    for inside in (False, True) if box_area(element.box) <= _MOST_PIXELS else ():
        first, second = pair.marks(element, inside)
        if first is not None and second is not None and same_colour(first.ground, second.ground):
            findings = _same_marks(pair, element, first, second)
            if findings is not None:
                return findings
    return None


def _same_marks(pair: ScreenPair, element: Element, first: Marks, second: Marks) -> list[Finding] | None:
    """The same marks at another place, in another colour, size, weight or spacing."""
    by = moved_by(first, second)
    if by is not None and any(by):
        claim = moved_claim(first.box, second.box, pair.canvas)
        return [Finding(claim, f"{{}} {way_of(*by)}")]
    if by is not None or same_marks(first, second):
        colours = first.colour, second.colour
        if same_colour(*colours):
            return None if by is None else []
        names = names_of(*colours)
        explanation = Explanation("colour", f"changed from {names[0]} to {names[1]}", *names)
    else:
        first, second = differing_lines(first, second)
        measured_change = typographic(first, second)
        if measured_change is None or not (same_letters(first, second) or _reads_alike(pair, element)):
            return None
        explanation = measured_change
    element = element._replace(box=around_all([first.box, second.box]))
    claim = replace(claim_of(element, "words", explanation), box_before=first.box, box_after=second.box)
    return [Finding(claim, f"{{}} {explanation.change}")]


def _reads_alike(pair: ScreenPair, element: Element) -> bool:
    """Whether what is read is the same but for single letters."""
    sides = ["".join(word.key for word in pair.reader.name(image, element.box, _MOST_READ)) for image in pair.images]
    if min(map(len, sides)) < _LETTERS:
        return False
    codes = SequenceMatcher(None, sides[0], sides[1], autojunk=False).get_opcodes()
    misread = [max(b - a, d - c) for tag, a, b, c, d in codes if tag != "equal"]
    return not misread or (max(misread) < _LETTERS and sum(misread) <= len(sides[0]) / 8)


def faded(pair: ScreenPair, element: Element) -> Finding | None:
    """The finding on an element all of which is blended with the same ground, more or less than before; else None."""
    mask = pair.mask(element)
    parts = [image[slices_of(element.box)][mask] for image in pair.images]
    grounds = [grounds_of(image, element, mask) for image in pair.images]
    if not grounds[0] or grounds[0][0].code != grounds[1][0].code:
        return None
    before, after = (sampled(part).astype(np.float32) - grounds[0][0].rgb for part in parts)
    opacity = float((before * after).sum() / max((before**2).sum(), 1e-6))
    undone = np.sqrt(((after - opacity * before) ** 2).sum()) <= _UNDONE * np.sqrt(((after - before) ** 2).sum()) + 1e-3
    if not undone or not 0.02 < opacity < 50 or 0.98 < opacity < 1.02:
        return None
    spread = np.linalg.svd((before, after)[opacity > 1], compute_uv=False)
    if spread[1] > _ONE_COLOUR * spread[0]:
        return _opacity(element, opacity)
    colours = [main_colour(part) for part in parts]
    if colours[0].code == colours[1].code:
        return None
    names = names_of(*colours)
    explanation = Explanation("colour", f"changed from {names[0]} to {names[1]}{', fainter' * (opacity < 1)}", *names)
    return Finding(claim_of(element, "region", explanation), f"{{}} {explanation.change}", opacity)


def _opacity(element: Element, opacity: float) -> Finding:
    percent = round(100 * min(opacity, 1 / opacity))
    change = f"became {'fainter' if opacity < 1 else 'stronger'} ({percent} % opaque{' before' * (opacity > 1)})"
    explanation = Explanation("opacity", change, amount=percent, unit="%")
    return Finding(claim_of(element, "region", explanation), f"{{}} {change}", opacity)


def faded_together(pair: ScreenPair, elements: Sequence[tuple[Element, Finding]]) -> list[Finding]:
    """The findings on elements that are blended with their ground: one for those of several colours that are by
    the same share."""
    groups: list[list[tuple[Element, Finding]]] = []
    for element, finding in elements:
        assert finding.opacity is not None
        near = (group for group in groups if abs((group[0][1].opacity or 0) - finding.opacity) <= _SAME_FADE)
        group = next(near, [])
        groups += [] if group else [group]
        group.append((element, finding))
    findings: list[Finding] = []
    for group in groups:
        element, share = pair.joined([element for element, _ in group]), np.median([each.opacity for _, each in group])
        looks = {(finding.claim.aspect, finding.claim.before) for _, finding in group}
        if len(looks) > 1:
            findings.append(_opacity(element, float(share)))
        else:
            finding = group[0][1]
            claim = replace(finding.claim, box_before=element.box, box_after=element.box, where=element.where)
            findings.append(finding._replace(claim=claim))
    return findings


def _with_rest(
    pair: ScreenPair, element: Element, mask: np.ndarray, words: DrawnWords, parts: Sequence[np.ndarray],
    grounds: Sequence[Sequence[Colour]],
) -> list[Finding]:  # fmt: skip
    """The findings on words, and on the rest where that is the larger part."""
    rest = mask.copy()
    gone, new = words.changed()
    for word in words.before + words.after:
        rest[slices_of(shifted_box(word.box, -element.box[0], -element.box[1]))] = False
    if not gone and not new:
        orders = [[word.key for word in side] for side in words]
        if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) and pair.is_whole_line(element):
            explanation = Explanation("order", "", quoted_words(words.before), quoted_words(words.after))
            change = f'the words "{explanation.before}" {element.where} are in another order now: "{explanation.after}"'
            return [Finding(claim_of(element, "words", explanation), change)]
        text = f'the words "{quoted_words(words.before)}" {element.where}'
        return [Finding(claim_of(element, "words", Explanation("look", "")), f"{text} look different")]
    sought = [[(word, pair.distance(word, side)) for word in read] for side, read in enumerate((gone, new))]
    ways = [(word, by) for word, by in sought[0] if by is not None]
    gone, new = ([word for word, by in side if by is None] for side in sought)
    covered = [word for word, by in sought[0] if by is not None and not any(by)]  # both are read as one
    new = [word for word in new if not any(boxes_overlap(word.box, other.box) for other in covered)]
    if not gone and not new:
        return [_moved_word(pair, *each) for each in ways[:1] if each[1] not in {move.by for move in pair.moves}]
    kind: ClaimKind = "replaced" if gone and new else "gone" if gone else "appeared"
    boxes = [around_all([word.box for word in read]) if read else None for read in (gone, new)]
    confidence = min(word.confidence for word in gone + new)
    where = pair.canvas.where(boxes[1] or boxes[0] or element.box)
    claim = Claim(
        kind, "words", 1, where, boxes[0], boxes[1], confidence, quoted_words(gone), quoted_words(new), "words"
    )
    if rest.sum() <= PLAIN * mask.sum():
        return [Finding(claim, words_clause(claim))]
    look = _look(pair, element, mask, parts, grounds)
    if claim.kind == look.claim.kind != "changed":  # a chart, and the words in it
        return [Finding(claim, ""), look._replace(clause=f"{look.clause}{with_words(words.before or words.after)}")]
    return [Finding(claim, words_clause(claim)), look]


def _moved_word(pair: ScreenPair, word: Word, by: tuple[int, int]) -> Finding:
    """The finding on a word that is elsewhere on the image after."""
    claim = moved_claim(word.box, shifted_box(word.box, *by), pair.canvas, "words")
    return Finding(claim, f"{{}} {way_of(*by)}" if any(by) else "")


def _look(
    pair: ScreenPair, element: Element, mask: np.ndarray, parts: Sequence[np.ndarray],
    grounds: Sequence[Sequence[Colour]],
) -> Finding:  # fmt: skip
    """What differs in an element without words: its fill, or anything else."""
    colours = first, second = [main_colour(part) for part in parts]
    thicknesses = [strokes_of(image, element.box)[0] for image in pair.images]
    if mask.mean() >= FILLED and (thicknesses[0] > 0) != (thicknesses[1] > 0):
        return stroke_finding(pair, element, mask, "border")
    was_ground, is_ground = empty_sides(pair, element, colours, grounds)
    plain = first.share >= PLAIN and second.share >= PLAIN
    background = plain and FILLED <= mask.mean() < 1
    if was_ground == is_ground or background:
        of = "the background of " if background else ""
        if not plain and mask.mean() >= FILLED and (gradients := _gradients(pair, element, mask)) is not None:
            change = f"the gradient of {{}} changed from {gradients[0]} to {gradients[1]}"
            return Finding(claim_of(element, "region", Explanation("background", "", *gradients)), change)
        names: tuple[str | None, str | None]
        names, change = (names_of(first, second), "changed from {} to {}") if plain else _shades(*parts)
        shown = [image[slices_of(element.box)] for image in pair.images]
        is_picture = not plain and min(shown[0].shape[:2]) >= _PICTURE and not any(map(is_flat, shown))
        explanation = Explanation("background" if background else "picture" if is_picture else "colour", "", *names)
        return Finding(claim_of(element, "region", explanation), f"{of}{{}} {change.format(*names)}")
    present = colours[was_ground]
    colour: str | None = present.name if present.share >= PLAIN else None
    if colour in {ground.name for ground in grounds[was_ground]}:
        colour = present.hex  # and not that of what is around it
    what = f"{with_article(colour)} area" if colour else "something"
    clause = f"{what} of {pair.measured(element.box)} {'appeared' if was_ground else 'is gone'} {element.where}"
    return Finding(one_sided(was_ground, "region", element.where, element.box, 1.0, colour), clause)


def _gradients(pair: ScreenPair, element: Element, mask: np.ndarray) -> tuple[str, str] | None:
    """The colours at both ends of what fills an element, before and after, if either is a gradient; else None."""
    names, smooth, directions = [], False, []
    for image in pair.images:
        part = image[slices_of(element.box)]
        steps = np.abs(part[:, 1:].astype(np.int16) - part[:, :-1]).max(axis=2)[mask[:, 1:]]
        even = float((steps <= 3).mean())
        if even < ALL:
            return None
        ends = [(part[:, : max(1, part.shape[1] // 8)], part[:, -max(1, part.shape[1] // 8) :])]
        ends.append((part[: max(1, part.shape[0] // 8)], part[-max(1, part.shape[0] // 8) :]))
        pairs = [[np.median(end.reshape(-1, 3), axis=0) for end in each] for each in ends]
        low, high = max(pairs, key=lambda each: float(np.abs(each[0] - each[1]).max()))
        smooth |= bool(np.abs(low - high).max() > 8)
        directions.append((high - low) / max(float(np.linalg.norm(high - low)), 1.0))
        words = [colour_of(end[None].astype(np.float32) / 255) for end in (low, high)]
        names.append(words[0] if words[0] == words[1] else f"{words[0]} and {words[1]}")
    if not smooth or (names[0] == names[1] and float(directions[0] @ directions[1]) > 0.5):
        return None
    if names[0] == names[1]:
        names = [f"{names[0]} in one direction", f"{names[1]} in another"]
    return names[0], names[1]


def _shades(before: np.ndarray, after: np.ndarray) -> tuple[tuple[str | None, str | None], str]:
    """The colours of pixels (N, 3) of many colours before and after, and the clause on them: that of most of them, else
    their mean, else whether it became lighter."""
    names = [colour_of(sampled(pixels).astype(np.float32) / 255) for pixels in (before, after)]
    if names[0] != names[1] and MIXED not in names:
        return (names[0], names[1]), "changed from {} to {}"
    means = [pixels.mean(axis=0, keepdims=True).astype(np.float32) for pixels in (before, after)]
    names = [colour_of(mean / 255) for mean in means]
    if names[0] != names[1]:
        return (names[0], names[1]), "changed, on average from {} to {}"
    lighter = float(means[1].mean() - means[0].mean())
    return (None, None), "changed" if abs(lighter) < _LIGHTER else f"became {'lighter' if lighter > 0 else 'darker'}"
