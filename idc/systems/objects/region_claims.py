"""Claims about the regions of a comparison that no named object explains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from idc.captioning.contract import Claim, ClaimKind
from idc.systems.objects.claims import ComparedPair
from idc.systems.objects.comparison import CAME
from idc.systems.objects.geometry import Box, box_area, box_cover, rounded_box
from idc.systems.objects.instances import Instance
from idc.systems.objects.wording import LINE, MIXED, REGION, moves

_CLEAR = 1.3
"""Multiple of the threshold that a region without a name must reach: clipped highlights, and what else of the light was
not evened out, stay below it."""
_INSIDE = 0.9
"""Share of a region's box in the box of an object from which it is at that object."""
_MOST = 0.5
"""Share of the image up to which an object says where something is."""
_MATTERS = 0.004
"""Share of the image below which a region is not claimed next to named objects."""


def other_regions(pair: ComparedPair, boxes: Sequence[Box]) -> list[int]:
    """Indices of the regions outside the boxes of claims that are worth a claim of their own: clearly different, and
    large if there are other claims."""
    least = _MATTERS if boxes else 0.0
    indices = pair.unexplained(boxes)
    return [index for index in indices if pair.ratio(index) >= _CLEAR and pair.regions[index].share >= least]


def region_claims(pair: ComparedPair, indices: Iterable[int], stayed: Sequence[Instance] = ()) -> list[Claim]:
    """Claims for regions, by their indices, each said to be at the one of ``stayed`` that it is inside of."""
    result: list[Claim] = []
    for index in indices:
        region, ratio = pair.regions[index], pair.ratio(index)
        around = pair.around if index == 0 else None
        outline = 0.0 if around else pair.comparison.outlines[index]
        moved = not around and pair.comparison.displaced[index]
        kind: ClaimKind = (
            "moved" if moved else "appeared" if outline > CAME else "gone" if outline < -CAME else "changed"
        )
        before, after = (None if colour == MIXED else colour for colour in (region.before, region.after))
        if moved or (kind == "changed" and not (before and after)):
            before = after = None
        elif kind in ("appeared", "gone"):
            before, after = before or pair.lightness(index, 0), after or pair.lightness(index, 1)
        is_line = index >= len(pair.regions) - pair.comparison.lines
        box_before = rounded_box(pair.on_before(region.box), pair.size_before)
        boxes = (None if kind == "appeared" else box_before, None if kind == "gone" else region.box)
        colours = (None if kind == "appeared" else before, None if kind == "gone" else after)
        name, confidence = around or (LINE if is_line else REGION), ratio / (1 + ratio)
        inside = (item for item in stayed if box_cover(region.box, item.place) >= _INSIDE)
        at = min(inside, key=lambda item: box_area(item.place), default=None)
        small = at is not None and box_area(at.place) <= _MOST * math.prod(pair.size_after)
        where = f"at the {at.name} {pair.where([at])}" if at and small and not around else region.position
        if moved and at and moves(at.name):
            name, where = at.name, pair.where([at])
            if any(claim.object == name and claim.where == where for claim in result):
                continue  # other parts of the same one
        result.append(Claim(kind, name, 1, where, *boxes, confidence, *colours, "position" if moved else None))
    return result
