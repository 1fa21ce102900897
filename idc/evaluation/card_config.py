"""Settings of ``jobs/make_card.py``, and those of every card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from idc.config import ConfigModel, missing


class CardSettings(ConfigModel):
    """Settings of every card."""

    artifact: str = Field(min_length=1)
    """Artifact of the captioner, calibrated."""
    out: str = Field(min_length=1)
    """Folder for the artifact with its card; replaced if it exists."""
    title: str = Field(min_length=1)
    """First line of the card."""
    limits: tuple[str, ...] = ()
    """Sentences about what the captioner cannot do, for the card."""
    recipe: tuple[str, ...] = Field(min_length=1)
    """Shell commands that make the weights and their figures again, this one last."""
    trained_on: str | None = Field(None, min_length=1, max_length=200)
    """Training data in words, as in "This model has only seen ...". Default: as in the artifact."""
    scenes: str = Field(min_length=1)
    """YAML of jobs/render.py with the appearance of what the check renders."""
    seed: int = Field(1_000_003, ge=0)
    """Seed of what the check renders; must not be that of a training set."""

    def faults(self) -> Iterator[str]:
        if Path(self.out).resolve() == Path(self.artifact).resolve():
            yield f"out: {self.out!r} is the artifact itself; choose another folder"


class CardJob(CardSettings):
    """Put an artifact with its figures and their card into a folder, such as that of the weights of the program."""

    evaluations: dict[str, str] = Field(min_length=1)
    """Name of the pairs, for the card -> folder of this artifact's evaluation (jobs/evaluate.py) on these pairs, which
    must be rendered."""
    robustness: str | None = None
    """Folder `out` of jobs/robustness.py for this artifact, with one evaluation per corruption and the clean one."""
    check_scenes: tuple[int, ...] = (6, 40)
    """The check is stored for the first this many scenes; each gives two pairs."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.artifact, "artifact")
        yield from missing(self.robustness, "robustness")
        yield from missing(self.scenes, "scenes")
        for name, folder in self.evaluations.items():
            yield from missing(folder, f"evaluations.{name}")
