"""Difference lists: what the rules read in captions, and how claims are matched with the truth."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from idc.data.text import words
from idc.evaluation.record import difference_table
from idc.metrics.claims import read_claims
from idc.metrics.scene_scores import (
    F1,
    INVENTED,
    PRECISION,
    PROTOCOL,
    RECALL,
    Matched,
    TrueDifferences,
    difference_scores,
    match_caption,
    true_differences,
)
from idc.rendered.config import RenderConfig
from idc.rendered.differences import DIFFERENCES, Difference
from idc.rendered.draw import draw_scene
from idc.rendered.scene import ORDERED_PAIRS, View
from idc.rendered.sentences import change_captions, several_captions, true_wordings
from tests.metrics.captions_in_other_words import LATER_WORDS, OTHER_WORDS, Read
from tests.rendered.drawn_differences import Drawn, drawn_pairs
from tests.rendered.planted_errors import ERRORS, planted

PERFECT = {PRECISION: 1.0, RECALL: 1.0, F1: 1.0, INVENTED: 0.0}
VIEW = View((0.0, -10.0, 5.0), (0.0, 0.0, 0.0), ())
"""Looks along +y: the right is +x, the front -y."""


@pytest.fixture(scope="module")
def pairs() -> list[Drawn]:
    return [*drawn_pairs(160, seed=0), *drawn_pairs(40, seed=1, jitter="extreme")]


def truth_of_drawn(pair: Drawn) -> TrueDifferences:
    return TrueDifferences(pair.differences, pair.before, pair.after, pair.views)


def thing(name: str, x: float = 0.0, y: float = 0.0, **more: str) -> dict[str, Any]:
    size, color, material, shape = name.split()
    look = {"shape": shape, "color": color, "material": material, "size": size}
    return {**look, "radius": 0.5, "x": x, "y": y, "turn": 0.0, **more}


def truth(*differences: Difference, others: tuple[dict[str, Any], ...] = ()) -> TrueDifferences:
    before = [one for own in differences for one in own.before]
    after = [one for own in differences for one in own.after]
    return TrueDifferences(differences, [*before, *others], [*after, *others], (VIEW, VIEW))


RED, BLUE = thing("small red metal cube", -2.0, 1.0), thing("small blue metal cube", -2.0, 1.0)
BALL = thing("large gray rubber sphere", 2.0, -1.0)
REPAINTED = Difference("color", (RED,), (BLUE,))
GONE = Difference("drop", (BALL,), ())


# ------------------------------------------------------------------------------------------------------ our references


def test_every_reference_of_several_changes_is_read_as_exactly_the_true_list(pairs: list[Drawn]) -> None:
    rng = np.random.default_rng(2)
    for pair in pairs:
        true = truth_of_drawn(pair)
        captions = several_captions(pair.differences, pair.before, pair.after, pair.views, 4, rng)
        for caption in (*captions, *true_wordings(pair.differences)):
            found = match_caption(caption, true)
            assert found.scores == PERFECT, (caption, [str(claim) for claim in found.claims])
            heard = match_caption(" ".join(words(caption)), true)
            assert heard.scores == PERFECT, "a vocabulary that drops stops and capitals changes nothing"
            assert found.verdicts == ("right",) * len(pair.differences)


def test_every_reference_of_a_single_change_is_read_as_its_change() -> None:
    config = RenderConfig(width=60, height=40, min_visible_pixels=3, max_objects=6, ordered_pairs=True)
    rng = np.random.default_rng(0)
    kinds = set()
    for index in range(12):
        scene, _ = draw_scene(config, index)
        for order in ORDERED_PAIRS.values():
            kind = str(scene.pair(order).change_type)
            true = true_differences(kind, scene.record(order))
            assert true is not None
            kinds.add(kind)
            for caption in change_captions(scene, 8, 0.5, rng, order):
                assert match_caption(caption, true).scores == PERFECT, caption
    assert len(kinds) == 6


def test_captions_of_other_pairs_are_not_right(pairs: list[Drawn]) -> None:
    """The other half of the tests above: rules that call everything right would pass those."""
    rng = np.random.default_rng(4)
    changed = [pair for pair in pairs if pair.differences]
    scores = []
    for pair, other in itertools.pairwise(changed):
        (caption,) = several_captions(other.differences, other.before, other.after, other.views, 1, rng)
        scores.append(match_caption(caption, truth_of_drawn(pair)).scores[F1])
    assert 0.0 < np.mean(scores) < 0.1


# ------------------------------------------------------------------------------------------------- other people's words


@pytest.mark.parametrize(("caption", "expected"), [*OTHER_WORDS, *LATER_WORDS])
def test_captions_in_other_words(caption: str, expected: tuple[Read, ...]) -> None:
    reading = read_claims(caption)
    claims = []
    for claim in reading.claims:  # steps of counts ("fewer by 2") are in none of the expected lists
        sides = (
            {value for _, value in side if " by " not in value} for side in (claim.described, claim.old, claim.new)
        )
        claims.append((claim.kind, *sides))
    assert claims == [(kind, *(set(side.split()) for side in sides)) for kind, *sides in expected]
    assert reading.no_change == (not expected)


@pytest.mark.parametrize(
    "text",
    ["", "the the the the", "the small red", "the small red cube", "a photo of a red cube and two balls",
     "to to from from into", "left left right behind of", "the 7 of 9, and; and. ?!",
     "<unk> \u4f60\u597d the \U0001f600 \x00", "np0 look1 np99", "np3 has changed to look7"],
)  # fmt: skip
def test_text_that_claims_nothing_has_no_claims(text: str) -> None:
    assert read_claims(text) == type(read_claims(text))((), False)


def test_a_claim_in_words() -> None:
    (claim,) = read_claims("the small ball on the left has changed from red to blue").claims
    assert str(claim) == "color of sphere small, left: from red to blue"


def test_a_cut_end_claims_only_what_is_finished() -> None:
    found = match_caption("the red cube has turned blue and the large gray rubber", truth(REPAINTED, GONE))
    assert found.scores == {PRECISION: 1.0, RECALL: 0.5, F1: 2 / 3, INVENTED: 0.0}


# -------------------------------------------------------------------------------------------------------- the matching


@pytest.mark.parametrize(
    ("verdicts", "captions"),
    [
        ("right", ["the red cube has turned blue", "the small cube has turned blue", "the red cube has changed color",
                   "an object has turned blue", "the red cube on the left has turned blue",
                   "the red cube that is left of the gray ball has turned blue",
                   "the red cube next to the gray ball has turned blue"]),
        ("half", ["the red cube has turned green", "the red cube has turned from green to blue",
                  "the green cube has turned blue", "the red cube has been removed", "the red cube has changed",
                  "the red cube on the right has turned blue",
                  "the red cube that is right of the gray ball has turned blue",
                  "the red cube that is left of the green cylinder has turned blue"]),
        ("invented", ["the yellow ball has been removed", "an object has been added"]),
        ("right surplus", ["the red cube has turned blue. the red cube has turned blue.",
                           "the red cube has turned blue. the metal cube became blue."]),
        ("right invented", ["the red cube has turned blue. the yellow ball became blue."]),
        ("", ["nothing has changed"]),
    ],
)  # fmt: skip
def test_verdicts_on_a_repainted_cube(verdicts: str, captions: list[str]) -> None:
    for caption in captions:
        assert match_caption(caption, truth(REPAINTED, others=(BALL,))).verdicts == tuple(verdicts.split()), caption


def test_a_claim_without_attributes_needs_a_single_difference_of_its_kind() -> None:
    second = Difference("drop", (thing("large green metal cube"),), ())
    assert match_caption("an object was removed", truth(GONE)).verdicts == ("right",)
    assert match_caption("an object was removed", truth(GONE, second)).verdicts == ("half",)


def test_as_many_claims_as_possible_are_right() -> None:
    """ "the cube" fits both; only one assignment makes both right."""
    green = Difference("drop", (thing("large green metal cube"),), ())
    red = Difference("drop", (RED,), ())
    assert match_caption("the metal cube and the red cube have been removed", truth(red, green)).assigned == (1, 0)
    assert match_caption("the red cube and the metal cube have been removed", truth(red, green)).assigned == (0, 1)


def test_no_number_of_half_right_claims_outweighs_a_right_one() -> None:
    """Both claims could be half right: the first by its kind about the sphere, the second by its object."""
    green = Difference("color", (BALL,), ({**BALL, "color": "green"},))
    matched = match_caption("the red cube has turned blue. the red cube was removed.", truth(REPAINTED, green))
    assert (matched.verdicts, matched.assigned) == (("right", "invented"), (0, None))


PAIR_OF_REDS = Difference("count", (RED, {**RED, "x": 1.0}), (RED,))


@pytest.mark.parametrize(
    ("difference", "right", "wrong"),
    [
        (Difference("add", (), (BALL,)),
         "a large gray sphere has appeared on the right", "a large gray sphere has appeared on the left"),
        (Difference("replace", (RED,), (thing("small blue metal sphere", -2.0, 1.0),)),
         "the red cube has been replaced by a blue sphere", "the red cube has been replaced by a red sphere"),
        (Difference("size", (RED,), ({**RED, "size": "large"},)), "the red cube has grown", "the red cube has shrunk"),
        (Difference("material", (RED,), ({**RED, "material": "rubber"},)),
         "the red cube is now matte instead of shiny", "the red cube is now metallic"),
        (Difference("orientation", (RED,), ({**RED, "turn": 1.0},)),
         "the red cube was rotated", "the blue cube was rotated"),
        (Difference("move", (RED,), ({**RED, "x": 2.0},)),
         "the red cube has moved from the left to the right", "the red cube has moved to the left"),
        (PAIR_OF_REDS, "the number of red cubes has decreased from two to one",
         "the number of red cubes has increased from one to two"),
        (PAIR_OF_REDS, "there is one red cube less", "there is one more red cube"),
        (Difference("text", ({**RED, "text": "A"},), ({**RED, "text": "B"},)),
         "the letter on the red cube has changed from A to B", "the letter on the red cube has changed from B to A"),
    ],
)  # fmt: skip
def test_old_and_new_looks_of_every_kind(difference: Difference, right: str, wrong: str) -> None:
    assert match_caption(right, truth(difference)).verdicts == ("right",)
    assert match_caption(wrong, truth(difference)).verdicts == ("half",)


def test_without_views_sides_are_not_checked() -> None:
    true = TrueDifferences((GONE,), [BALL], [])
    assert match_caption("the gray sphere on the left has been removed", true).verdicts == ("right",)


def test_scores_of_pairs_without_differences_and_of_silence() -> None:
    assert match_caption("nothing has changed", truth()).scores == PERFECT
    silent = {PRECISION: 0.0, RECALL: 0.0, F1: 0.0, INVENTED: 0.0}
    assert match_caption("a cube", truth()).scores == silent
    assert match_caption("nothing has changed", truth(GONE)).scores == silent
    assert match_caption("the red cube is gone", truth()).scores == {**silent, INVENTED: 1.0}


# ------------------------------------------------------------------------------------------------------ planted errors


@pytest.mark.parametrize("error", ERRORS)
def test_a_planted_error_lowers_what_it_should_and_nothing_else(pairs: list[Drawn], error: str) -> None:
    rng = np.random.default_rng(6)
    planted_in = 0
    for pair in pairs:
        caption = planted(error, pair.differences, pair.before, pair.after, pair.views, rng)
        if caption is None:
            continue
        planted_in += 1
        found = match_caption(caption, truth_of_drawn(pair))
        right, half, total = found.count("right"), found.count("half"), len(pair.differences)
        if error == "missing":
            assert (right, len(found.claims)) == (total - 1, total - 1), caption
        elif error == "invented":
            assert (right, len(found.claims), found.count("invented")) == (total, total + 1, 1), caption
        else:
            assert (right, len(found.claims)) == (total - 1, total), caption
            assert (half, found.count("surplus"), found.count("invented")) == (1, 0, 0), caption
        lowered = {name for name in (PRECISION, RECALL) if found.scores[name] < 1.0}
        if total:
            both = {PRECISION, RECALL}
            assert lowered == {"missing": {RECALL}, "invented": {PRECISION}}.get(error, both), caption
    assert planted_in > len(pairs) / 2


# ------------------------------------------------------------------------------------------------------------- a split


def test_the_scores_of_a_split_are_means_and_counts() -> None:
    both = truth(REPAINTED, GONE)
    rows: list[tuple[Matched, TrueDifferences]] = [
        (match_caption("the red cube has turned blue", both), both),
        (match_caption("nothing has changed", truth()), truth()),
        (match_caption("the red cube has turned green and a ball was added", truth(REPAINTED)), truth(REPAINTED)),
    ]
    found = difference_scores(rows)
    assert found.protocol == PROTOCOL
    assert (found.pairs, found.claims, found.truths) == (3, 3, 3)
    assert (found.right, found.half, found.surplus, found.invented) == (1, 1, 0, 1)
    assert found.means() == pytest.approx({PRECISION: 2 / 3, RECALL: 0.5, F1: (2 / 3 + 1) / 3, INVENTED: 0.5 / 3})
    assert (found.unchanged.right, found.unchanged.total) == (1, 1)
    assert {kind: (one.right, one.total) for kind, one in found.by_kind.items()} == {"color": (1, 2), "drop": (0, 1)}
    by_number = {number: (one.pairs, one.f1) for number, one in found.by_number.items()}
    assert by_number == {0: (1, 1.0), 1: (1, 0.0), 2: (1, pytest.approx(2 / 3))}
    text = difference_table(found)
    assert "1 right, 1 half right, 0 said twice, 1 invented" in text
    assert "drop 0 of 1, color 1 of 2" in text
    with pytest.raises(ValueError, match="there are no captions of pairs"):
        difference_scores([])


def test_the_list_of_a_pair_comes_from_its_meta() -> None:
    meta = {"before": [RED, BALL], "after": [BLUE, BALL]}
    single = true_differences("color", meta)
    assert single.differences == (REPAINTED,)
    assert single.views is None
    listed = true_differences(None, {**meta, DIFFERENCES: [{"kind": "color", "before": [0], "after": [0]}]})
    assert listed.differences == (REPAINTED,)
    none = true_differences("none", {"before": [RED], "after": [RED]})
    assert none.differences == ()
    assert true_differences("replace", meta) is None
    assert true_differences("color", {}) is None
    assert true_differences("color", {"before": [RED], "after": [RED]}) is None, "they contradict the type"
    with pytest.raises(ValueError, match="kind is 'paint'"):
        true_differences(None, {**meta, DIFFERENCES: [{"kind": "paint"}]})
