"""Pairs with scenes, without images."""

from __future__ import annotations

from typing import Any

from idc.rewards.rewards import Row


def thing(text: str, **more: Any) -> dict[str, Any]:
    """An object by its size, colour, material and shape."""
    return dict(zip(("size", "color", "material", "shape"), text.split(), strict=True)) | more


CUBE, SPHERE, BALL = (thing(text) for text in ("small red metal cube", "large blue rubber sphere",
                                               "small green metal sphere"))  # fmt: skip
CHANGED: Row = {
    "pair_id": "changed", "change_type": "drop", "meta": {"before": [SPHERE, CUBE], "after": [SPHERE]},
    "captions": ["the small red metal cube was removed", "the red cube is gone", "someone took the small red block"],
}  # fmt: skip
MOVED: Row = {
    "pair_id": "moved", "change_type": "move",
    "meta": {"before": [thing("large blue rubber sphere", x=1)], "after": [thing("large blue rubber sphere", x=2)]},
    "captions": ["the large blue rubber sphere was moved", "the big blue ball is somewhere else"],
}  # fmt: skip
SAME: Row = {
    "pair_id": "same", "change_type": "none", "meta": {"before": [BALL], "after": [BALL]},
    "captions": ["the scene is the same as before", "nothing has changed"],
}  # fmt: skip
SEVERAL: Row = {
    "pair_id": "several", "change_type": "drop", "captions": ["the red cube was removed and a blue sphere was added"],
    "meta": {"before": [CUBE], "after": [SPHERE], "differences": [
        {"kind": "drop", "before": [0], "after": []}, {"kind": "add", "before": [], "after": [0]},
    ]},
}  # fmt: skip
ROWS = [CHANGED, MOVED, SAME]
PLAIN = {row["pair_id"]: row["captions"][0] for row in ROWS}
"""A true plain sentence about each pair."""
