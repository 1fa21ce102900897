"""References of pairs with several changes: varied, true, unambiguous and complete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from idc.rendered.differences import Difference
from idc.rendered.referring import find_referring_options, on_side, thing_of
from idc.rendered.scene import SceneObject, View
from idc.rendered.sentences import DIRECTED_MOVES, several_captions

VIEW = View((8.0, -8.0, 6.0), (0.0, 0.0, 0.3), ())


def record(name: str, x: float, y: float, **more: str) -> dict[str, Any]:
    size, color, material, shape = name.split()
    thing = SceneObject(shape, color, material, size, 0.7 if size == "large" else 0.35, x, y, 0.0)
    return {**{key: value for key, value in asdict(thing).items() if key != "text"}, **more}


def test_what_looks_alike_is_told_by_its_side_or_not_at_all() -> None:
    left, right = record("small red metal cube", -2.0, -2.0), record("small red metal cube", 2.0, 2.0)
    gone = Difference("drop", (left,), ())
    assert on_side("left", thing_of(left), VIEW, 1.0)
    assert on_side("right", thing_of(right), VIEW, 1.0)
    found = several_captions([gone], [left, right], [right], [VIEW, VIEW], 4, np.random.default_rng(0))
    assert all("left" in one for one in found)
    near = record("small red metal cube", -1.6, -1.6)
    near_gone = Difference("drop", (near,), ())
    assert several_captions([near_gone], [near, left], [left], [VIEW, VIEW], 1, np.random.default_rng(0)) == []
    bare, written = record("large red metal cube", 0.0, 0.0), record("large red metal cube", 0.0, 0.0, text="A")
    unwritten = Difference("text", (bare,), (written,))
    assert not find_referring_options(unwritten, [bare], [written], [VIEW, VIEW]).describable


def test_a_direction_is_named_only_where_it_is_clear() -> None:
    start, end = record("small red metal cube", -2.0, -2.0), record("small red metal cube", 2.0, 2.0)
    other = record("large blue rubber sphere", 0.0, 0.0)
    moved = Difference("move", (start,), (end,))
    found = several_captions([moved], [start, other], [end, other], [VIEW, VIEW], 8, np.random.default_rng(0))
    directed = [one for one in found if "to the right" in one]
    assert len(directed) == len(DIRECTED_MOVES)
    assert sum("from the left" in one for one in directed) == 2
    close = record("small red metal cube", -1.0, -2.0)
    assert (
        find_referring_options(
            Difference("move", (start,), (close,)), [start, other], [close, other], [VIEW, VIEW]
        ).moves
        == ()
    )
