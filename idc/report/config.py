"""Settings of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.config import Corruption
from idc.evaluation.config import EvaluateSection


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
    """A ProCap artifact, for what it imagines between two images (see imagine.py)."""
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


class RobustnessJob(ConfigModel):
    """Evaluate one artifact on robustness sets, train beside it on noised captions, and write the table's page."""

    artifact: str = Field(min_length=1)
    """Artifact of the captioner."""
    pairs: str = Field(min_length=1)
    """Folder of the clean pairs."""
    sets: str = Field(min_length=1)
    """Folder for the robustness sets, each named by what was done: `fog-5`, `swap_order`, `words-20`. Those that are
    there are taken as they are."""
    out: str = Field(min_length=1)
    """Folder for the evaluations, `report.html`, `table.md` and `robustness.json`."""
    split: Literal["val", "test"] = "test"
    """The split whose images are corrupted and whose captions are scored."""
    corruptions: tuple[Corruption, ...] = ("gaussian_noise", "fog")
    """Image corruptions, on both images. NAMC's table 10: Gaussian noise and fog."""
    severity: int = Field(5, ge=1, le=5)
    """Their severity. NAMC: 5."""
    swap: bool = True
    """Swap before and after, too."""
    sweep: str | None = None
    """YAML of a sweep whose rows train on noised captions, for the table's word rows; they name the folders
    `words-20` and so on in `sets` as their `procedures`. Nothing: no word rows."""
    procedures: str | None = None
    """Folder of clean procedures whose captions are noised for the sweep."""
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    """Shares of words replaced. NAMC: 20, 40, 60 and 80 %."""
    examples: int = Field(3, ge=0)
    """Pairs shown under every condition."""
    seed: int = Field(0, ge=0)
    """Seed of all noise."""
    evaluate: EvaluateSection = EvaluateSection()
    """How is scored: metrics, baselines, batch size. The rest of it this job sets."""

    def faults(self) -> Iterator[str]:
        if (self.sweep is None) != (self.procedures is None):
            yield "sweep, procedures: the word rows need both"
        for name in ("out", "pairs", "artifact", "predictions", "split"):
            if name in self.evaluate.model_fields_set:
                yield f"evaluate.{name}: this job sets it"
        for share in self.shares:
            if not 0 < share <= 1:
                yield f"shares: {share} is not a share above 0 and at most 1"

    def preflight(self) -> Iterator[str]:
        for name in ("artifact", "pairs", "sweep", "procedures"):
            yield from missing(getattr(self, name), name)
