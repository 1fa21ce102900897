"""Settings of the pages of a run, of several runs, and of robustness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from idc.captioning.sources import missing_artifact
from idc.config import ConfigModel, missing
from idc.data.config import Perturbation
from idc.evaluation.config import EvaluateSection
from idc.util.option_values import DiskPath

Severity = Annotated[int, Field(ge=1, le=5)]


class ReportJob(ConfigModel):
    """Write the HTML page of a run."""

    out: DiskPath = Field(min_length=1)
    """HTML file to write."""
    title: str = "Image difference captioning: a run"
    """Heading of the page."""
    evaluations: tuple[str, ...] = Field(min_length=1)
    """Folders that `jobs/evaluate.py` wrote, one per seed; the captions of the first are shown."""
    compare: dict[str, tuple[str, ...]] = Field({})
    """Name -> evaluations of another captioner on the same pairs, one per seed, shown next to this one's."""
    pairs: str = Field(min_length=1)
    """Folder of the evaluated pairs."""
    procedures: str | None = None
    """Folder of their procedures, for the filmstrips."""

    def preflight(self) -> Iterator[str]:
        named: list[tuple[str, str | None]] = [("evaluations", path) for path in self.evaluations]
        named += [(f"compare.{name}", path) for name, paths in self.compare.items() for path in paths]
        named += [("pairs", self.pairs), ("procedures", self.procedures)]
        for field, path in named:
            yield from missing(path, field)


class RobustnessJob(ConfigModel):
    """Evaluate an artifact on robustness sets and write the table."""

    artifact: str = Field(min_length=1)
    """Artifact of the captioner."""
    pairs: str = Field(min_length=1)
    """Folder of the clean pairs."""
    sets: str = Field(min_length=1)
    """Folder of the robustness sets, each named by its change: `fog-5`, `swap_order`. Existing sets are used as they
    are."""
    out: DiskPath = Field(min_length=1)
    """Folder for the evaluations, `table.md` and `robustness.json`."""
    split: Literal["val", "test"] = "test"
    """The split whose images are corrupted and whose captions are scored."""
    corruptions: dict[Perturbation, tuple[Severity, ...]] = Field({"gaussian_noise": (5,), "fog": (5,)})
    """Image corruption -> its severities, from 1 to 5: on both images, a shift on the after image alone. NAMC's table
    10: Gaussian noise and fog of severity 5. On the command line: corruptions.shift=[1,3,5]; [] leaves one out."""
    change_maps: bool = False
    """Also score the captioner's change maps on every set, and those of the pixel difference; for pairs with masks."""
    trained_baseline: str | None = Field(None, min_length=1)
    """The `out` of the same table for another captioner, shown among the baselines of every row."""
    swap: bool = True
    """Also evaluate on pairs with before and after swapped."""
    seed: int = Field(0, ge=0)
    """Seed of all noise."""
    evaluate: EvaluateSection = EvaluateSection()
    """Metrics, baselines and batch size of the evaluations; this job sets the other fields."""

    def errors(self) -> Iterator[str]:
        for name in ("out", "pairs", "artifact", "predictions", "split", "change_maps", "trained_baseline"):
            if getattr(self.evaluate, name) != EvaluateSection.model_fields[name].default:
                yield f"evaluate.{name}: this job sets it; remove it"

    def preflight(self) -> Iterator[str]:
        yield from missing_artifact(self.artifact, "artifact")
        for name in ("pairs", "trained_baseline"):
            yield from missing(getattr(self, name), name)
