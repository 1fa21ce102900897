"""Settings of ``jobs/caption.py`` for a table: what is captioned, and where. Does not import Ray."""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.captioning.table import CaptionJob


class CaptionTableJob(CaptionJob):
    """Caption the pairs of an input, and where to do it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""
