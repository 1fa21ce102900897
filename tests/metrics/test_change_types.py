"""Change types named by captions: all templates of the rendered pairs, CLEVR-Change's and LEVIR-CC's wordings; and
whether a caption says that nothing changed: sentences with which the rules were written, and sentences that measure
them. The latter are written anew, once the rules are fixed, and no rule is changed for them: when one is, they join the
former and others are written. A line is "= " or "! " (nothing changed, something did) and a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.data.schema import CHANGE_TYPES
from idc.metrics.change_types import LEVIR_NO_CHANGE, READ, agreement, change_table, clauses, named_type, says_no_change
from idc.rendered import captions as rendered

DESCRIPTIONS = (
    "small red metal cube",
    "large brown rubber ball that is to the left of the tiny shiny red cylinder",
    "matte thing that is on the right side of the big blue metallic block",
    "object in front of the gray sphere",
)
VALUES = {
    "color": ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"),
    "material": (*rendered.SYNONYMS["rubber"], *rendered.SYNONYMS["metal"]),
}


@pytest.mark.parametrize("kind", CHANGE_TYPES)
def test_every_rendered_caption_names_its_type(kind: str) -> None:
    assert rendered.TEMPLATES[kind]
    for template in rendered.TEMPLATES[kind]:
        for description in DESCRIPTIONS:
            for value in VALUES.get(kind, ("",)):
                caption = template.format(d=description, v=value)
                assert named_type(caption) == kind, caption
                assert named_type(caption.capitalize() + " .") == kind


OTHER_WORDINGS: dict[str | None, tuple[str, ...]] = {
    "color": (
        "The tiny cyan rubber sphere that is on the left side of the big gray object turned yellow.",
        "the color of the cube that is behind the metal ball has changed", "the ball changed from red to blue",
        "Everything is the same apart from the color of the ball.",
    ),
    "material": (
        "the small ball became a shiny one", "the green block is now made of metal",
    ),
    "drop": (
        "there is no longer a large green cylinder", "the small gray shiny cylinder that was behind the ball vanished",
        "The two images are nearly identical. The red cube is missing in the second.",
        "Nothing is different, with the exception of the ball, which is no longer there.",
        "The small sphere has disappeared and no other changes are visible.",
        "A red sphere is visible in the first image but not in the second.",
        "Remove the people from the background.", "a car has left",
        "two white cars have left from the parking lot", "the people are not there anymore",
        "there are fewer people next to the blue truck", "the silver van isn't on the road anymore",
        "the person walking in front of the box is not there", "the house was demolished",
    ),
    "move": (
        "the tiny ball changed its location",
        "The images look the same, however the green cylinder has moved to the right.",
        "the gate has been opened", "the people have changed their positions", "the two people have come nearer",
        "the worker has walked from the lower middle to the back left", "the door is now closed",
    ),
    "add": (
        "a tiny blue ball was newly placed", "There are no changes other than a small blue cube that has been added.",
        "The blue cube is present only in the second image.",
        "There is a cube in the second image but it is not in the first.",
        "Insert a beard on the man's face",
        "many villas are constructed along the road", "some houses appear on the grass", "there are more cars",
        "a woman in a grey cardigan has come up to the table", "there is a white car now in the back row",
        "two people are on the path that were not there before", "there is now a grey car on the cross street",
    ),
    "none": (
        "there is no difference", "no change has occurred", "almost nothing has changed",
        "there isn't any change and nothing moved", "Nothing changed. No objects were added or removed.",
        "There is no difference; the objects have not moved.",
        "The scene is unchanged, but the camera has moved slightly.",
        "Everything is the same except for the brightness.", "The two photos show the same yard.",
    ),
    None: (
        "someone placed a shiny blue ball next to the green cube", "the cube the cube the cube",
        "the red cube that is to the left of the metal ball", "", "animal 1 appears to be larger",
        "the cube isn't red anymore",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_WORDINGS)
def test_other_wordings(kind: str | None) -> None:
    for caption in OTHER_WORDINGS[kind]:
        assert named_type(caption) == kind, caption


def test_a_light_colour_is_no_light() -> None:
    assert not says_no_change("The background changed from light grey to grey. The person is the same.")
    assert says_no_change("The light changed. The person is the same.")


def test_agreement_beside_its_chance() -> None:
    rows = [
        ("none", "no change was made"),
        ("none", "the ball moved"),
        ("none", "nothing has changed"),
        ("color", "the ball turned red"),
        ("color", "the ball turned shiny"),
        ("move", "the the the"),
        (None, "nothing has changed"),
        ("road", "a road was added"),
    ]
    scores = agreement(rows)
    assert scores.pairs == 6
    assert scores.accuracy == pytest.approx(3 / 6)
    assert (scores.most_frequent, scores.chance_most_frequent) == ("none", pytest.approx(3 / 6))
    assert scores.per_type == {"color": 0.5, "move": 0.0, "none": pytest.approx(2 / 3)}
    assert scores.table == {
        "color": {"color": 1, "material": 1},
        "move": {"unclear": 1},
        "none": {"move": 1, "none": 2},
    }
    assert agreement([(None, "x"), ("road", "a road was added")]) is None


def test_levirs_five_sentences_say_that_nothing_changed_and_nothing_else_does() -> None:
    for sentence in LEVIR_NO_CHANGE:
        assert says_no_change(sentence)
        assert says_no_change(f" {sentence.capitalize()} .", levir=True)
    for caption in ("nothing was built but a road", "no change has occurred except a house", ""):
        assert not says_no_change(caption, levir=True)


def test_the_table_of_change_against_no_change() -> None:
    same = "there is no difference"
    rows = [(True, "a road is built"), (True, "a house appears"), (True, same), (False, same), (None, "a road")]
    scores = change_table(rows, levir=True)
    assert scores.table == {"change": {"change": 2, "no change": 1}, "no change": {"change": 0, "no change": 1}}
    assert scores.accuracy == pytest.approx(3 / 4)
    assert scores.change_accuracy == pytest.approx(2 / 3)
    assert scores.no_change_accuracy == 1.0
    assert scores.chance_most_frequent == pytest.approx(3 / 4)
    assert "five no-change sentences" in scores.rule
    assert change_table([(None, "x")]) is None
    only = change_table([(True, "nothing has changed")])
    assert (only.change_accuracy, only.no_change_accuracy) == (0.0, None)


HERE = Path(__file__).parent


def sentences(name: str) -> list[tuple[bool, str]]:
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [({"=": True, "!": False}[line[0]], line[2:]) for line in lines]


@pytest.mark.parametrize(("name", "most"), [("no_change_sentences", 0.0), ("no_change_held_out", 0.03)])
def test_the_error_on_a_list_of_sentences(name: str, most: float) -> None:
    rows = sentences(name)
    assert min(sum(same for same, _ in rows), sum(not same for same, _ in rows)) >= 100
    wrong = [text for same, text in rows if says_no_change(text) != same]
    assert len(wrong) <= most * len(rows), wrong
    assert all(says_no_change(text) == (named_type(text) == "none") for _, text in rows)


def test_the_kinds_of_clauses() -> None:
    assert clauses("The camera moved, but nothing was added except for a lamp on the table.") == [
        ("the camera moved", "distractor"),
        ("nothing was added", "same"),
        ("a lamp on the table", "change"),
    ]
    assert clauses("As far as I can tell, the rest is unchanged") == [
        ("as far as i can tell", "other"),
        ("the rest is unchanged", "rest"),
    ]


def test_only_the_beginning_of_an_endless_caption_is_read() -> None:
    assert says_no_change("no change. " + "x" * READ + " a house was built")
    assert not says_no_change("x" * READ + " no change")
