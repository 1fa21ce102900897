"""Settings of ``jobs/make_guide_card.py``."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import missing
from idc.evaluation.card_config import CardSettings


class GuideCardJob(CardSettings):
    """Put a guide with its figures and their card into a folder, such as that of the weights of the program."""

    evaluation: str = Field(min_length=1)
    """Folder of this guide's evaluation (jobs/evaluate.py) on the test split of rendered pairs: its captions."""
    notes: str = Field(min_length=1)
    """Folder of its notes (jobs/run_guide.py) on the same pairs: its maps, counts and positions."""
    real: str = Field(min_length=1)
    """Folder of its notes on real pairs with masks, all of split test."""
    looked_at: tuple[str, ...] = Field(min_length=1)
    """Sentences about its maps of the real pairs, by somebody who has looked at them."""
    limits: tuple[str, ...] = Field(min_length=1)
    """Sentences about what it cannot do."""
    check_pairs: tuple[int, ...] = (24, 160)
    """The check is stored for the first this many pairs."""

    def preflight(self) -> Iterator[str]:
        for name in ("artifact", "evaluation", "notes", "real", "scenes"):
            yield from missing(getattr(self, name), name)
