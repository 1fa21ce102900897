"""Hostile folders of pairs, and an official layout: each with its outcome. Images are in ``tests/data/test_images.py``.

Every folder also has the pair ``good``, which must come out whatever else there is.
"""

from __future__ import annotations

from typing import Any

from tests.data.small_sets import OFFICIAL
from tests.faults.hostile import OUTSIDE, Content, Hostile, fifo, folder, link

GOOD: dict[str, Content] = {"before/good.png": 1, "after/good.png": 2}
TEXT = b"I am a text file, not a picture.\n"

NAMES = {
    "a new line": "x\ny",
    "markup": "<script>alert(1)<x>",
    "a shell": "$(touch pwned)`id`;|&",
    "right to left": "x\u202egnp",
    "a colon": "s3:x",
    "a control": "x\x01\x1b[31m",
}  # fmt: skip
"""Stems that a file may have; each is its pair's id as it is."""


def pair(before: Content, **outcome: Any) -> Hostile:
    """The good pair, and ``x`` with that before image."""
    return Hostile("folder", {**GOOD, "before/x.png": before, "after/x.png": 3}, **outcome)


def entries() -> dict[str, Hostile]:
    """By name."""
    out = {}
    for name, stem in NAMES.items():
        files = {f"before/{stem}.png": 5, f"after/{stem}.png": 6}
        out[f"name: {name}"] = Hostile("folder", {**GOOD, **files}, pairs=("good", stem))
    return out | _names() | _links() | _files() | _captions() | _annotations()


def _names() -> dict[str, Hostile]:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    return {
        "name: twins in unicode": Hostile(
            "folder",
            {**GOOD, **{f"{role}/{name}.png": 5 for role in ("before", "after") for name in (composed, decomposed)}},
            ("good",),
            {composed: "duplicate pair id"},
        ),
    }


def _links() -> dict[str, Hostile]:
    more = {"before/x.png": 5, "after/x.png": 6}
    return {
        "link: to itself": pair(link("x.png"), pairs=("good",), rejects={"x": "unreadable file"}),
        "link: to a device": pair(link("/dev/null"), pairs=("good",), rejects={"x": "outside the source"}),
        "link: two folders in each other": Hostile(
            "folder", {**GOOD, **more, "a/to-b": link("../b"), "b/to-a": link("../a")}, ("good", "x")
        ),
        "link: the whole machine": Hostile(
            "folder", {**GOOD, **more, "root": link("/")}, ("good", "x"), {"root": "outside the source"}
        ),
        "link: captions.json outside": Hostile(
            "folder", {**GOOD, **more, "captions.json": link(f"{OUTSIDE}/canary.json")}, error="out of the source"
        ),
    }


def _files() -> dict[str, Hostile]:
    return {
        "file: a folder": pair(folder, pairs=("good",), rejects={"x": "missing partner"}),
        "file: a mask that is none": Hostile(
            "folder",
            {**GOOD, "before/x.png": 5, "after/x.png": 6, "mask/x.png": TEXT},
            ("good",),
            {"x": "not an image"},
        ),
    }


def _captions() -> dict[str, Hostile]:
    """``captions.json`` of a folder with the pairs ``good`` and ``x``."""

    def entry(text: str, **outcome: Any) -> Hostile:
        return Hostile("folder", {**GOOD, "before/x.png": 5, "after/x.png": 6, "captions.json": text}, **outcome)

    split = '{"good": "moved", "x": {"split": "everything"}}'
    return {
        "captions.json: a split": entry(split, pairs=("good",), rejects={"x": "bad split"}),
        "captions.json: a list": entry('["good"]', error="captions.json.*not an object"),
        "captions.json: no JSON": entry('{"good": ', error="captions.json.*not JSON"),
    }


def _annotations() -> dict[str, Hostile]:
    """Spot-the-Diff with a file of annotations that leads outside, never ends, or holds no list of entries."""
    layout = OFFICIAL["spot_the_diff"]()

    def of(content: Content, **outcome: Any) -> Hostile:
        files = {**layout.files, "val.json": content}
        return Hostile(layout.format, files, settings=layout.settings, **outcome)

    left = tuple(name for name in layout.pairs if name != "3")
    return {
        "annotations outside": of(link(f"{OUTSIDE}/canary.json"), error="out of the source|is not the layout|has no"),
        "annotations are a FIFO": of(fifo, pairs=left, named=("no annotations of val",)),
        "annotations of depth": of("[" * 100_000 + "]" * 100_000, pairs=left, rejects={"val.json": "bad file"}),
    }
