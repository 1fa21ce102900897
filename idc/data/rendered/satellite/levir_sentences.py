"""Five captions of a pair in the manner of LEVIR-CC's annotators: lower case, no full stop, two to some twenty words, and
for a pair without a change the five sentences that the data set always has.

Every caption is true of the pair's list of changes: numbers, kinds, places and what is named besides (the ground before,
trees that were removed, a parking lot).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

UNCHANGED = (
    "there is no difference",
    "the two scenes seem identical",
    "the scene is the same as before",
    "no change has occurred",
    "almost nothing has changed",
)
"""LEVIR-CC's captions of every pair without a change, in its order."""

NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
MANY, MASSIVE = 6, 9
"""Fewest that are called many, and massive or lots of."""
TREES = 4
"""Fewest removed trees that a caption names."""
CAPTIONS = 5

_GROUND = {
    "bareland": ("on the bareland", "in the bareland", "on the wasteland", "in the clearing", "in the open space"),
    "desert": ("in the desert", "on the bareland", "in the open space"),
    "grass": ("on the grass", "on the meadow", "on the grassland", "in the meadow"),
    "woods": ("in the woods", "in the forest", "among the trees"),
}
_PLACES = {
    "top left corner": ("in the top left corner", "at the top left corner of the scene", "in the upper left corner"),
    "top": ("at the top", "in the top", "at the top of the scene"),
    "top right corner": ("in the top right corner", "at the top right corner of the scene", "on the upper right"),
    "left": ("on the left", "on the left side of the scene"),
    "center": ("in the center", "in the middle of the scene", "in the center of the scene"),
    "right": ("on the right", "on the right side of the scene"),
    "lower left corner": ("in the bottom left corner", "at the bottom left corner of the scene", "in the lower-left"),
    "lower": ("at the bottom", "at the bottom of the scene"),
    "lower right corner": ("in the bottom right corner", "at the bottom right corner", "on the lower-right"),
}
_SIDES = {
    "left": ("top left corner", "left", "lower left corner"),
    "right": ("top right corner", "right", "lower right corner"),
    "top": ("top left corner", "top", "top right corner"),
    "lower": ("lower left corner", "lower", "lower right corner"),
}


@dataclass(frozen=True)
class Words:
    """What captions of a pair may name.

    Attributes:
        built, removed, extended: numbers of buildings.
        noun: ``house``, ``villa`` or ``building``, of the changed buildings.
        large: whether a changed building is large.
        streets: new streets, which are connected; ``form`` of them: ``straight``, ``winding`` or ``t-shaped``.
        ground: what was there before, a key of the table of grounds, or ``none``.
        trees: removed trees.
        parking: whether a parking lot is built.
        roads: streets in the image at the second date.
        rows: of new buildings along a street: numbers of those in each.
        first_row: whether no other building is between the changed ones and their street.
        places: cells of the grid of the changed objects.
    """

    built: int = 0
    removed: int = 0
    extended: int = 0
    noun: str = "house"
    large: bool = False
    streets: int = 0
    form: str = "straight"
    ground: str = "none"
    trees: int = 0
    parking: bool = False
    roads: int = 0
    rows: tuple[int, ...] = ()
    first_row: bool = True
    places: tuple[str, ...] = ()


def captions_of(words: Words, rng: np.random.Generator) -> tuple[str, ...]:
    """Five captions; different ones as far as there are enough."""
    if not (words.built or words.removed or words.extended or words.streets):
        return UNCHANGED
    writer = _Writer(words, rng)
    captions: list[str] = []
    for _ in range(40):
        caption = " ".join(writer.sentence().split())
        if caption not in captions:
            captions.append(caption)
        if len(captions) == CAPTIONS:
            break
    return tuple(captions[n % len(captions)] for n in range(CAPTIONS))


class _Writer:
    def __init__(self, words: Words, rng: np.random.Generator):
        self.words, self.rng = words, rng

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def sentence(self) -> str:
        words = self.words
        if words.removed:
            return self._removal()
        if words.extended:
            return self._extension()
        if words.built and words.streets:
            return self._large_and_road() if words.large else self._settlement()
        if words.streets:
            return self._road()
        return self._large() if words.large else self._houses()

    # ------------------------------------------------------------------------------------------------ the parts

    def subject(self, number: int, nouns: Sequence[str]) -> tuple[str, bool]:
        """A number of things, and whether it is several."""
        noun = str(self.pick(nouns))
        if number == 1:
            return f"a {noun}", False
        amounts = [NUMBERS[number]] * 2 if number in NUMBERS else []
        if number >= 3 or not amounts:
            amounts += ["some", "several"]
        if number >= MANY:
            amounts += ["many", "many", "many"]
        if number >= MASSIVE:
            amounts += ["massive", "lots of", "many"]
        return f"{self.pick(amounts)} {_plural(noun)}", True

    def happens(self, several: bool) -> str:
        be, have, s = ("are", "have", "") if several else ("is", "has", "s")
        return str(
            self.pick(
                (f"{be} built", f"{be} built", f"{be} built", f"{be} constructed", f"{be} constructed", f"appear{s}",
                 f"appear{s}", f"{have} been built", f"{have} been constructed", f"show{s} up", f"{have} appeared")
            )
        )  # fmt: skip

    def ends(self, several: bool) -> str:
        be, have, s = ("are", "have", "") if several else ("is", "has", "s")
        return str(
            self.pick((f"{be} removed", f"{be} removed", f"disappear{s}", f"{have} been removed", f"{have} disappeared"))
        )

    def nouns(self) -> Sequence[str]:
        if self.words.large:
            return ("building",)
        return {"house": ("house", "house", "house", "building", "villa"), "villa": ("villa", "villa", "house", "building")}.get(
            self.words.noun, ("building", "building", "house")
        )  # fmt: skip

    def place(self) -> str:
        """Where, if all of it is in one cell or along one side."""
        cells = set(self.words.places)
        if len(cells) == 1:
            return str(self.pick(_PLACES[next(iter(cells))]))
        sides = [side for side, inside in _SIDES.items() if cells <= set(inside)]
        return str(self.pick(_PLACES[sides[0]])) if sides else ""

    def ground(self) -> str:
        return str(self.pick(_GROUND[self.words.ground])) if self.words.ground in _GROUND else ""

    def beside(self) -> str:
        words = self.words
        if not words.roads:
            return ""
        if len(words.rows) == 2 and words.roads == 1 and self.rng.random() < 0.6:
            return "on both sides of the road"
        road = "roads" if words.roads > 1 and self.rng.random() < 0.5 else "road"
        if not words.first_row:
            return f"near the {road}"
        if len(words.rows) >= 1 and words.built >= 2:
            return str(self.pick((f"along the {road}", f"along the {road}", f"beside the {road}", f"by the {road}")))
        return str(self.pick((f"beside the {road}", f"near the {road}", f"next to the {road}", f"by the {road}")))

    def where(self, beside: bool = True) -> str:
        """One or two of: beside what, on which ground, at which place."""
        parts = [self.beside() if beside else "", self.ground(), self.place()]
        filled = [n for n, part in enumerate(parts) if part]
        wanted = min(len(filled), int(self.rng.choice([1, 2, 2])))
        chosen = sorted(self.rng.choice(filled, wanted, replace=False)) if wanted else []
        return " ".join(parts[int(n)] for n in chosen)

    def street(self) -> tuple[str, bool]:
        words = self.words
        if words.streets > 1:
            options = [("some roads", True), ("roads", True), ("two roads" if words.streets == 2 else "several roads", True)]
            if words.form == "t-shaped":
                options.append(("a t-shaped road", False))
            return self.pick(options)  # type: ignore[no-any-return]
        kinds = ["a road", "a road", "a cement road", "a new road"]
        if words.form in ("straight", "winding"):
            kinds.append(f"a {words.form} road")
        return str(self.pick(kinds)), False

    # ----------------------------------------------------------------------------------------------- the sentences

    def _houses(self) -> str:
        words = self.words
        subject, several = self.subject(words.built, self.nouns())
        forms = [f"{subject} {self.happens(several)} {self.where()}"] * 3
        if words.trees >= TREES:
            forms += [
                f"{self.pick(('some trees are', 'trees are', 'some plants are'))} removed and {subject} {self.happens(several)} {self.beside() or self.place()}",
                f"{subject} {self.pick(('are' if several else 'is',))} built to replace {self.pick(('some trees', 'the trees', 'some plants'))} {self.beside()}",
                f"{subject} replace{'' if several else 's'} {self.pick(('some trees', 'the trees'))} {self.beside() or self.place()}",
            ]  # fmt: skip
        longest = max(words.rows, default=0)
        if len(words.rows) == 1 and longest == words.built >= 3 and words.roads:
            noun = _plural(str(self.pick(self.nouns())))
            row = f"a row of {noun} {self.pick(('is', 'are'))} {self.pick(('built', 'constructed'))}"
            forms += [f"{row} {self.pick(('along', 'beside', 'by'))} the road {self.place() if self.rng.random() < 0.4 else self.ground()}"] * 2
        if len(words.rows) == 2 and min(words.rows) >= 3 and sum(words.rows) == words.built and words.roads == 1:
            noun = _plural(str(self.pick(self.nouns())))
            forms += [f"two rows of {noun} are built {self.pick(('on both sides of the road', 'along the road'))} {self.ground()}"] * 2
        if words.built >= MASSIVE:
            forms += [f"a residential area with many {_plural(str(self.pick(self.nouns())))} {self.pick(('appears', 'is built', 'has been constructed'))} {self.ground()}"]
        return str(self.pick(forms))

    def _settlement(self) -> str:
        words = self.words
        subject, several = self.subject(words.built, self.nouns())
        street, streets = self.street()
        ground = self.ground() or self.place()
        forms = [
            f"{street} and {subject} {self.happens(True)} {ground}",
            f"{subject} and {street} {self.happens(True)} {ground}",
            f"{street} with {subject} {self.pick(('alongside', 'built along'))} {self.happens(streets)} {ground}",
            f"{street} {self.happens(streets)} {ground} and {subject} {'are' if several else 'is'} built {self.pick(('along it', 'beside it')) if not streets else 'along them'}",
            f"{subject} {self.happens(several)} {self.pick(('beside', 'along'))} the newly built {'roads' if streets else 'road'} {ground}",
        ]  # fmt: skip
        if words.built >= MASSIVE:
            forms += [f"a residential area with many {_plural(str(self.pick(self.nouns())))} and {street} {self.pick(('appears', 'is built'))} {ground}"] * 2
        if words.trees >= TREES:
            forms += [
                f"{self.pick(('some trees are', 'many trees are' if words.trees >= 20 else 'trees are'))} removed and {street} {self.happens(streets)} with {subject} {self.pick(('along', 'built along', 'beside'))}",
                f"{self.pick(('the trees', 'some trees'))} are replaced by {street} and {subject}",
            ]  # fmt: skip
        return str(self.pick(forms))

    def _road(self) -> str:
        words = self.words
        street, streets = self.street()
        forms = [f"{street} {self.happens(streets)} {self.where(beside=False)}"] * 2
        forms += [f"{street} {self.pick(('are' if streets else 'is',))} built {self.pick(('through', 'across'))} the {'woods' if words.ground == 'woods' else 'scene'}"]
        if words.trees >= TREES:
            forms += [
                f"{self.pick(('some trees are', 'trees are', 'some plants are'))} removed and {street} {self.happens(streets)} {self.ground() or self.place()}",
                f"{street} {'are' if streets else 'is'} built to replace {self.pick(('some trees', 'some original trees'))}",
            ]  # fmt: skip
        if words.ground in ("bareland", "grass", "desert"):
            forms += [f"{street} {'are' if streets else 'is'} {self.pick(('built', 'constructed'))} on the {'original ' if self.rng.random() < 0.4 else ''}{'meadow' if words.ground == 'grass' else 'bareland'} {self.place()}"]
        return str(self.pick(forms))

    def _large(self) -> str:
        words = self.words
        single = words.built == 1
        size = str(self.pick(("large", "large", "huge", "big")))
        subject, several = (f"a {size} building", False) if single else self.subject(words.built, (f"{size} building", "building"))
        forms = [f"{subject} {self.happens(several)} {self.where()}"] * 2
        if words.parking:
            lot = "a parking lot"
            forms += [
                f"{subject} and {lot} {self.happens(True)} {self.where()}",
                f"{subject} with {lot} {self.happens(several)} {self.where()}",
                f"{subject} with {lot} {self.pick(('are' if several else 'is',))} built {self.beside()} {self.ground()}",
            ]  # fmt: skip
        if words.trees >= TREES:
            forms += [f"some trees are removed and {subject} {self.happens(several)} {self.beside() or self.place()}"]
        return str(self.pick(forms))

    def _large_and_road(self) -> str:
        subject, several = self.subject(self.words.built, ("large building", "building", "big building"))
        street, _ = self.street()
        ground = self.ground() or self.place()
        lot = " with a parking lot" if self.words.parking else ""
        forms = [
            f"{street} and {subject} {self.happens(True)} {ground}",
            f"{subject}{lot} and {street} {self.happens(True)} {ground}",
            f"{subject}{lot} {self.happens(several)} and {street} {self.pick(('appears', 'is built')) if street[:2] == 'a ' else 'are built'} {ground}",
        ]
        return str(self.pick(forms))

    def _removal(self) -> str:
        subject, several = self.subject(self.words.removed, self.nouns())
        forms = [
            f"{subject} {self.ends(several)} {self.place()}",
            f"{subject} {self.ends(several)} {self.where()}",
            f"{subject} {self.beside() or self.place()} {self.ends(several)}",
            f"{subject} {self.place()} {'have' if several else 'has'} been removed",
        ]
        return str(self.pick(forms))

    def _extension(self) -> str:
        noun = str(self.pick(self.nouns()))
        place = self.place()
        forms = [
            f"the {noun} {place} is extended",
            f"a building is built next to {'another one' if noun == 'building' else f'the {noun}'} {place}",
            f"a small building appears next to the {'existing one' if noun == 'building' else noun} {place}",
            f"a building attached to an existing one appears {place}",
            f"a room is {self.pick(('built', 'added'))} next to the original {noun} {place}",
            f"the {noun} {place} has been {self.pick(('extended', 'expanded'))}",
            f"an extra room is constructed beside the {noun} {place}",
        ]
        return str(self.pick(forms))


def _plural(noun: str) -> str:
    return noun + "s"
