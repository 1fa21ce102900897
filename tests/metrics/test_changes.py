"""Change types named by captions: all templates of the rendered pairs, CLEVR-Change's and LEVIR-CC's wordings."""

from __future__ import annotations

import numpy as np
import pytest

from idc.data.rendered import captions as rendered
from idc.metrics.changes import LEVIR_NO_CHANGE, agreement, change_table, named_type, says_no_change
from idc.schema import CHANGE_TYPES

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


@pytest.mark.parametrize(
    ("caption", "kind"),
    [
        ("The tiny cyan rubber sphere that is on the left side of the big gray object turned yellow.", "color"),
        ("the color of the cube that is behind the metal ball has changed", "color"),
        ("the purple thing changed its color", "color"),
        ("the ball changed from red to blue", "color"),
        ("the small ball became a shiny one", "material"),
        ("the green block is now made of metal", "material"),
        ("the ball has a different texture", "material"),
        ("there is no longer a large green cylinder", "drop"),
        ("the small gray shiny cylinder that was behind the ball vanished", "drop"),
        ("the tiny ball is in a new position", "move"),
        ("the position of the big ball has changed", "move"),
        ("the tiny ball changed its location", "move"),
        ("a tiny blue ball was newly placed", "add"),
        ("someone put a new cube there", "add"),
        ("there is no difference", "none"),
        ("the scene is the same as before", "none"),
        ("no change has occurred", "none"),
        ("almost nothing has changed", "none"),
        ("the two scenes seem identical", "none"),
        ("the scene has not changed", "none"),
        ("there isn't any change and nothing moved", "none"),
        ("someone placed a shiny blue ball next to the green cube", None),
        ("The two images are nearly identical. The red cube is missing in the second.", "drop"),
        ("The images are identical except for the missing cube.", "drop"),
        ("Everything is the same apart from the color of the ball.", "color"),
        ("There are no changes other than a small blue cube that has been added.", "add"),
        ("The images look the same, however the green cylinder has moved to the right.", "move"),
        ("Nothing is different, with the exception of the ball, which is no longer there.", "drop"),
        ("The small sphere has disappeared and no other changes are visible.", "drop"),
        ("A red sphere is visible in the first image but not in the second.", "drop"),
        ("The blue cube is present only in the second image.", "add"),
        ("There is a cube in the second image but it is not in the first.", "add"),
        ("Nothing changed. No objects were added or removed.", "none"),
        ("There is no difference; the objects have not moved.", "none"),
        ("The scene is unchanged, but the camera has moved slightly.", "none"),
        ("Everything is the same except for the brightness.", "none"),
        ("the cube the cube the cube", None),
        ("the red cube that is to the left of the metal ball", None),
        ("", None),
    ],
)
def test_other_wordings(caption: str, kind: str | None) -> None:
    assert named_type(caption) == kind


def test_random_captions_of_the_generator_all_name_their_type() -> None:
    rng = np.random.default_rng(0)
    for kind, templates in rendered.TEMPLATES.items():
        for _ in range(50):
            template = templates[rng.integers(len(templates))]
            value = str(rng.choice(VALUES[kind])) if kind in VALUES else ""
            caption = template.format(d=str(rng.choice(DESCRIPTIONS)), v=value)
            assert named_type(caption) == kind, caption


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
    found = agreement(rows)
    assert found is not None
    assert found.pairs == 6
    assert found.accuracy == pytest.approx(3 / 6)
    assert (found.most_frequent, found.chance_most_frequent) == ("none", pytest.approx(3 / 6))
    assert found.chance_matched == pytest.approx((9 + 4 + 1) / 36)
    assert found.per_type == {"color": 0.5, "move": 0.0, "none": pytest.approx(2 / 3)}
    assert found.table == {"color": {"color": 1, "material": 1}, "move": {"unclear": 1}, "none": {"move": 1, "none": 2}}


def test_no_agreement_without_known_types() -> None:
    assert agreement([(None, "x"), ("road", "a road was added")]) is None


def test_levirs_five_sentences_say_that_nothing_changed_and_nothing_else_does() -> None:
    for sentence in LEVIR_NO_CHANGE:
        assert says_no_change(sentence)
        assert says_no_change(f" {sentence.capitalize()} .", levir=True)
    for caption in ("nothing was built but a road", "no change has occurred except a house", ""):
        assert not says_no_change(caption, levir=True)


def test_the_table_of_change_against_no_change() -> None:
    rows = [
        (True, "a road is built"),
        (True, "a house appears"),
        (True, "there is no difference"),
        (False, "there is no difference"),
        (None, "a road is built"),
    ]
    found = change_table(rows, levir=True)
    assert found is not None
    assert found.table == {"change": {"change": 2, "no change": 1}, "no change": {"change": 0, "no change": 1}}
    assert found.accuracy == pytest.approx(3 / 4)
    assert found.change_accuracy == pytest.approx(2 / 3)
    assert found.no_change_accuracy == 1.0
    assert found.chance_most_frequent == pytest.approx(3 / 4)
    assert "five no-change sentences" in found.rule
    assert change_table([(None, "x")]) is None
    only = change_table([(True, "nothing has changed")])
    assert only is not None
    assert (only.change_accuracy, only.no_change_accuracy) == (0.0, None)
