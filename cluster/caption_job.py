"""Settings of ``jobs/caption.py`` for a table and for a scene: what is captioned, and where. Does not import Ray."""

from __future__ import annotations

from cluster.config import OnCluster
from idc.captioning.table import CaptionJob
from idc.geo.config import SceneJob


class CaptionTableJob(OnCluster, CaptionJob):
    """Caption the pairs of an input, and where to do it."""


class CaptionSceneJob(OnCluster, SceneJob):
    """Caption a pair of GeoTIFFs, and where to do it."""
