"""How many parts of each class a class map has, and where: as ChangeIMTI counts regions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from idc.captioning.contract import ClassMap
from idc.data.change_masks import find_regions, positions_of


@dataclass(frozen=True)
class ClassCount:
    """The regions of a class: their number, the share of the image's area that they cover, in [0, 1], and the cell of
    the 3x3 grid of each."""

    name: str
    count: int
    share: float
    positions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "positions": list(self.positions)}


def count_classes(class_map: ClassMap) -> tuple[ClassCount, ...]:
    """The regions of every class but the first, what did not change, as ChangeIMTI counts them by default."""
    counts = []
    for number, name in enumerate(class_map.names[1:], start=1):
        mask = class_map.classes == number
        positions = tuple(positions_of(find_regions(mask)))
        counts.append(ClassCount(name, len(positions), float(mask.mean()), positions))
    return tuple(counts)
