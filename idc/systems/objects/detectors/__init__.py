"""Object detectors behind one interface: images in, boxes with names and scores out."""

from __future__ import annotations

from collections.abc import Sequence

from idc.captioning.objects_config import EMBEDDED, NONE
from idc.config import did_you_mean
from idc.systems.objects.detectors.contract import Detections, Detector
from idc.systems.objects.detectors.embedded import EmbeddedDetector, embedded_identity, embedded_installed

__all__ = ["Detections", "Detector", "detector_identity", "embedded_installed", "load_detector"]


def load_detector(source: str, names: Sequence[str] = ()) -> Detector:
    """Load a detector.

    Args:
        source: as :attr:`idc.captioning.objects_config.ObjectsConfig.detector`, but ``none``.
        names: classes, for a detector that takes them as words; one that does not must know them, and still gives all
            that it knows.

    Raises:
        ValueError: it is not on this machine, damaged, or of a kind that is not supported, or does not know a name.
    """
    if source != EMBEDDED:
        raise ValueError(f"objects.detector: {source} cannot be loaded yet; take {EMBEDDED!r} or {NONE!r}")
    return _knows(EmbeddedDetector(), names, source)


def detector_identity(source: str) -> str | None:
    """What the results of a detector depend on: the hash of its weights; None for ``none``.

    Raises:
        ValueError: as :func:`load_detector`.
    """
    if source == NONE:
        return None
    return embedded_identity() if source == EMBEDDED else source


def _knows(detector: Detector, names: Sequence[str], source: str) -> Detector:
    for name in names:
        if name not in detector.classes:
            raise ValueError(
                f"objects.names: the detector {source} has no class {name!r}{did_you_mean(name, detector.classes)}"
            )
    return detector
