"""Object detectors behind one interface: images in, boxes with names and scores out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from idc.captioning.objects_config import EMBEDDED, NONE
from idc.config import did_you_mean
from idc.systems import HUB
from idc.systems.objects.detectors.contract import Detections, Detector
from idc.systems.objects.detectors.embedded import EmbeddedDetector, embedded_identity, embedded_installed

__all__ = ["Detections", "Detector", "detector_identity", "embedded_installed", "load_detector"]


def load_detector(source: str, names: Sequence[str] = ()) -> Detector:
    """The detector of a source, loaded once per process.

    Args:
        source: as :attr:`idc.captioning.objects_config.ObjectsConfig.detector`, but ``none``.
        names: classes, for a detector that takes them as words; one that does not must know them, and still gives all
            that it knows.

    Raises:
        ValueError: it is not on this machine, damaged, or of a kind that is not supported, or does not know a name.
    """
    return _loaded(source, tuple(names), detector_identity(source))


@lru_cache(maxsize=4)
def _loaded(source: str, names: tuple[str, ...], identity: str | None) -> Detector:
    """``identity`` is of the files as they are now."""
    detector: Detector
    if source == EMBEDDED:
        detector = EmbeddedDetector()
    else:
        from idc.systems.objects.detectors.hub_detector import HubDetector

        detector = HubDetector(source, names)
    for name in names:
        if name not in detector.classes:
            raise ValueError(
                f"objects.names: the detector {source} has no class {name!r}{did_you_mean(name, detector.classes)}"
            )
    return detector


def detector_identity(source: str) -> str | None:
    """What the results of a detector depend on: a hash of its weights; None for ``none``.

    Raises:
        ValueError: it is not on this machine or damaged.
    """
    if source == NONE:
        return None
    if source == EMBEDDED:
        return embedded_identity()
    if not source.startswith(HUB) and not Path(source).expanduser().is_dir():
        raise ValueError(
            f"objects.detector: {source!r} is not {EMBEDDED}, {NONE}, the folder of a model or {HUB}ORG/NAME"
            f"{did_you_mean(source, (EMBEDDED, NONE))}"
        )
    from idc.systems.objects.detectors.hub_detector import hub_identity

    return hub_identity(source)
