"""Config of a job's Ray cluster. Does not import Ray: a job's config is checked before Ray is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.util.loopback import RAY_FOLDER_CHARACTERS


class ClusterConfig(ConfigModel):
    """The Ray cluster. Default: the one the job was submitted to (RAY_ADDRESS), else a local one for this run."""

    address: str | None = None
    """A running cluster to join ("auto" or host:port). Default: RAY_ADDRESS, which Ray sets inside its own jobs."""
    num_cpus: int | None = Field(default=None, ge=1)
    """CPUs of a local Ray. Default: the usable cores, but at least 4, because Ray's helper actors need some."""
    num_gpus: int | None = Field(default=None, ge=0)
    """GPUs of a local Ray. Default: all that are found."""
    object_store_mb: int | None = Field(default=None, ge=80)
    """Shared memory of a local Ray in MiB. Default: Ray's choice (30 % of the memory)."""
    auth: Literal["token", "disabled"] = "token"
    """Token authentication of a local Ray, unless RAY_AUTH_MODE is set. If there is no token, one is created for
    this run only; nothing is written to the home folder."""
    temp_dir: str | None = None
    """Folder for the session files of a local Ray; short, because socket paths have at most 107 characters. Default:
    Ray's default (RAY_TMPDIR, TMPDIR); if that is too long, a new folder in /tmp."""
    check: bool = True
    """Check a cluster that is joined before the job starts: CPUs and GPUs, inputs and outputs. Takes seconds."""
    grows: bool = False
    """Whether the cluster adds nodes on demand (an autoscaler): then CPUs and GPUs that are not there yet are no
    fault."""
    no_progress_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without a written part after which a data job fails. Leave time for autoscaling."""

    def errors(self) -> Iterator[str]:
        if self.address is not None and self.address.startswith(("http://", "https://")):
            yield f"address: {self.address!r} is a Jobs API address; submit with `ray job submit --address` instead"
        if self.temp_dir is not None and len(self.temp_dir) > RAY_FOLDER_CHARACTERS:
            yield (
                f"temp_dir: {self.temp_dir!r} has {len(self.temp_dir)} characters; at most {RAY_FOLDER_CHARACTERS} "
                "are possible"
            )


class OnCluster(ConfigModel):
    """What a job on Ray has besides its own settings."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""
