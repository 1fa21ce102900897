"""Questions and answers about rendered images, from the truth of their scenes: what a small base model learns first.

Everything that an answer says depends on the image; what it does not depend on (order of the objects, order of the
attributes, wording) is always the same. So nearly every learned token carries a gradient to the vision tower.

Objects are described by size, colour, material and shape, and placed by thirds of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from idc.data.rendered.captions import ATTRIBUTES, VALUES
from idc.data.rendered.scene import Thing, View
from idc.schema import NO_CHANGE

COLUMNS: tuple[tuple[float, str], ...] = ((0.42, "left"), (0.58, "middle"), (1.0, "right"))
ROWS: tuple[tuple[float, str], ...] = ((0.39, "back"), (0.52, "center"), (1.0, "front"))
"""Right (lower) ends of the thirds, as shares of width (height), and their names. Cut so that each third has about as
many of the objects of scenes of :class:`~idc.data.rendered.config.RenderConfig`."""

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NOTHING = "nothing"


class SceneQuestion(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, order=True)
class SeenObject:
    """An object in an image.

    Attributes:
        x, y: its centre, as shares of width and height from the upper left corner.
    """

    x: float
    y: float
    size: str
    color: str
    material: str
    shape: str

    @property
    def name(self) -> str:
        return " ".join(getattr(self, attribute) for attribute in ATTRIBUTES)

    @property
    def position(self) -> str:
        return f"{_third(self.y, ROWS)} {_third(self.x, COLUMNS)}"


def _third(value: float, ends: Sequence[tuple[float, str]]) -> str:
    return next((name for end, name in ends if value < end), ends[-1][1])


def seen_objects(
    things: Sequence[Mapping[str, Any]], view: Mapping[str, Any], size: tuple[int, int]
) -> list[SeenObject]:
    """The objects of an image, from left to right.

    Args:
        things, view: of one image, as the ``meta`` of a rendered pair has them.
        size: height and width of the image as it was rendered.
    """
    height, width = size
    objects = [Thing(**thing) for thing in things]
    centres = np.array([(thing.x, thing.y, thing.half_height) for thing in objects]).reshape(-1, 3)
    positions = View.of_record(view).project(centres, width, height) / (width, height)
    return sorted(
        SeenObject(float(x), float(y), thing.size, thing.color, thing.material, thing.shape)
        for thing, (x, y) in zip(objects, positions, strict=True)
    )


def moved(objects: Sequence[SeenObject], mirrored: bool, shift: tuple[float, float] = (0.0, 0.0)) -> list[SeenObject]:
    """The objects of the image after it was mirrored, then shifted by shares of its width and height."""
    return sorted(
        replace(seen, x=(1 - seen.x if mirrored else seen.x) + shift[0], y=seen.y + shift[1]) for seen in objects
    )


# -- one image ------------------------------------------------------------------------------------------------------


def object_listing(objects: Sequence[SeenObject], of: str = "the image") -> SceneQuestion:
    """All objects from left to right, each with its position."""
    answer = ", ".join(f"{seen.position}: {seen.name}" for seen in sorted(objects))
    return SceneQuestion(f"List the objects of {of} from left to right.", answer or NOTHING)


LISTED = ("object", "place", *ATTRIBUTES)
"""Counted in a listing: objects with all attributes right, positions (`place`), and each attribute."""


def listing_hits(truth: str, answer: str) -> dict[str, int]:
    """How many of :data:`LISTED` are right in the answer to :func:`object_listing`, the n-th entry against the n-th
    object, and the number of ``objects``; entries are ``position: size colour material shape``."""
    true_entries, entries = ([_entry(text) for text in sentence.split(", ")] for sentence in (truth, answer))
    hits = dict.fromkeys(LISTED, 0) | {"objects": len(true_entries)}
    for (true_position, true_words), (position, words) in zip(true_entries, entries, strict=False):
        hits["object"] += true_words == words
        hits["place"] += true_position == position
        for attribute, true_word, word in zip(ATTRIBUTES, true_words, words, strict=False):
            hits[attribute] += true_word == word
    return hits


def _entry(text: str) -> tuple[str, list[str]]:
    position, _, name = text.partition(": ")
    return position, name.split()


def at_a_position(objects: Sequence[SeenObject], rng: np.random.Generator) -> SceneQuestion:
    """The question for the objects at a position; one of four positions is drawn without looking at the objects."""
    if not objects or rng.random() < 0.25:
        position = f"{ROWS[int(rng.integers(3))][1]} {COLUMNS[int(rng.integers(3))][1]}"
    else:
        position = objects[int(rng.integers(len(objects)))].position
    names = [seen.name for seen in sorted(objects) if seen.position == position]
    return SceneQuestion(f"What is at the {position}?", " and ".join(f"a {name}" for name in names) or NOTHING)


def where(objects: Sequence[SeenObject], rng: np.random.Generator) -> SceneQuestion:
    """Where an object is."""
    if not objects:
        return counting_question(objects, rng)
    name = objects[int(rng.integers(len(objects)))].name
    return SceneQuestion(
        f"Where is the {name}?",
        " and ".join(f"at the {seen.position}" for seen in sorted(objects) if seen.name == name),
    )


def counting_question(objects: Sequence[SeenObject], rng: np.random.Generator) -> SceneQuestion:
    """How many objects there are: all, or those with a value of an attribute, of which every other one is there."""
    if rng.random() < 0.3:
        return SceneQuestion("How many objects are there?", NUMBERS[len(objects)])
    attribute = str(rng.choice(ATTRIBUTES))
    if objects and rng.random() < 0.5:
        value = getattr(objects[int(rng.integers(len(objects)))], attribute)
    else:
        value = str(rng.choice(VALUES[attribute]))
    count = sum(getattr(seen, attribute) == value for seen in objects)
    what = f"{value}s" if attribute == "shape" else f"{value} objects"
    return SceneQuestion(f"How many {what} are there?", NUMBERS[count])


ABOUT_AN_IMAGE: tuple[Callable[[Sequence[SeenObject], np.random.Generator], SceneQuestion], ...] = (
    at_a_position,
    where,
    counting_question,
)


# -- two images -----------------------------------------------------------------------------------------------------

BOTH_IMAGES = ("the first image", "the second image")


def which_image(first: Sequence[SeenObject], second: Sequence[SeenObject], rng: np.random.Generator) -> SceneQuestion:
    """Which of two images shows an object; if the images differ, mostly one that only one of them shows."""
    names = ({seen.name for seen in first}, {seen.name for seen in second})
    alone = sorted(names[0] ^ names[1])
    either = sorted(names[0] | names[1])
    options = alone if alone and rng.random() < 0.75 else either
    if not options or rng.random() < 0.1:
        name = " ".join(str(rng.choice(VALUES[attribute])) for attribute in ATTRIBUTES)
    else:
        name = options[int(rng.integers(len(options)))]
    shown = (name in names[0], name in names[1])
    answer = {
        (True, False): BOTH_IMAGES[0],
        (False, True): BOTH_IMAGES[1],
        (True, True): "both",
        (False, False): "none",
    }
    return SceneQuestion(f"Which image shows a {name}?", answer[shown])


def list_one(first: Sequence[SeenObject], second: Sequence[SeenObject], rng: np.random.Generator) -> SceneQuestion:
    """The objects of one of two images."""
    number = int(rng.integers(2))
    return object_listing((first, second)[number], BOTH_IMAGES[number])


def named_change(kind: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> SceneQuestion:
    """The type of a change, the changed object, and its new value, always in the same words.

    Args:
        kind: the change type.
        before, after: the objects of the images, as the ``meta`` of a rendered pair has them.
    """
    question = "Name the change."
    gone = [thing for thing in before if thing not in after]
    new = [thing for thing in after if thing not in before]
    if not gone and not new:
        return SceneQuestion(question, NO_CHANGE)
    name = " ".join(str((gone or new)[0][attribute]) for attribute in ATTRIBUTES)
    value = f", {new[0][kind]}" if kind in ("color", "material") else ""
    return SceneQuestion(question, f"{kind}: {name}{value}")
