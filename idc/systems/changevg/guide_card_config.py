"""Settings of ``jobs/make_guide_card.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from idc.config import ConfigModel, missing


class GuideCardJob(ConfigModel):
    """Put a guide with its figures and their card into a folder, such as that of the weights of the program."""

    artifact: str = Field(min_length=1)
    """Artifact of the guide, calibrated."""
    out: str = Field(min_length=1)
    """Folder for the artifact with its card; replaced if it exists."""
    title: str = Field(min_length=1)
    """First line of the card."""
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
    recipe: tuple[str, ...] = Field(min_length=1)
    """Shell commands that make the weights and their figures again, this one last."""
    trained_on: str | None = Field(None, min_length=1, max_length=200)
    """Training data in words, as in "This model has only seen ...". Default: as in the artifact."""
    scenes: str = Field(min_length=1)
    """YAML of jobs/render.py with the appearance of the check's pairs."""
    seed: int = Field(1_000_003, ge=0)
    """Seed of the check's pairs; must not be that of a training set."""
    check_pairs: tuple[int, ...] = (24, 160)
    """The check is stored for the first this many pairs."""

    def faults(self) -> Iterator[str]:
        if Path(self.out).resolve() == Path(self.artifact).resolve():
            yield f"out: {self.out!r} is the artifact itself; choose another folder"

    def preflight(self) -> Iterator[str]:
        for name in ("artifact", "evaluation", "notes", "real", "scenes"):
            yield from missing(getattr(self, name), name)
