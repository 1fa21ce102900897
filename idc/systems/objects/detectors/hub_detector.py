"""Object detectors of the Hugging Face hub, of transformers' own classes: RT-DETR, D-FINE, DETR and their kin, and with
classes as words Grounding DINO, OWLv2 and theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForObjectDetection,
    AutoModelForZeroShotObjectDetection,
    AutoProcessor,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
    MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES,
)

from idc.captioning.objects_config import COCO_NAMES
from idc.systems.objects.detectors.contract import Detections, detections_of
from idc.training.base import HUB, BaseName, full_hash, hub_id, locate_base
from idc.vlm.base import load_transformers_model, model_type, refuse_code

_AS_IN_COCO = {
    "motorbike": "motorcycle", "aeroplane": "airplane", "sofa": "couch", "pottedplant": "potted plant",
    "diningtable": "dining table", "tvmonitor": "tv", "hair dryer": "hair drier",
}  # fmt: skip
"""Names that RT-DETR and others give to classes of COCO."""
_NO_CLASS = re.compile(r"N/A|LABEL_\d+", re.IGNORECASE)
"""Numbers of COCO that no class has, and what transformers calls a class without a name."""
_THRESHOLDS = {
    "detr": (0.5, 0.9), "conditional_detr": (0.3, 0.5), "yolos": (0.5, 0.9), "table-transformer": (0.5, 0.9),
    "grounding-dino": (0.25, 0.4), "mm-grounding-dino": (0.25, 0.4), "owlvit": (0.1, 0.25), "owlv2": (0.1, 0.25),
    "omdet-turbo": (0.2, 0.3),
}  # fmt: skip
"""Low and high of the kinds of models whose scores are of another scale: the default and the example of their pages in
transformers' documentation. A softmax (DETR, YOLOS) is nearly always sure; words (OWLv2) hardly ever."""
_USUAL = (0.3, 0.5)
"""Of all others: a sigmoid a class, trained with focal loss; 0.5 is the default of their post-processing."""
_TOGETHER = 8
"""Images of a batch on a GPU; on a CPU a batch is not quicker."""


class HubDetector:
    """A detector of transformers; on a GPU if this process has one.

    Args:
        source: ``hf:ORG/NAME[@REVISION]``, or the folder of a model.
        names: classes as words, for a model that takes them so; default: those of COCO.

    Raises:
        ValueError: it is not here and cannot be had, is incomplete, or is not a detector.
    """

    def __init__(self, source: str, names: Sequence[str] = ()) -> None:
        folder = _located(source)
        kind = _detector_type(folder, source)
        self.low, self.high = _THRESHOLDS.get(kind, _USUAL)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        takes_words = kind in MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES
        auto: Any = AutoModelForZeroShotObjectDetection if takes_words else AutoModelForObjectDetection
        try:
            refuse_code(folder)
            self._processor = _processor(folder, takes_words)
            self._model = load_transformers_model(auto, folder, dtype=torch.float32).to(self._device)
        except ValueError as error:
            raise ValueError(f"objects.detector: {error}") from None
        self._texts: list[str] | None = None
        if takes_words:
            self.classes = tuple(names) or COCO_NAMES
            self._joined = "grounding" in kind
            self._texts = _texts(self.classes, self._joined, self._processor, self._model.config)
        else:
            self._labels = {
                number: _AS_IN_COCO.get(label, label)
                for number, label in self._model.config.id2label.items()
                if not _NO_CLASS.fullmatch(label)
            }
            self.classes = tuple(dict.fromkeys(self._labels.values()))
            if not self.classes:
                raise ValueError(f"objects.detector: {source} does not name its classes (id2label of its config.json)")

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        """As :meth:`~idc.systems.objects.detectors.contract.Detector.detect`."""
        step = _TOGETHER if self._device.type == "cuda" else 1
        return [
            detections
            for start in range(0, len(images), step)
            for detections in self._batch(images[start : start + step])
        ]

    def _batch(self, images: Sequence[np.ndarray]) -> list[Detections]:
        pictures = [Image.fromarray(image) for image in images]
        words = {} if self._texts is None else {"text": [self._texts] * len(images)}
        inputs = self._processor(images=pictures, return_tensors="pt", **words).to(self._device)
        with torch.inference_mode():
            outputs = self._model(**inputs)
        options: dict[str, Any] = {"threshold": self.low, "target_sizes": [image.shape[:2] for image in images]}
        if self._texts is None:
            results = self._processor.post_process_object_detection(outputs, **options)
            named = [[self._labels.get(int(label)) for label in result["labels"]] for result in results]
        else:
            options["text_labels"] = [list(self.classes)] * len(images)
            results = self._processor.post_process_grounded_object_detection(outputs, **options)
            named = [result["text_labels"] for result in results]
            if self._joined:
                # Phrases are what tokens pass a threshold, of one class or of several: the best token decides instead.
                tokens = _class_of_tokens(inputs["input_ids"][0].tolist(), self._processor.tokenizer, self.classes)
                named = [
                    [tokens[position] for position in logits.argmax(-1)[logits.sigmoid().amax(-1) > self.low].tolist()]
                    for logits in outputs.logits
                ]
        return [
            _detections(result, names, image, self.low)
            for result, names, image in zip(results, named, images, strict=True)
        ]


def hub_identity(source: str) -> str:
    """The revision of a model of the hub, which is downloaded if it is not here; of a folder, a hash of its files.
    ValueError as of :class:`HubDetector`, of what is seen without loading it."""
    folder = _located(source)
    kind = _detector_type(folder, source)
    try:
        name = BaseName.of(source, folder, kind)
        return name.revision or full_hash(folder)
    except ValueError as error:
        raise ValueError(f"objects.detector: {error}") from None


def _located(source: str) -> Path:

    def refuse_other_tasks(folder: Path) -> None:
        _detector_type(folder, source)

    try:
        name, revision = hub_id(source) if source.startswith(HUB) else (source, None)
        return locate_base(name, revision, download=True, check=refuse_other_tasks)
    except ValueError as error:
        fault = re.sub(r"^(base\.\w+|objects\.detector): ", "", str(error)).replace("the base model", "the detector")
        raise ValueError(f"objects.detector: {fault.replace('base.source=', 'objects.detector=')}") from None


def _detector_type(folder: Path, source: str) -> str:
    try:
        kind = model_type(folder)
    except ValueError as error:
        raise ValueError(f"objects.detector: {error}") from None
    if kind not in {**MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES, **MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES}:
        raise ValueError(
            f"objects.detector: {source} is a {kind}, which is not an object detector; take one such as RT-DETR, "
            "D-FINE, Grounding DINO or OWLv2"
        )
    return kind


def _processor(folder: Path, takes_words: bool) -> Any:
    """The processor of a model, with the image processor that needs no torchvision."""
    try:
        images = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
        if not takes_words:
            return images
        processor: Any = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds for files that are missing or damaged
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder} has no usable processor ({reason}); copy or download the model again") from error
    processor.image_processor = images
    return processor


def _texts(words: Sequence[str], joined: bool, processor: Any, config: Any) -> list[str]:
    """The texts that ask for classes: one each, or words that Grounding DINO's processor joins to a single text.
    ValueError: the model would cut a text off, or could not tell its words apart."""
    texts = list(words) if joined else [f"a photo of a {word}" for word in words]
    limit = config.max_text_len if joined else processor.tokenizer.model_max_length
    for text in [". ".join(texts) + "."] if joined else texts:
        if (length := len(processor.tokenizer(text)["input_ids"])) > limit:
            what = f"the {len(words)} names" if joined else repr(text)
            raise ValueError(
                f"objects.names: {what} have {length} tokens, the detector reads {limit}; give fewer or shorter ones"
            )
    if joined and (dotted := [word for word in words if "." in word]):
        raise ValueError(f"objects.names: {dotted[0]!r} has a full stop, which ends a name for this detector")
    return texts


def _class_of_tokens(tokens: Sequence[int], tokenizer: Any, classes: Sequence[str]) -> list[str | None]:
    """The class to which each token of a joined text belongs; None for full stops and what is around the text."""
    stop = tokenizer.convert_tokens_to_ids(".")
    result: list[str | None] = []
    number = 0
    for token in tokens:
        apart = token == stop or token in tokenizer.all_special_ids
        result.append(None if apart else classes[number])
        number += token == stop
    return result


def _detections(result: Any, names: Sequence[str | None], image: np.ndarray, low: float) -> Detections:
    kept = [index for index, name in enumerate(names) if name is not None]
    boxes, scores = (result[key].float().cpu().numpy()[kept] for key in ("boxes", "scores"))
    return detections_of(boxes, [str(names[index]) for index in kept], scores, image, low)
