"""Object detectors behind one interface: images in, boxes with names and scores out.

Besides the one of the extra ``objects`` there is nothing to install: any YOLOX network in ONNX is read by OpenCV. Those
of its authors (Megvii, Apache-2.0) are at github.com/Megvii-BaseDetection/YOLOX/releases, tag 0.1.1rc0:
``yolox_nano.onnx`` (4 MB, 416 x 416), ``yolox_tiny.onnx`` (20 MB), ``yolox_s.onnx`` (36 MB, 640 x 640) and larger ones,
all of 80 classes of COCO. Files of tag 0.0.1 want other colours and find little.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from idc.captioning.objects_config import EMBEDDED, NONE
from idc.systems.objects.detectors.contract import Detections, Detector
from idc.systems.objects.detectors.embedded import EmbeddedDetector, embedded_identity, embedded_installed
from idc.systems.objects.detectors.yolox import YoloxDetector, yolox_identity
from idc.training.base import HUB
from idc.util.model_faults import did_you_mean

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
    elif _is_model(source):
        from idc.systems.objects.detectors.hub_detector import HubDetector

        detector = HubDetector(source, names)
    else:
        detector = YoloxDetector(source)
    for name in names:
        if name not in detector.classes:
            raise ValueError(
                f"objects.names: the detector {source} has no class {name!r}{did_you_mean(name, detector.classes)}"
            )
    return detector


def detector_identity(source: str) -> str | None:
    """What the results of a detector depend on: a hash of its weights; None for ``none``. ValueError: it is not on
    this machine or damaged."""
    if source == NONE:
        return None
    if source == EMBEDDED:
        return embedded_identity()
    if _is_model(source):
        from idc.systems.objects.detectors.hub_detector import hub_identity

        return hub_identity(source)
    return yolox_identity(source)


def _is_model(source: str) -> bool:
    """Whether a source is a model of transformers; else it is a file, or ValueError."""
    path = Path(source).expanduser()
    if source.startswith(HUB) or path.is_dir():
        return True
    if path.is_file() or source.endswith(".onnx"):
        return False
    raise ValueError(
        f"objects.detector: {source!r} is not {EMBEDDED}, {NONE}, an ONNX file, the folder of a model or "
        f"{HUB}ORG/NAME{did_you_mean(source, (EMBEDDED, NONE))}"
    )
