"""Settings of ``jobs/register.py`` and ``jobs/promote.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.training.config import unusable_tracking


class RegisterJob(ConfigModel):
    """Register a captioner, with its evaluation, in an MLflow registry."""

    artifact: str = Field(min_length=1)
    """Artifact of the captioner."""
    evaluation: str | None = None
    """Folder of its evaluation. Without one it is registered, but cannot be promoted until one is added."""
    name: str = Field("captioner", pattern=r"^[^/:@']+$")
    """Name of the registered model."""
    tracking_uri: str | None = None
    """MLflow tracking URI. Default: MLFLOW_TRACKING_URI, else that of the artifact's training run."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.artifact, "artifact")
        yield from missing(self.evaluation, "evaluation")
        yield from unusable_tracking(self.tracking_uri, "tracking_uri", make=True)


class PromoteJob(ConfigModel):
    """Move the alias to a candidate that is not worse than the champion."""

    tracking_uri: str | None = None
    """MLflow tracking URI. Default: MLFLOW_TRACKING_URI."""
    name: str = Field("captioner", pattern=r"^[^/:@']+$")
    """Name of the registered model."""
    alias: str = Field("champion", pattern=r"^[^/:@']+$")
    """Registry alias to move."""
    version: int | None = Field(None, ge=1)
    """Candidate version. Default: the newest, unless it was rolled back."""
    metric: Literal["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "S_m*"] = "CIDEr"
    """Metric to compare by."""
    margin: float = Field(0.05, ge=0, lt=1)
    """Largest acceptable loss, as a share of the champion's score. 0.05: the lower end of the 95 % interval of the
    difference must be at least -5 % of it. 0: the candidate must be shown to lose nothing."""
    force: bool = False
    """Promote regardless of the comparison, or without one."""
    rollback: bool = False
    """Move the alias back to the previous champion."""
    status: bool = False
    """Print versions, scores and history; change nothing."""
    dry_run: bool = False
    """Print what would be done; change nothing."""

    def errors(self) -> Iterator[str]:
        if self.rollback and (self.version is not None or self.force):
            yield "rollback: returns to the previous champion without a comparison; leave out version and force"
        if self.status and (self.rollback or self.force or self.version is not None):
            yield "status: changes nothing; leave out version, force and rollback"

    def preflight(self) -> Iterator[str]:
        from cluster.registry import uri_of  # slow to import

        yield from unusable_tracking(self.tracking_uri, "tracking_uri")
        try:
            uri_of(self.tracking_uri)
        except ValueError as error:
            yield str(error)
