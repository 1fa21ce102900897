"""Claims of captions: read right from every template, rates by hand, chance by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from idc.data.schema import CHANGE_TYPES
from idc.evaluation.record import hallucination_table
from idc.metrics.claims import read_object_claims
from idc.metrics.scene_scores import Rate, Truth, hallucination, truth_of
from idc.rendered import captions as rendered
from idc.rendered.sentences import true_captions


def thing(color: str, shape: str, material: str = "metal", size: str = "small", x: float = 0.0) -> dict[str, object]:
    return {"color": color, "shape": shape, "material": material, "size": size, "x": x}


RED = thing("red", "cube")
BLUE = thing("blue", "sphere", "rubber", "large")


def look(one: dict[str, object]) -> frozenset[tuple[str, str]]:
    return frozenset((name, str(one[name])) for name in rendered.ATTRIBUTES)


def scenes(kind: str) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    return {
        "none": ([RED, BLUE], [RED, BLUE]),
        "drop": ([RED, BLUE], [BLUE]),
        "add": ([BLUE], [BLUE, RED]),
        "move": ([RED, BLUE], [{**RED, "x": 2.0}, BLUE]),
        "color": ([RED, BLUE], [{**RED, "color": "green"}, BLUE]),
        "material": ([RED, BLUE], [{**RED, "material": "rubber"}, BLUE]),
    }[kind]


def pair(kind: str) -> Truth:
    return truth_of(kind, *scenes(kind))


@pytest.mark.parametrize("kind", [kind for kind in CHANGE_TYPES if kind != "none"])
@pytest.mark.parametrize("anchor", ["", " that is to the left of the big matte ball", " that is behind the blue thing"])
def test_every_template_is_read(kind: str, anchor: str) -> None:
    value = {"color": "green", "material": "matte"}.get(kind, "")
    for template in rendered.TEMPLATES[kind]:
        said = read_object_claims(template.format(d=f"tiny red shiny block{anchor}", v=value))
        assert said.described == look(RED), template
        assert said.new_look == ({(kind, "green" if kind == "color" else "rubber")} if value else frozenset()), template


@pytest.mark.parametrize("caption", [*rendered.TEMPLATES["none"], "", "asdf qwer", "something is different"])
def test_no_object_in_captions_of_none(caption: str) -> None:
    said = read_object_claims(caption)
    assert (said.described, said.new_look) == (None, frozenset())


def test_the_relation_may_come_first_and_the_new_look_may_be_an_object() -> None:
    said = read_object_claims("in front of the blue sphere a red cube has been added")
    assert said.described == {("color", "red"), ("shape", "cube")}
    assert read_object_claims("the cube became a blue ball").new_look == {("color", "blue"), ("shape", "sphere")}
    assert read_object_claims("the grey object is now made of metal").described == {("color", "gray")}


@pytest.mark.parametrize("relation", ["next to", "is now next to", "moved closer to", "near"])
@pytest.mark.parametrize("article", ["the", "a", ""])
def test_the_phrase_behind_a_relation_is_the_second_object_also_if_it_ends_in_to(relation: str, article: str) -> None:
    ball = {("size", "small"), ("color", "red"), ("shape", "sphere")}
    for caption, new_look in (
        (f"the tiny red ball {relation} {article} blue cube", set()),
        (f"{relation} {article} blue cube the tiny red ball is gone", set()),
        (f"the tiny red ball {relation} {article} blue cube turned green", {("color", "green")}),
    ):
        said = read_object_claims(caption)
        assert (said.described, said.new_look) == (ball, new_look), caption
    assert read_object_claims(f"the red ball {relation} {article} blue one moved").new_look == frozenset()


def test_the_true_captions_are_right_in_everything() -> None:
    rows = [(caption, pair(kind)) for kind in CHANGE_TYPES for caption in true_captions(kind, *scenes(kind))]
    shares = hallucination(rows)
    assert [share.rate for share in (shares.change_type, shares.object, shares.attribute)] == [1.0] * 3
    assert 0 < shares.change_type.chance < 1
    assert (shares.invented_change.right, shares.missed_change.right) == (0, 0)


def test_rates_by_hand() -> None:
    found = hallucination(
        [
            ("the small red cube moved", pair("move")),  # all right: 3 of 3 attributes
            ("the large red cube has been removed", pair("drop")),  # wrong object: size; 2 of 3
            ("the blue sphere turned red", pair("color")),  # the other object, wrong new colour: 0 of 3
            ("the object is gone", pair("drop")),  # right type, no attribute named: nothing claimed
            ("no change was made", pair("add")),  # missed
            ("the cube to the left of the yellow ball moved", pair("none")),  # invented
            ("nothing has changed", pair("none")),
        ]
    )
    assert (found.pairs, found.changed) == (7, 5)
    assert {name: (rate.right, rate.total) for name, rate in found.rates().items()} == {
        "change type": (5, 7), "object": (1, 5), "attribute": (5, 9), "invented change": (1, 2),
        "missed change": (1, 5),
    }  # fmt: skip
    assert found.interval("attribute") == found.attribute.interval(found.changed)
    assert "object 20.0% (1 of 5) 3.6 to 62.4 chance" in " ".join(hallucination_table(found).split())


def test_intervals_are_wilsons_and_count_no_more_cases_than_pairs() -> None:
    from scipy.stats import binomtest

    for right, of in ((0, 40), (1, 5), (50, 220), (218, 220), (440, 440)):
        known = binomtest(right, of).proportion_ci(method="wilson")
        low, high = Rate(right=right, total=of, rate=right / of, chance=0).interval(1000)
        assert (low, high) == pytest.approx((known.low, known.high), abs=1e-6)
    many, few = (Rate(right=right, total=of, rate=0.6, chance=0) for right, of in ((600, 1000), (60, 100)))
    assert many.interval(100) == pytest.approx(few.interval(100)), "ten claims of each of 100 pairs are 100 cases"
    assert Rate(right=0, total=0, rate=0, chance=0).interval(5) == (0, 1)


def test_chance_is_the_mean_over_all_ways_to_deal_the_captions_out() -> None:
    rng = np.random.default_rng(0)
    colors, shapes = ("red", "blue", "green"), ("cube", "sphere")
    rows = []
    for _ in range(30):
        one, two = (thing(rng.choice(colors), rng.choice(shapes), x=x) for x in (0.0, 1.0))
        kind = str(rng.choice(["move", "drop", "none"]))
        after = {"move": [{**one, "x": 5.0}, two], "drop": [two], "none": [one, two]}[kind]
        verb = rng.choice(["moved", "has been removed"])
        caption = f"the {rng.choice(colors)} {rng.choice(shapes)} {verb}" if rng.random() < 0.8 else "no change"
        rows.append((caption, truth_of(kind, [one, two], after)))
    found = hallucination(rows)
    kinds = {"all": rows, "changed": [row for row in rows if row[1].kind != "none"]}
    shifted = {
        name: [
            hallucination([(own[(i + by) % len(own)][0], true) for i, (_, true) in enumerate(own)])
            for by in range(len(own))
        ]
        for name, own in kinds.items()
    }  # every caption meets every pair once

    def mean(name: str, rate: str) -> float:
        return float(np.mean([getattr(one, rate).rate for one in shifted[name]]))

    assert found.change_type.chance == pytest.approx(mean("all", "change_type"))
    assert found.object.chance == pytest.approx(mean("changed", "object"))
    assert found.attribute.chance == pytest.approx(mean("changed", "attribute"))
    assert found.missed_change.chance == pytest.approx(mean("all", "missed_change"))
    assert found.invented_change.chance == pytest.approx(mean("all", "invented_change"))
