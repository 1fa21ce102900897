"""Screens: what `mode=exact` notices of web pages with one element changed, and what it invents.

    python -m benchmarks.screens --pages 20

The pages and the operators that change them: `benchmarks/screen_pages.py`. Controls are the same page rendered again.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.measurement import markdown_table
from benchmarks.screen_pages import CONTROLS, OPERATORS, Screens, changed_screens, chromium, control_screens
from idc.captioning.contract import Claim
from idc.metrics.changes import says_no_change
from idc.systems.objects.exact import exact_changes, is_exact_pair

SAME_WORDS = ("colour", "size", "font", "border", "position", "order", "icon", "1 px shift")
"""Operators that do not change what there is to read."""


class ScreensVerdict(NamedTuple):
    """What the claims of a pair of screens are worth.

    Attributes:
        noticed: the sentence names a change.
        located: a claim is where the element was or is.
        worded: the words that changed are in a claim; None where none did.
        claims, right: number of claims, and of those that lie on a pixel that differs.
    """

    noticed: bool
    located: bool
    worded: bool | None
    claims: int
    right: int


def judge_screens(screens: Screens, operator: str) -> tuple[ScreensVerdict, str]:
    """What `mode=exact` says of a pair, and its sentence."""
    changes = exact_changes(screens.before, screens.after)
    different = (screens.before != screens.after).any(axis=-1)
    boxes = [[box for box in (claim.box_before, claim.box_after) if box] for claim in changes.claims]
    located = any(_overlap(box, truth) for parts in boxes for box in parts for truth in screens.boxes)
    right = sum(any(different[box[1] : box[3], box[0] : box[2]].any() for box in parts) for parts in boxes)
    return ScreensVerdict(
        not says_no_change(changes.sentence), located, _worded(screens, operator, changes.claims), len(boxes), right
    ), changes.sentence


def _worded(screens: Screens, operator: str, claims: Sequence[Claim]) -> bool | None:
    """Whether each word that came or went (of a row, all of it) is in a claim about words or rows."""
    old, new = ([_plain(word) for word in text.split()] for text in screens.words)
    sides = ((0, old, new), (1, new, old))
    changed = [(side, word) for side, words, others in sides for word in words if word and word not in others]
    if operator in SAME_WORDS or not changed:
        return None
    said = [_plain(" ".join(getattr(claim, side) or "" for claim in claims)) for side in ("before", "after")]
    return all(word in said[side] for side, word in changed)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _overlap(box: Sequence[float], other: Sequence[float]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=20, help="different pages (default: 20)")
    parser.add_argument("--say", action="store_true", help="print every sentence")
    args = parser.parse_args()
    rows, verdicts, seconds = [], [], []
    with chromium() as browser:
        for operator in OPERATORS:
            results = []
            for number in range(args.pages):
                if (screens := changed_screens(browser, number, operator)) is None:
                    continue
                start = time.process_time()
                result, sentence = judge_screens(screens, operator)
                seconds.append(time.process_time() - start)
                results.append(result)
                if args.say:
                    print(f"{operator} {number} {screens.words} {screens.boxes} {result}: {sentence}")
            verdicts += results
            rows.append([operator, *_shares(results)])
        numbered = [(number, control) for number in range(args.pages) for control in CONTROLS]
        controls = [(entry, control_screens(browser, *entry)) for entry in numbered]
        called = [
            entry
            for entry, screens in controls
            if not is_exact_pair(screens.before, screens.after) or judge_screens(screens, "")[0].noticed
        ]
    rows.append(["all", *_shares(verdicts)])
    print(markdown_table([["operator", "pairs", "noticed", "right place", "words right"], ["---"] * 5, *rows]))
    claims, right = (sum(getattr(result, name) for result in verdicts) for name in ("claims", "right"))
    print(f"\nClaims where a pixel differs: {right} of {claims}.")
    print(f"Controls called changed: {len(called)} of {len(controls)} {called or ''}")
    print(f"CPU seconds a pair: {np.mean(seconds):.2f} in the mean, {np.max(seconds):.2f} at most")


def _shares(results: list[ScreensVerdict]) -> list[str]:
    worded = [result.worded for result in results if result.worded is not None]
    return [
        str(len(results)),
        *(_share([getattr(result, name) for result in results]) for name in ("noticed", "located")),
        _share(worded),
    ]


def _share(values: list[bool]) -> str:
    return f"{sum(values)} of {len(values)}" if values else ""


if __name__ == "__main__":
    main()
