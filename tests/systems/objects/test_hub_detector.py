"""Detectors of transformers, small and random: boxes and names as its own post-processing has them, and refusals."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoImageProcessor,
    AutoModelForObjectDetection,
    AutoModelForZeroShotObjectDetection,
    AutoProcessor,
    BertConfig,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessorPil,
    GroundingDinoProcessor,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2ImageProcessorPil,
    Owlv2Processor,
    PreTrainedTokenizerFast,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrImageProcessorPil,
    RTDetrResNetConfig,
    SwinConfig,
)  # fmt: skip

from idc.systems.objects.detectors import detector_identity, load_detector
from tests.vlm.hub import COMMIT, point_to, serving_hub
from tests.vlm.models import tiny_folder

WORDS = ("zebra", "traffic light", "drum kit")
COCO = {"motorbike": "motorcycle", "tvmonitor": "tv"}
LABELS = {0: "person", 1: "motorbike", 2: "N/A", 3: "tvmonitor", 4: "zebra"}
CLOSED, WITH_WORDS = ("rt_detr",), ("grounding-dino", "owlv2")
_VOCABULARY = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", ".", "a", "photo", "of", "zebra", "traffic", "light", "drum", "kit")


@cache
def detector_folder(kind: str) -> Path:
    """A detector whose scores and boxes depend much on the image; its classes are :data:`LABELS` or words."""
    torch.manual_seed(0)
    model, processor = _MAKERS[kind]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "class_embed" in name or "class_labels_classifier" in name or "score_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
                if name == "class_labels_classifier.bias":
                    parameter[[2, 5]] -= 5.0  # not a class, not an object
            elif "bbox_embed" in name or "bbox_predictor" in name or "box_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{kind}-"))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _rt_detr() -> tuple[Any, Any]:
    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[16, 24, 32], encoder_hidden_dim=32, encoder_ffn_dim=32,
        encoder_attention_heads=2, d_model=32, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=32, decoder_layers=2,
        decoder_attention_heads=2, num_queries=20, num_denoising=0, anchor_image_size=None, id2label=LABELS,
    )  # fmt: skip
    return RTDetrForObjectDetection(config), RTDetrImageProcessorPil(size={"height": 64, "width": 64})


def _tokenizer(limit: int) -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        model_max_length=limit, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def _grounding_dino() -> tuple[Any, Any]:
    backbone = SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    text = BertConfig(
        vocab_size=len(_VOCABULARY), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    config = GroundingDinoConfig(
        backbone_config=backbone, text_config=text, d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, num_queries=20, num_feature_levels=4,
        max_text_len=12, disable_custom_kernels=True,
    )  # fmt: skip
    images = GroundingDinoImageProcessorPil(size={"shortest_edge": 96, "longest_edge": 192})
    return GroundingDinoForObjectDetection(config), GroundingDinoProcessor(images, _tokenizer(12))


def _owlv2() -> tuple[Any, Any]:
    text = {
        "vocab_size": len(_VOCABULARY), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64,
        "patch_size": 16,
    }  # fmt: skip
    config = Owlv2Config(text_config=text, vision_config=vision, projection_dim=32)
    images = Owlv2ImageProcessorPil(size={"height": 64, "width": 64})
    return Owlv2ForObjectDetection(config), Owlv2Processor(images, _tokenizer(8))


_MAKERS = {
    "rt_detr": _rt_detr, "grounding-dino": _grounding_dino, "owlv2": _owlv2
}  # fmt: skip


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
    if kind != "grounding-dino":  # one shape once resized, as on a GPU: no padding
        assert detector._batch([image(70, 70), pixels])[1].names == detections.names  # type: ignore[attr-defined]
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


def copied(kind: str, folder: Path, **config: Any) -> Path:
    shutil.copytree(detector_folder(kind), folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remove": "config.json"}, "no transformers model: it has no config.json"),
        ({"remove": "model.safetensors"}, "has no weights in safetensors"),
        ({"remove": "preprocessor_config.json"}, "no usable processor"),
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


def test_words_that_the_model_would_cut_off_are_refused() -> None:
    names = ("zebra", "traffic light", "drum kit", "light drum", "zebra zebra zebra zebra")
    with pytest.raises(ValueError, match=r"^objects\.names: 'a photo of a zebra zebra.* tokens, the detector reads"):
        load_detector(str(detector_folder("owlv2")), names)


def test_a_model_of_the_hub_is_downloaded_once_and_one_of_another_task_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with serving_hub(detector_folder("rt_detr")) as (endpoint, asked):
        point_to(endpoint, monkeypatch)
        assert detector_identity("hf:org/tiny") == COMMIT
        count = len(asked)
        [detections] = load_detector("hf:org/tiny").detect([image()])
        assert len(asked) == count
        with pytest.raises(ValueError, match=r"^objects\.detector: the hub has no model org/other"):
            load_detector("hf:org/other")
    detector = load_detector(str(detector_folder("rt_detr")), ["tv", "motorcycle"])
    assert detector.classes == ("person", "motorcycle", "tv", "zebra"), "as COCO names them"
    assert detector.detect([image()])[0].names == detections.names
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "other"))
    with serving_hub(tiny_folder("qwen3_vl")) as (endpoint, asked):
        point_to(endpoint, monkeypatch)
        with pytest.raises(ValueError, match=r"^objects\.detector: hf:org/tiny is a qwen3_vl, .* not an object"):
            load_detector("hf:org/tiny")
        assert not any("safetensors" in path for path in asked)
