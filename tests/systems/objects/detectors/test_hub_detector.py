"""Detectors of transformers, small and random: boxes and names as its own post-processing has them, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForObjectDetection,
    AutoModelForZeroShotObjectDetection,
    AutoProcessor,
)

from idc.systems.objects.detectors import detector_identity, load_detector
from tests.systems.objects.detectors.tiny_detectors import CLOSED, LABELS, WITH_WORDS, detector_folder
from tests.vlm.hub import COMMIT, point_to, serving_hub
from tests.vlm.models import tiny_folder

WORDS = ("zebra", "traffic light", "drum kit")
COCO = {"motorbike": "motorcycle", "tvmonitor": "tv"}


def image(height: int = 50, width: int = 120) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def own_results(kind: str, pixels: np.ndarray, low: float) -> tuple[list[tuple[str, float, list[float]]], Any]:
    """(name, score, box) of transformers' own model, processor and post-processing, and the model's outputs."""
    folder, picture, size = detector_folder(kind), Image.fromarray(pixels), [pixels.shape[:2]]
    with torch.no_grad():
        if kind in CLOSED:
            processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
            outputs = AutoModelForObjectDetection.from_pretrained(folder).eval()(
                **processor(picture, return_tensors="pt")
            )
            [result] = processor.post_process_object_detection(outputs, threshold=low, target_sizes=size)
            names = [LABELS[int(number)] for number in result["labels"]]
        else:
            processor = AutoProcessor.from_pretrained(folder)
            texts = list(WORDS) if kind == "grounding-dino" else [f"a photo of a {word}" for word in WORDS]
            inputs = processor(images=picture, text=[texts], return_tensors="pt")
            outputs = AutoModelForZeroShotObjectDetection.from_pretrained(folder).eval()(**inputs)
            [result] = processor.post_process_grounded_object_detection(
                outputs, threshold=low, target_sizes=size, text_labels=[list(WORDS)]
            )
            names = result["text_labels"]
            if kind == "grounding-dino":  # its phrases are of several names: that of the best token
                kept = outputs.logits[0][outputs.logits[0].sigmoid().max(-1).values > low]
                best = [processor.decode([inputs["input_ids"][0][int(row.argmax())]]) for row in kept]
                names = [next((name for name in WORDS if word in name.split()), "N/A") for word in best]
    boxes, scores = result["boxes"].tolist(), result["scores"].tolist()
    return sorted(zip(names, scores, boxes, strict=True), key=lambda item: -item[1]), outputs


@pytest.mark.parametrize("kind", [*CLOSED, *WITH_WORDS])
@pytest.mark.parametrize("shape", [(50, 120), (130, 60)])
def test_boxes_and_names_are_those_of_transformers(kind: str, shape: tuple[int, int]) -> None:
    detector = load_detector(str(detector_folder(kind)), WORDS if kind in WITH_WORDS else ())
    pixels = image(*shape)
    _, detections = detector.detect([image(70, 70), pixels])
    expected, outputs = own_results(kind, pixels, detector.low)
    limits = np.array([shape[1], shape[0]] * 2, np.float32)
    clipped = [(name, score, np.clip(box, 0, limits)) for name, score, box in expected if name != "N/A"]
    clipped = [item for item in clipped if (item[2][2:] > item[2][:2]).all()]
    assert len(detections.names) >= 5
    np.testing.assert_allclose(detections.scores, [score for _, score, _ in clipped], atol=1e-5)
    np.testing.assert_allclose(detections.boxes, [box for *_, box in clipped], atol=1e-2)
    assert detections.names == tuple(COCO.get(name, name) for name, *_ in clipped)
    scale = np.array([max(shape)] * 4 if kind == "owlv2" else limits)  # OWLv2 pads the image to a square
    centres = outputs.pred_boxes[0].numpy().astype(np.float64)
    corners = np.hstack([centres[:, :2] - centres[:, 2:] / 2, centres[:, :2] + centres[:, 2:] / 2]) * scale
    for box in detections.boxes:
        assert np.abs(corners.clip(0, limits) - box).max(axis=1).min() < 0.01


@pytest.mark.parametrize("kind", [*CLOSED, *WITH_WORDS])
def test_images_together_are_detected_as_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = load_detector(str(detector_folder(kind)), WORDS if kind in WITH_WORDS else ())
    images = [image(seed, 2 * seed) for seed in (40, 60, 80)]  # of one shape once resized: no padding
    alone = detector.detect(images)
    together = detector._batch(images)  # type: ignore[attr-defined]  # as on a GPU
    for first, second in zip(alone, together, strict=True):
        assert first.names == second.names
        np.testing.assert_allclose(first.boxes, second.boxes, atol=1e-2)


def test_classes_have_the_names_of_coco() -> None:
    detector = load_detector(str(detector_folder("rt_detr")), ["tv", "motorcycle"])
    assert detector.classes == ("person", "motorcycle", "tv", "zebra")
    with pytest.raises(ValueError, match=r"^objects\.names: .* has no class 'zbra'; did you mean 'zebra'\?$"):
        load_detector(str(detector_folder("rt_detr")), ["zbra"])


def test_words_are_classes_in_the_order_of_the_text() -> None:
    """Another order of the words renames no box."""

    def by_box(names: tuple[str, ...]) -> dict[tuple[float, ...], str]:
        [detections] = load_detector(str(detector_folder("owlv2")), names).detect([image()])
        return {tuple(box.round(2)): name for box, name in zip(detections.boxes, detections.names, strict=True)}

    assert by_box(WORDS) == by_box(WORDS[::-1])
    assert len(set(by_box(WORDS).values())) > 1


def copied(kind: str, folder: Path, **config: Any) -> Path:
    shutil.copytree(detector_folder(kind), folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))
    return folder


def test_a_folder_is_identified_by_its_files(tmp_path: Path) -> None:
    folders = [copied("owlv2", tmp_path / "a"), copied("owlv2", tmp_path / "b"), copied("owlv2", tmp_path / "c")]
    weights = folders[2] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    first, copy, other = (detector_identity(str(folder)) for folder in folders)
    assert first == copy != other


def test_a_model_of_the_hub_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving_hub(detector_folder("rt_detr")) as (endpoint, asked):
        use_hub(monkeypatch, tmp_path, endpoint)
        assert detector_identity("hf:org/tiny") == COMMIT
        count = len(asked)
        [detections] = load_detector("hf:org/tiny").detect([image()])
        assert len(asked) == count
    expected = load_detector(str(detector_folder("rt_detr"))).detect([image()])[0]
    assert detections.names == expected.names


def use_hub(monkeypatch: pytest.MonkeyPatch, cache: Path, endpoint: str) -> None:
    from huggingface_hub import constants

    point_to(endpoint, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def test_a_model_of_another_task_is_refused_before_its_weights_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving_hub(tiny_folder("qwen3_vl")) as (endpoint, asked):
        use_hub(monkeypatch, tmp_path, endpoint)
        with pytest.raises(
            ValueError, match=r"^objects\.detector: hf:org/tiny is a qwen3_vl, .* not an object detector"
        ):
            load_detector("hf:org/tiny")
        assert not any("safetensors" in path for path in asked)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("hf:org/other", r"the hub has no model org/other"),
        ("hf:org/tiny@v2", r"the hub has no revision 'v2' of org/tiny"),
        ("hf:tiny", r"'hf:tiny' does not have the form hf:ORG/NAME"),
    ],
)
def test_what_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, reason: str) -> None:
    with serving_hub(detector_folder("rt_detr")) as (endpoint, _):
        use_hub(monkeypatch, tmp_path, endpoint)
        for use in (load_detector, detector_identity):
            with pytest.raises(ValueError, match=rf"^objects\.detector: {reason}"):
                use(source)


def test_a_hub_that_cannot_be_reached_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:9")
    with pytest.raises(
        ValueError,
        match=r"^objects\.detector: the detector org/tiny is not on this machine: .*`hf download "
        r"org/tiny`, or give its folder with objects\.detector=/path \(asking the hub failed",
    ) as error:
        load_detector("hf:org/tiny")  # fmt: skip
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remove": "config.json"}, "no transformers model: it has no config.json"),
        ({"remove": "model.safetensors"}, "has no weights in safetensors"),
        ({"remove": "preprocessor_config.json"}, "no usable processor"),
        ({"model_type": "bert"}, "is a bert, which is not an object detector"),
        ({"auto_map": {"AutoModel": "code.Model"}}, r"names code \(auto_map\), which this program never runs"),
        ({"id2label": {str(number): f"LABEL_{number}" for number in LABELS}}, "does not name its classes"),
        ({"decoder_layers": 3}, "is incomplete: [0-9]+ weights are missing"),
    ],
)
def test_folders_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    folder = copied("rt_detr", tmp_path / "model", **{key: change[key] for key in change if key != "remove"})
    if "remove" in change:
        (folder / change["remove"]).unlink()
    with pytest.raises(ValueError, match=rf"^objects\.detector: .*{reason}") as error:
        load_detector(str(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "what"), [("grounding-dino", "the 5 names have"), ("owlv2", "'a photo of a zebra zebra")]
)
def test_words_that_the_model_would_cut_off_are_refused(kind: str, what: str) -> None:
    names = ("zebra", "traffic light", "drum kit", "light drum", "zebra zebra zebra zebra")
    with pytest.raises(ValueError, match=rf"^objects\.names: {what}.* tokens, the detector reads [0-9]+"):
        load_detector(str(detector_folder(kind)), names)
