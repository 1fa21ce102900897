"""Settings of ``jobs/caption.py`` for a table and for a scene: what is captioned, and where. Does not import Ray."""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.captioning.table import CaptionJob
from idc.geo.config import SceneJob


class CaptionTableJob(CaptionJob):
    """Caption the pairs of an input, and where to do it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


class CaptionSceneJob(SceneJob):
    """Caption a pair of GeoTIFFs, and where to do it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""
