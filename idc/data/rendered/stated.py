"""True differences of a rendered pair in plain words, for a reader that has not seen the images, such as a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idc.data.rendered.differences import Difference
from idc.data.rendered.scene import View

_WIDTH, _HEIGHT = 480, 320
"""Image in which positions are stated: CLEVR's shape. Other shapes show the same things a little further in or out."""
_ACROSS = ("at the left", "in the middle", "at the right")
_ALONG = ("far back", "halfway back", "in front")
_ATTRIBUTES = ("size", "color", "material", "shape")


def stated(difference: Difference, views: Sequence[Mapping[str, Any]] = ()) -> str:
    """One difference in words: what happened, to which object with all its attributes, and where in the image.

    Args:
        views: of the images before and after, as the pair's ``meta`` has them; without them no place is named.
    """
    kind, before, after = difference.kind, difference.before, difference.after
    cameras: list[View | None] = [View.of_record(view) for view in views] or [None, None]
    if kind == "add":
        return f"added: {_noun(after[0])}{_position(after[0], cameras[1])}"
    if kind == "drop":
        return f"removed: {_noun(before[0])}{_position(before[0], cameras[0])}"
    if kind == "count":
        look = (before or after)[0]
        shared = [name for name in _ATTRIBUTES if len({thing[name] for thing in (*before, *after)}) == 1]
        noun = " ".join(look[name] for name in shared) + ("s" if "shape" in shared else " objects")
        return f"number changed: {len(before)} {noun} before, {len(after)} after"
    old, new = before[0], after[0]
    if kind == "replace":
        return f"replaced: {_noun(old)}{_position(old, cameras[0])}, by {_noun(new)}"
    if kind == "move":
        positions = _position(old, cameras[0]) or " its place", _position(new, cameras[1]) or " another"
        return f"moved: {_noun(old)}, from{positions[0]} to{positions[1]}"
    if kind == "orientation":
        return f"turned about the vertical axis: {_noun(old)}{_position(old, cameras[0])}"
    if kind == "text":
        signs = [f'"{thing["text"]}"' if "text" in thing else "nothing" for thing in (old, new)]
        bare = {name: value for name, value in old.items() if name != "text"}
        return f"writing changed: on {_noun(bare)}{_position(old, cameras[0])}: {signs[0]} before, {signs[1]} after"
    bare = {name: value for name, value in old.items() if name != kind}
    return f"{kind} changed: {_noun(bare)}{_position(old, cameras[0])}: {old[kind]} before, {new[kind]} after"


def _noun(thing: Mapping[str, Any]) -> str:
    """The object with its attributes, as far as they are given."""
    words = " ".join(str(thing[name]) for name in _ATTRIBUTES if name in thing)
    return f"the {words}" + (f' with the letter "{thing["text"]}" on it' if "text" in thing else "")


def _position(thing: Mapping[str, Any], camera: View | None) -> str:
    """Where the object stands in its image, in thirds of width and height; empty without a camera."""
    if camera is None:
        return ""
    x, y = camera.project(np.array([thing["x"], thing["y"], 0.0]), _WIDTH, _HEIGHT)
    across, along = (min(max(int(3 * share), 0), 2) for share in (x / _WIDTH, y / _HEIGHT))
    return f" ({_ACROSS[across]}, {_ALONG[along]})"
