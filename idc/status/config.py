"""Settings of the status."""

from __future__ import annotations

from pydantic import Field

from idc.config import ConfigModel


class StatusJob(ConfigModel):
    """Where to look, and what a core costs."""

    runs: tuple[str, ...] = ("runs",)
    """Folders of runs and sweeps, or single ones."""
    data: tuple[str, ...] = ()
    """Folders of data sets; those among the runs are found, too."""
    done: bool = False
    """Also list what is done."""
    json_output: bool = Field(False, json_schema_extra={"option": "--json"})
    """Print one JSON object (--json)."""
    stalled_after: float = Field(5.0, gt=1)
    """Usual intervals between two log lines (or chunks) without a new one after which work counts as stalled; at least
    a minute."""
    core_hour: float = Field(0.0, ge=0)
    """Price of a core for an hour, in any currency; 0 prints no cost."""
    gpu_hour: float = Field(0.0, ge=0)
    """Price of a GPU for an hour."""
    dashboard: str | None = None
    """Also list the jobs and nodes of a Ray cluster: the URL of its dashboard (http://HEAD:8265). Default:
    RAY_API_SERVER_ADDRESS, if it is set."""
