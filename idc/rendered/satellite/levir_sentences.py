"""Five captions of a pair in the manner of LEVIR-CC's annotators: lower case, no full stop, some three to twenty words;
for a pair without a change the five sentences that the data set always has.

Every caption is true of the pair's list of changes: numbers, kinds, places and what is named besides (the ground
before, trees that were removed, a parking lot).
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
MANY_TREES = 20
"""Fewest removed trees that are called many."""
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


def levir_captions(words: Words, rng: np.random.Generator) -> tuple[str, ...]:
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
        return f"{self.pick(amounts)} {noun}s", True

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
            self.pick(
                (f"{be} removed", f"{be} removed", f"disappear{s}", f"{have} been removed", f"{have} disappeared")
            )
        )

    def nouns(self) -> Sequence[str]:
        if self.words.large:
            return ("building",)
        return {
            "house": ("house", "house", "house", "building", "villa"),
            "villa": ("villa", "villa", "house", "building"),
        }.get(self.words.noun, ("building", "building", "house"))

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
            counted = "two roads" if words.streets == 2 else "several roads"
            options = [("some roads", True), ("roads", True), (counted, True)]
            if words.form == "t-shaped":
                options.append(("a t-shaped road", False))
            street, several = self.pick(options)
            return str(street), bool(several)
        kinds = ["a road", "a road", "a cement road", "a new road"]
        if words.form in ("straight", "winding"):
            kinds.append(f"a {words.form} road")
        return str(self.pick(kinds)), False

    def removed_trees(self) -> str:
        """Trees or plants, with the verb."""
        many = ("many trees are",) if self.words.trees >= MANY_TREES else ()
        return str(self.pick(("some trees are", "trees are", "some plants are", *many))) + " removed"

    def several_of(self) -> str:
        """Buildings without a number."""
        return f"{self.pick(self.nouns())}s"

    # ----------------------------------------------------------------------------------------------- the sentences

    def _houses(self) -> str:
        words, rows = self.words, self.words.rows
        subject, several = self.subject(words.built, self.nouns())
        be = "are" if several else "is"
        aside = self.beside() or self.place()
        forms = [f"{subject} {self.happens(several)} {self.where()}"] * 3
        if words.trees >= TREES:
            trees = str(self.pick(("some trees", "the trees")))
            forms += [
                f"{self.removed_trees()} and {subject} {self.happens(several)} {aside}",
                f"{subject} {be} built to replace {trees} {self.beside()}",
                f"{subject} replace{'' if several else 's'} {trees} {aside}",
            ]
        if len(rows) == 1 and rows[0] == words.built >= 3 and words.roads:
            verb, side = self.pick(("is built", "are built", "is constructed")), self.pick(("along", "beside", "by"))
            end = self.place() if self.rng.random() < 0.4 else self.ground()
            forms += [f"a row of {self.several_of()} {verb} {side} the road {end}"] * 2
        if len(rows) == 2 and min(rows) >= 3 and sum(rows) == words.built and words.roads == 1:
            side = self.pick(("on both sides of the road", "along the road"))
            forms += [f"two rows of {self.several_of()} are built {side} {self.ground()}"] * 2
        if words.built >= MASSIVE:
            verb = self.pick(("appears", "is built", "has been constructed"))
            forms += [f"a residential area with many {self.several_of()} {verb} {self.ground()}"]
        return str(self.pick(forms))

    def _settlement(self) -> str:
        words = self.words
        subject, several = self.subject(words.built, self.nouns())
        street, streets = self.street()
        ground, be = self.ground() or self.place(), "are" if several else "is"
        them, road = ("along them", "roads") if streets else (str(self.pick(("along it", "beside it"))), "road")
        forms = [
            f"{street} and {subject} {self.happens(True)} {ground}",
            f"{subject} and {street} {self.happens(True)} {ground}",
            f"{street} with {subject} {self.pick(('alongside', 'built along'))} {self.happens(streets)} {ground}",
            f"{street} {self.happens(streets)} {ground} and {subject} {be} built {them}",
            f"{subject} {self.happens(several)} {self.pick(('beside', 'along'))} the newly built {road} {ground}",
        ]
        if words.built >= MASSIVE:
            verb = self.pick(("appears", "is built"))
            forms += [f"a residential area with many {self.several_of()} and {street} {verb} {ground}"] * 2
        if words.trees >= TREES:
            along = self.pick(("along", "built along", "beside"))
            forms += [
                f"{self.removed_trees()} and {street} {self.happens(streets)} with {subject} {along}",
                f"{self.pick(('the trees', 'some trees'))} are replaced by {street} and {subject}",
            ]
        return str(self.pick(forms))

    def _road(self) -> str:
        words = self.words
        street, streets = self.street()
        be = "are" if streets else "is"
        scene = "woods" if words.ground == "woods" else "scene"
        forms = [f"{street} {self.happens(streets)} {self.where(beside=False)}"] * 2
        forms += [f"{street} {be} built {self.pick(('through', 'across'))} the {scene}"]
        if words.trees >= TREES:
            forms += [
                f"{self.removed_trees()} and {street} {self.happens(streets)} {self.ground() or self.place()}",
                f"{street} {be} built to replace {self.pick(('some trees', 'some original trees'))}",
            ]
        if words.ground in ("bareland", "grass", "desert"):
            original = "original " if self.rng.random() < 0.4 else ""
            land = original + ("meadow" if words.ground == "grass" else "bareland")
            forms += [f"{street} {be} {self.pick(('built', 'constructed'))} on the {land} {self.place()}"]
        return str(self.pick(forms))

    def _large(self) -> str:
        words = self.words
        size = f"{self.pick(('large', 'large', 'huge', 'big'))} building"
        subject, several = self.subject(words.built, (size,) if words.built == 1 else (size, "building"))
        forms = [f"{subject} {self.happens(several)} {self.where()}"] * 2
        if words.parking:
            forms += [
                f"{subject} and a parking lot {self.happens(True)} {self.where()}",
                f"{subject} with a parking lot {self.happens(several)} {self.where()}",
                f"{subject} with a parking lot {'are' if several else 'is'} built {self.beside()} {self.ground()}",
            ]
        if words.trees >= TREES:
            forms += [f"{self.removed_trees()} and {subject} {self.happens(several)} {self.beside() or self.place()}"]
        return str(self.pick(forms))

    def _large_and_road(self) -> str:
        subject, several = self.subject(self.words.built, ("large building", "building", "big building"))
        street, streets = self.street()
        ground = self.ground() or self.place()
        lot = " with a parking lot" if self.words.parking else ""
        built = "are built" if streets else self.pick(("appears", "is built"))
        forms = [
            f"{street} and {subject} {self.happens(True)} {ground}",
            f"{subject}{lot} and {street} {self.happens(True)} {ground}",
            f"{subject}{lot} {self.happens(several)} and {street} {built} {ground}",
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
        cell = self.place()
        forms = [
            f"the {noun} {cell} is extended",
            f"a building is built next to {'another one' if noun == 'building' else f'the {noun}'} {cell}",
            f"a small building appears next to the {'existing one' if noun == 'building' else noun} {cell}",
            f"a building attached to an existing one appears {cell}",
            f"{self.pick(('a room is built', 'an extra room is added'))} next to the original {noun} {cell}",
            f"the {noun} {cell} has been {self.pick(('extended', 'expanded'))}",
            f"an extra room is constructed beside the {noun} {cell}",
        ]
        return str(self.pick(forms))
