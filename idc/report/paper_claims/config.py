"""Settings of the page of what papers claim, tested small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel

ClaimMetric = Literal["right_object", "right_type", "difference_f1", "CIDEr"]
"""Scores that are means over the pairs, as the metrics of a sweep's columns (:mod:`idc.sweep.config`)."""
METRIC_NAMES: dict[ClaimMetric, str] = {
    "right_object": "right object",
    "right_type": "right type",
    "difference_f1": "difference F1",
    "CIDEr": "CIDEr",
}
"""In words."""

SEED_MARK = "{seed}"
"""In the path of an evaluation: the seed, a number."""


class PaperClaim(ConfigModel):
    """A claim of a paper, and the two settings that test it: they differ in what is claimed alone. They are rows of a
    sweep, or evaluations of trainings that were started one by one."""

    claim: str = Field(min_length=1)
    """The claim in a sentence."""
    paper: str = Field(min_length=1)
    """Paper, and where in it; its own numbers, if it has any."""
    system: str = Field(min_length=1)
    """System of the treatment."""
    sweep: str | None = Field(None, min_length=1)
    """Name of the sweep; empty: `control` and `treatment` are folders of evaluations."""
    control: str = Field(min_length=1)
    """Row without what is claimed to help, with its group in front: `several changes, SFT`; or the folder of its
    evaluations: `runs/without-{seed}/evaluation`."""
    treatment: str = Field(min_length=1)
    """Row, or folder, with it."""
    least: dict[ClaimMetric, float] = Field(min_length=1)
    """Metric -> smallest effect of interest, in the unit of the tables (times 100), of higher for the treatment."""
    untrained: str | None = Field(None, min_length=1)
    """Why a row is not trained here, shown if it is not. Default: "not trained yet"."""

    def faults(self) -> Iterator[str]:
        if self.control == self.treatment:
            yield f"treatment: {self.treatment!r} is the control too"
        for name, folder in (("control", self.control), ("treatment", self.treatment)):
            if self.sweep is None and folder.count(SEED_MARK) != 1:
                yield f"{name}: {folder!r} must have {SEED_MARK} in it once, as no sweep is given"
        for metric, least in self.least.items():
            if not least > 0:
                yield f"least.{metric}: {least:g} must be above 0"


class ClaimsJob(ConfigModel):
    """Test claims of papers by what sweeps have trained, and write a page of the verdicts."""

    claims: tuple[PaperClaim, ...] = Field(min_length=1)
    """The claims."""
    sweeps: tuple[str, ...] = Field(("runs/sweeps",), min_length=1)
    """Folders of sweeps (`runs` of jobs/sweep.py). A sweep is taken from the first that has both rows of a claim."""
    planned: dict[ClaimMetric, float] = Field({"CIDEr": 2.0, "right_object": 3.0})
    """Metric -> the effect for which the page computes how many seeds and pairs it takes to be seen."""
    seeds: tuple[int, ...] = Field((2, 3, 5, 10), min_length=1)
    """Numbers of seeds of that calculation."""
    out: str = Field("runs/claims", min_length=1)
    """Folder for `claims.html`, `claims.svg`, `claims.md` and `claims.json`."""

    def faults(self) -> Iterator[str]:
        if few := [seeds for seeds in self.seeds if seeds < 2]:
            yield f"seeds: {few[0]} is too few; a spread over seeds takes 2"
