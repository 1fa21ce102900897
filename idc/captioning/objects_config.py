"""Settings of the captioner ``objects``, which nothing is trained for. Imports nothing that is slow."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.util.option_values import Names

OBJECTS, REGIONS = "objects", "regions"
"""Name the captioner without training in the place of an artifact; ``regions`` is the one without a detector."""
EMBEDDED, NONE = "embedded", "none"
Mode = Literal["auto", "photographs", "exact"]
COCO_NAMES: tuple[str, ...] = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
"""The 80 classes of COCO's detectors, in their order."""


class ObjectsConfig(ConfigModel):
    """How `objects` compares two images and names what changed."""

    detector: str | None = Field(None, min_length=1, json_schema_extra={"option": "--detector"})
    """What names objects: `embedded`, 80 everyday classes (the extra `objects`); the ONNX file of a YOLOX model;
    `hf:ORG/NAME`, an object detector of the Hugging Face hub, or its folder; or `none`, with which regions are
    described by position and colour alone. Default: embedded, for `auto` only where it is installed."""
    names: Names = Field((), json_schema_extra={"option": "--names"})
    """Names of the objects that may be said, as in `person,car`; for a detector that takes its classes as words, these
    words. Default: all that the detector knows, but those that detectors confuse."""
    mode: Mode = Field("auto", json_schema_extra={"option": "--mode"})
    """photographs: views and lights are aligned first. exact: every cluster of different pixels is a region, as for
    screenshots and documents, of any sizes. auto: exact for drawn images, and for screens of which parts are equal."""
    text: bool | None = None
    """Whether words on the images are read. Default: if the extra `text` is installed."""
