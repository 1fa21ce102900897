"""What captions earn: saying less, or more than is so, earns less; CIDEr-D is that of pycocoevalcap; bad rewards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from pycocoevalcap.cider.cider_scorer import CiderScorer

from idc.config import ConfigError, load
from idc.metrics.java import tokenize
from idc.rewards.cider import CiderD
from idc.rewards.config import RewardSettings
from idc.rewards.rewards import DrawnCaption, Rewards, Row, differences
from tests.rewards.scenes import CHANGED, CUBE, MOVED, PLAIN, ROWS, SAME, SEVERAL, SPHERE

LINES = ("the large blue rubber cylinder was moved", "nothing has changed", "the tiny green metal ball is missing")
NAMES = ("differences", "object", "change_type", "unchanged", "cider")


@cache
def reward(name: str) -> Rewards:
    return Rewards({name: 1.0}, ROWS)


def earned(name: str, caption: str, row: Row, ended: bool = True) -> float:
    return float(reward(name)([[DrawnCaption([1], caption, ended)]], [row])[0, 0, 0])


def degenerate(row: Row) -> dict[str, tuple[str, bool]]:
    """Name -> caption, and whether it ended."""
    plain = PLAIN[row["pair_id"]]
    other = LINES[0] if row is not MOVED and row is not SAME else LINES[2]
    return {
        "empty": ("", True),
        "something": ("something changed", True),
        "an object": ("an object changed somehow", True),
        "all attributes": (
            "the small large red blue green gray metal rubber cube sphere cylinder was added removed moved changed",
            True
        ),
        "five times": (". ".join([plain] * 5), True),
        "five times, as one": (" and ".join([plain] * 5), True),
        "another pair": (other, True),
        "no end": (plain, False),
        "one word": (plain.split()[-1], True),
        "all kinds": (f"{plain}, and the cube was added, and the ball was removed, and one was moved", True),
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", list(degenerate(CHANGED)))
def test_a_degenerate_answer_earns_less_than_a_plain_sentence(name: str, answer: str) -> None:
    """In each reward, of each pair that the reward is about."""
    rows = {"object": [CHANGED, MOVED], "change_type": [CHANGED, MOVED], "unchanged": [SAME]}
    for row in rows.get(name, [CHANGED, MOVED, SAME]):
        caption, ended = degenerate(row)[answer]
        assert earned(name, caption, row, ended) < earned(name, PLAIN[row["pair_id"]], row), row["pair_id"]


def test_what_is_left_out_earns_nothing_like_what_is_false() -> None:
    captions = [
        "the small red metal cube was removed", "the small red cube was removed", "the red cube was removed",
        "the cube was removed", "the large red metal cube was removed",
    ]  # fmt: skip
    for name, values in {
        "object": [1, 9 / 16, 1 / 4, 1 / 16, 9 / 16],
        "differences": [0.3 + 0.7 * share for share in (1, 9 / 16, 1 / 4, 1 / 16, 9 / 16)],
        "change_type": [1, 1, 1, 1, 1],
        "unchanged": [0, 0, 0, 0, 0],
    }.items():
        assert [earned(name, caption, CHANGED) for caption in captions] == pytest.approx(values), name


RECOLOURED: Row = {
    "pair_id": "colour", "change_type": "color", "captions": ["the large blue rubber sphere turned green"],
    "meta": {"before": [SPHERE, CUBE], "after": [SPHERE | {"color": "green"}, CUBE]},
}  # fmt: skip


@pytest.mark.parametrize("row", [CHANGED, SEVERAL, RECOLOURED], ids=lambda row: str(row["pair_id"]))
@pytest.mark.parametrize("claim", ["was removed", "was moved", "turned green"])
@pytest.mark.parametrize("before", ["", "the large blue rubber sphere was added. "])
def test_leaving_out_pays_no_more_than_a_false_word(row: Row, claim: str, before: str) -> None:
    """In right, half right and invented claims, alone and behind another."""
    said, false = "the small red metal cube", "the large blue rubber cylinder"
    if row is RECOLOURED:
        said, false = "the large blue rubber sphere", "the small red metal cylinder"
    pairs = [(f"{said} changed its color", f"{said} turned gray")]
    for index, word in enumerate(false.split()[1:], 1):
        left_out, changed = said.split(), said.split()
        left_out[index], changed[index] = "object" if index == 4 else "", word
        pairs.append((" ".join([*left_out, claim]), " ".join([*changed, claim])))
    for pair in pairs:
        values = differences([before + sentence for sentence in pair], row)
        assert values[0] == pytest.approx(values[1]), pair


@pytest.mark.parametrize("row", [CHANGED, MOVED, RECOLOURED], ids=lambda row: str(row["pair_id"]))
def test_a_true_plain_sentence_earns_all(row: Row) -> None:
    rewards = Rewards({"differences": 1.0, "object": 1.0, "change_type": 1.0}, [row])
    assert rewards([[DrawnCaption([1], row["captions"][0], True)]], [row]).tolist() == [[[1.0]]] * 3


def test_a_further_claim_as_good_as_those_before_is_worth_its_risk() -> None:
    half = "the small red metal cube was moved"
    assert differences([half, f"{half}. the large blue rubber sphere was moved"], SEVERAL) == pytest.approx([0.2, 0.3])


def test_of_a_list_every_difference_counts_and_what_is_invented_costs() -> None:
    both = "the small red metal cube was removed. the large blue rubber sphere was added"
    rewards = Rewards({"differences": 1.0}, [SEVERAL])
    captions = [both, both.split(". ")[0], f"{both}. the tiny gray cylinder was moved", "nothing changed"]
    values = rewards([[DrawnCaption([1], caption, True) for caption in captions]], [SEVERAL])[0, 0]
    assert values.tolist() == pytest.approx([1, 2 / 3, 3 / 5, 0])
    with pytest.raises(ValueError, match="object is of pairs with a single change, and pair 'several' has a list"):
        Rewards({"object": 1.0}, [CHANGED, SEVERAL])


def test_cider_is_that_of_pycocoevalcap_to_the_last_digit() -> None:
    rng = random.Random(0)
    things = [f"{size} {colour} {shape}" for size in ("small", "large") for colour in ("red", "grey", "blue")
              for shape in ("cube", "ball.", "cylinder, it cannot be")]  # fmt: skip
    says = ("the {} was removed", "there's no {} any more", "someone has moved the {}", "{} is gone")
    corpus = [[line.format(rng.choice(things)) for line in rng.choices(says, k=1 + n % 4)] for n in range(60)]
    captions = [rng.choice(rng.choice(corpus)) for _ in corpus]
    theirs = CiderScorer()
    for caption, references in zip(captions, corpus, strict=True):
        theirs += (tokenize([caption])[0], tokenize(references))
    ours = CiderD(corpus)
    scores = [ours([caption], {"captions": texts})[0] for caption, texts in zip(captions, corpus, strict=True)]
    assert scores == list(theirs.compute_score()[1])


def half_a_number(captions: Sequence[str], row: Row) -> list[Any]:
    return [float("nan")] * len(captions) if row["pair_id"] == "same" else [0.5] * (len(captions) - 1)


def words_of(captions: Sequence[str], row: Row) -> list[Any]:
    return [len(caption.split()) + len(row["meta"]) for caption in captions]


def text_of(captions: Sequence[str], row: Row) -> list[Any]:
    return ["good" for _ in captions]


@pytest.mark.parametrize(
    ("weights", "rows", "text"),
    [
        (
            {"tests.rewards.test_rewards:half_a_number": 1.0},
            [SAME],
            r"half_a_number returned \[nan, nan\] for .* of pair 'same'; it must return 2 finite numbers",
        ),
        (
            {"tests.rewards.test_rewards:half_a_number": 1.0},
            [CHANGED],
            r"returned \[0.5\] for .* of pair 'changed'; it",
        ),
        ({"tests.rewards.test_rewards:text_of": 1.0}, ROWS, r"returned \['good', 'good'\] for .*; it must return 2"),
        ({"object": 1.0}, [{**CHANGED, "meta": {}}], "object compares captions with the scenes of rendered pairs, and"),
        ({"cider": 1.0}, [CHANGED], "all pairs have the same captions; take more pairs, or leave it out"),
    ],
)
def test_a_reward_that_cannot_be_computed_is_refused_in_one_line(
    weights: dict[str, float], rows: Sequence[Row], text: str
) -> None:
    with pytest.raises(ValueError, match=text) as refusal:
        Rewards(weights, rows)
    assert "\n" not in str(refusal.value)


def test_a_function_of_the_user_is_a_reward() -> None:
    rewards = Rewards({"tests.rewards.test_rewards:words_of": 2.0}, ROWS)
    answers = [[DrawnCaption([1], "the cube", True), DrawnCaption([1], "the cube", True)]]
    assert rewards(answers, [CHANGED]).tolist() == [[[4.0, 4.0]]]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rewards": {"differencs": 1.0}}, "rewards: no reward is called 'differencs'; did you mean 'differences'"),
        ({"rewards": {"cider": 0.0}}, "the weight of cider is 0.0; give a positive one"),
        ({"rewards": {}}, "rewards"),
        ({"group": 1}, "group=1: a caption alone is its own baseline and learns nothing; take group=8"),
        ({"group": 1, "baseline": "greedy", "scale": "sum"}, "group=1: a caption alone has no deviation"),
        ({"temperature": 0}, "temperature"),
        ({"clip_low": 1.0}, "clip_low"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(RewardSettings, None, settings)


def test_a_reward_that_cannot_be_imported_is_refused_before_anything_starts() -> None:
    faults = list(load(RewardSettings, None, {"rewards": {"nowhere.at_all:reward": 1.0}}).preflight())
    assert len(faults) == 1
    assert "rewards: nowhere.at_all:reward cannot be imported" in faults[0]
