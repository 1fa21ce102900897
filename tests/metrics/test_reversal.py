"""Captions of swapped pairs: which are the reverse of each other, and which are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import serve
from idc.captioning.claims import Claim, turn_round
from idc.data.images import decode_image
from idc.metrics.reversal import Reversal, turns_round
from idc.systems import untrained_captioner
from tests.systems.objects.test_exact import BLUE, changed, screen

FIGURES = [("rectangle", (40, 400, 239, 439)), ("ellipse", (300, 60, 420, 180))]
EXAMPLES = Path(serve.__file__).parent / "web" / "examples" / "photographs"


@pytest.mark.parametrize(
    ("caption", "swapped", "turned"),
    [
        ("a red cube has been added", "the red cube is gone", True),
        ("a red cube has been added", "the cube is missing", True),
        ("a red cube has been added", "a red cube has been added", False),
        ("a red cube has been added", "the blue cube is gone", False),
        ("a red cube has been added", "nothing has changed", False),
        ("the red cube turned blue", "the blue cube turned red", True),
        ("the red cube turned blue", "the cube became red", True),
        ("the cube became blue", "the cube became blue", False),
        ("the red cube turned blue", "the red cube turned blue", False),
        ("the cube changed from red to blue", "the cube changed from blue to red", True),
        ("the cube changed from red to blue", "the cube changed from red to blue", False),
        ("the ball moved to the left", "the ball moved to the right", True),
        ("the ball moved to the left", "the ball moved to the left", False),
        ("the ball moved", "the cube moved", False),
        ("the ball moved and a cube appeared", "the cube is gone and the ball moved", True),
        ("the ball moved and a cube appeared", "the cube is gone", False),
        ("no change was made", "the scene remains the same", True),
        ("no change was made", "the cube moved", False),
        ("both images show a street", "the cube moved", None),
    ],
)
def test_captions_that_are_the_reverse_of_each_other(caption: str, swapped: str, turned: bool | None) -> None:
    assert turns_round(caption, swapped) is turned
    if turned is not None:
        assert turns_round(swapped, caption) is turned


def test_the_share_is_of_captions_that_can_be_read() -> None:
    reversal = Reversal.of(
        [("a cube appeared", True), ("the ball moved", False), ("a street", None), ("no change", True)]
    )
    assert reversal == Reversal(asked=4, read=3, turned=2, changes=2, changes_turned=1)
    assert str(reversal).startswith("66.7% (95 % interval 20.8 to 93.9)")
    assert str(Reversal.of([("a street", None)])) == "the captions of 1 pairs claim nothing that can be read"


def test_claims_are_reversed_one_by_one() -> None:
    new = Claim("appeared", "car", 1, "on the left", None, (0, 0, 10, 10), 0.9)
    red = Claim("changed", "region", 1, "at the top", (0, 0, 9, 9), (20, 0, 30, 9), 1.0, "red", "blue")
    gone = Claim("gone", "car", 1, "in the middle", (1, 0, 10, 10), None, 0.8)
    blue = Claim("changed", "region", 1, "at the top", (20, 0, 30, 9), (0, 0, 9, 9), 1.0, "blue", "red")
    assert turn_round([new, red], [blue, gone])
    assert turn_round([], [])
    for claims in ([gone], [gone, gone], [gone, red], [new, blue], [gone, blue, blue]):
        assert not turn_round([new, red], claims)


def named(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.object not in ("object", "region")]


def test_what_objects_names_turns_round_with_the_images() -> None:
    """A law on real photographs, and on screens with every claim: what appeared in one order is gone in the other one,
    in the same place. Whether a part without a name differs enough is decided on the image after."""
    photographs = [
        [decode_image((EXAMPLES / pair[side]).read_bytes()) for side in ("before", "after")]
        for pair in json.loads((EXAMPLES / "pairs.json").read_text())
    ]
    screens = [[np.array(screen()), changed(*figure, fill=BLUE)] for figure in FIGURES]
    captioner = untrained_captioner()
    for drawn, pair in [*((False, pair) for pair in photographs), *((True, pair) for pair in screens)]:
        claims = [description.claims or () for description in captioner.describe(pair, pair[::-1])]
        assert turn_round(*(claims if drawn else map(named, claims))), claims
