"""The command of a training: its settings and the cluster's, the parse, one call. Loads neither Ray nor torch."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import create_model

from cluster.config import OnCluster
from idc.config import ConfigModel, cli
from idc.data.manifest import manifests_read_once

_EVERY_TRAINING = """The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the
input of evaluation, captioning and serving, or of the next stage.
"""
"""What the help of every training ends with."""

JobT = TypeVar("JobT", bound=ConfigModel)


def with_cluster(job: type[JobT]) -> type[JobT]:
    """The settings of a training, and ``cluster``, where to run it."""
    bases: tuple[type[Any], ...] = (OnCluster, job)
    return create_model("Job", __base__=bases, __doc__=job.__doc__)


def train_command(job: type[ConfigModel], entry: str, doc: str | None, build: tuple[str, str] | None = None) -> None:
    """Parse the command line and train.

    Args:
        job: of :func:`with_cluster`.
        entry, build: as of :func:`cluster.job.train_job`.
        doc: of the command.
    """
    with manifests_read_once():
        args = cli(job, f"{doc}\n{_EVERY_TRAINING}")
        from cluster.job import train_job

        train_job(entry, args, build)
