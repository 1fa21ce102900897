"""Settings of a report."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel, missing


class RealSource(ConfigModel):
    """Pairs from elsewhere that the same model captioned."""

    title: str
    """Heading."""
    text: str = ""
    """A few words on what they are."""
    evaluation: str
    """Folder that `jobs/evaluate.py` wrote for them."""
    pairs: str
    """Folder of these pairs."""
    procedures: str | None = None
    """Folder of their procedures."""
    show: int = Field(8, ge=0)
    """Pairs in the gallery."""


class ReportJob(ConfigModel):
    """Write the page of a run."""

    out: str = Field(min_length=1)
    """The HTML file."""
    title: str = "Image difference captioning: a run"
    """Heading of the page."""
    subtitle: str = ""
    """A line under it."""
    evaluations: tuple[str, ...] = Field(min_length=1)
    """Folders that `jobs/evaluate.py` wrote, one for each seed; the first one's captions are shown."""
    pairs: str = Field(min_length=1)
    """Folder of the evaluated pairs."""
    procedures: str | None = None
    """Folder of their procedures, for the filmstrips."""
    tokenizer: str | None = None
    """Folder of the image tokenizer, for reconstructions."""
    imagine: str | None = None
    """A ProCap artefact, for what it imagines between two images (see imagine.py)."""
    runs: dict[str, str] = Field({})
    """Heading -> run folder, for curves, configs and times: `runs.tokenizer=runs/tokenizer`."""
    timings: dict[str, str] = Field({})
    """What took how long, in words, beside what the evaluations and runs say."""
    real: tuple[RealSource, ...] = ()
    """Pairs from elsewhere."""
    show: int = Field(12, ge=0)
    """Held-out pairs in the gallery, evenly from all change types."""
    extremes: int = Field(4, ge=0)
    """Pairs shown as the best and as the worst by CIDEr, each."""
    reconstructions: int = Field(8, ge=0)
    """Images shown with their reconstruction."""
    imagined: int = Field(3, ge=0)
    """Pairs of the gallery shown with what is imagined between them."""

    def preflight(self) -> Iterator[str]:
        named: list[tuple[str, str | None]] = [("evaluations", path) for path in self.evaluations]
        named += [("pairs", self.pairs), ("procedures", self.procedures), ("tokenizer", self.tokenizer)]
        named.append(("imagine", self.imagine))
        named += [(f"runs.{name}", path) for name, path in self.runs.items()]
        for i, source in enumerate(self.real):
            named += [(f"real.{i}.{name}", getattr(source, name)) for name in ("evaluation", "pairs", "procedures")]
        for field, path in named:
            yield from missing(path, field)
