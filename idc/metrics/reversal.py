"""Whether the caption of a pair turns round when its images are swapped: what appeared is gone, what became blue was
blue, an unchanged scene stays one. It needs no reference and no judge: the caption of the one order is the truth of the
other one, so that a captioner which takes no notice of the order, or says the same of all pairs, is found out.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.metrics.change_types import says_no_change
from idc.metrics.claims import SentenceClaim, read_claims
from idc.metrics.scene_scores import wilson

_OTHER_WAY = {"add": "drop", "drop": "add"}


class Reversal(BaseModel):
    """Pairs whose caption can be read as claims, and those of them whose caption turned round with the images."""

    model_config = ConfigDict(extra="forbid")

    asked: int
    """Pairs that were captioned in both orders."""
    read: int
    turned: int
    changes: int
    """Of those that can be read, the captions that name a change ..."""
    changes_turned: int
    """... and turned round: one that always says that nothing changed turns round, and has none."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, bool | None]]) -> Reversal:
        """Of captions, and whether each turned round; None where it cannot be read."""
        values = list(pairs)
        read = [(says_no_change(caption), turned) for caption, turned in values if turned is not None]
        changes = [turned for no_change, turned in read if not no_change]
        turned = sum(turned for _, turned in read)
        return cls(
            asked=len(values), read=len(read), turned=turned, changes=len(changes), changes_turned=sum(changes)
        )  # fmt: skip

    def __str__(self) -> str:
        if not self.read:
            return f"the captions of {self.asked} pairs claim nothing that can be read"
        low, high = wilson(share := self.turned / self.read, self.read)
        interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f}"
        counts = f"{self.turned} of {self.read} that can be read, of {self.asked} pairs"
        changes = f"of those that name a change {self.changes_turned} of {self.changes}"
        return f"{share:.1%} ({interval}) of the captions turn round with the images: {counts}; {changes}"


def turns_round(caption: str, swapped: str) -> bool | None:
    """Whether the caption of the swapped pair claims the reverse of the caption, all of it and no more; None if the
    caption claims nothing that can be read."""
    reading, other = read_claims(caption), read_claims(swapped)
    if not reading.claims:
        return other.no_change if reading.no_change else None
    if len(reading.claims) != len(other.claims):
        return False
    from scipy.optimize import linear_sum_assignment  # slow to import

    fits = np.array([[_is_reverse(claim, counterpart) for counterpart in other.claims] for claim in reading.claims])
    rows, columns = linear_sum_assignment(~fits)
    return bool(fits[rows, columns].all())


def _is_reverse(claim: SentenceClaim, other: SentenceClaim) -> bool:
    if _OTHER_WAY.get(str(claim.kind), claim.kind) != other.kind:
        return False
    if claim.new & other.new or claim.old & other.old:  # it cannot have become blue in either order
        return False
    looks, others = _looks(claim), _looks(other)
    return _agree(looks[0], others[1]) and _agree(looks[1], others[0])


def _looks(claim: SentenceClaim) -> tuple[dict[str, str], dict[str, str]]:
    """Attributes of the object before and after, as far as they are said. A new look is not that of before, and what is
    described alone is that of either."""
    described, old, new = dict(claim.described), dict(claim.old), dict(claim.new)
    before = {**described, **old}
    after = {name: value for name, value in {**described, **new}.items() if name in new or name not in old}
    return before, after


def _agree(look: dict[str, str], other: dict[str, str]) -> bool:
    return all(other.get(name, value) == value for name, value in look.items())
