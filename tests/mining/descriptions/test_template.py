"""The template: every sentence it makes is read back, and what does not follow it is refused with the reason."""

from __future__ import annotations

import pytest

from idc.mining.descriptions.template import VERBS, PairDescription, parse_description

GOOD = PairDescription("shows", "a red car and no people", "depicts", "an empty street, seen from above")


def test_a_sentence_is_read_back_with_each_of_the_papers_verbs() -> None:
    assert len(VERBS) == len(set(VERBS)) == 49
    for verb in VERBS:
        one = PairDescription(verb, "a sign with the word \u201cHUNGER\u201d", "has", "keys, and no text on it")
        assert parse_description(one.sentence()) == one


@pytest.mark.parametrize(
    "said",
    [
        "  the difference between the two images is that the first image shows a red car and no people,\nwhile the "
        "second image depicts an empty street, seen from above",
        '"The difference between the two images is that the first image Shows a red car and no people while the second '
        'image depicts an empty street, seen from above."',
    ],
)
def test_case_blanks_quotes_and_the_full_stop_do_not_count(said: str) -> None:
    assert parse_description(said) == GOOD


def of(before: str, after: str) -> str:
    return f"The difference between the two images is that the first image {before}, while the second image {after}."


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("The car is gone.", "off template: there is no 'the difference between"),
        ("The difference between the two images is that the first image shows a car.", "no 'while the second image'"),
        (of("shows a car", "does not"), "off template: 'does' after 'the second image' is not a verb of the list"),
        (of("also shows a car", "shows a bus"), "off template: 'also' after 'the first image'"),
        (of("shows", "shows a bus"), "off template: the first image has no description"),
        (of("shows a car", "shows ..."), "off template: the second image has no description"),
        (of("shows a car", "shows a bus. Both images have a road"), "off template: more than one sentence"),
        ("Sure! " + of("shows a car", "shows a bus"), "off template: text around the template"),
        (of("shows a car", "has no car"), "only denies: the second image has 'no car'"),
        (of("is not there", "shows a car"), "only denies: the first image is 'not there'"),
        (of("shows a car", "shows something that doesn't have it"), "only denies"),
        (of("shows a car", "has neither a car nor a bus, and no people"), "only denies"),
    ],
)
def test_a_refusal_has_its_reason(sentence: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^(off template|only denies): ") as error:
        parse_description(sentence)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "description", ["a desk and no cube", "St. John on a horse", "a notice, which is not lit", "3 cubes"]
)
def test_a_description_that_also_affirms_is_taken(description: str) -> None:
    assert parse_description(of("shows a car", f"shows {description}")).after == description
