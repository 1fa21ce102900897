"""Settings of ``jobs/caption.py`` for a table, two folders and a scene: what is captioned, where. Imports no Ray."""

from __future__ import annotations

from cluster.config import OnCluster
from idc.captioning.folder_pairs import FoldersJob
from idc.captioning.table import CaptionJob
from idc.geo.config import SceneJob


class CaptionTableJob(OnCluster, CaptionJob):
    """Caption the pairs of an input, and where to do it."""


class CaptionFoldersJob(OnCluster, FoldersJob):
    """Caption the pairs of two folders, and where to do it."""


class CaptionSceneJob(OnCluster, SceneJob):
    """Caption a pair of GeoTIFFs, and where to do it."""
