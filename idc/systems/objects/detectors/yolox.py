"""YOLOX (Ge et al., 2021, arXiv:2107.08430) of an ONNX file, in ``cv2.dnn``.

Images and boxes as in Megvii's code (github.com/Megvii-BaseDetection/YOLOX): ``preproc`` and ``ValTransform`` of
yolox/data/data_augment.py (BGR from 0 to 255, fitted into the top left of a grey input; only models before August 2021,
"legacy", want normalized RGB), ``demo_postprocess`` of yolox/utils/demo_utils.py, ``postprocess`` of
yolox/utils/boxes.py.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.objects_config import COCO_NAMES
from idc.systems.objects.detectors.contract import Detections, detections_of
from idc.training.hashing import file_hash

_STRIDES = (8, 16, 32)
_MAX_SIDE = 4096
"""Longest side of the input, which a file of some hundred bytes may choose."""
_GREY = 114
"""Value of the input beside the image."""
_OVERLAP = 0.45
"""IoU from which two boxes of a class are the same object; Megvii's default for images."""


class YoloxDetector:
    """The network of a file, :attr:`idc.captioning.objects_config.ObjectsConfig.detector`, image by image: an
    exported file has a batch of 1. ValueError: there is no such file, or it is not a YOLOX network."""

    low = 0.2
    """As of the embedded detector: a box says that an object may be there."""
    high = 0.45
    """Objectness times the class's probability, each of two thirds."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()  # a network holds its input and output
        path, header = _onnx_file(path)
        self._size = _input_size(path, header)
        self._cells, self._strides = _cells(self._size)
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the error below says it
        try:
            self._network = cv2.dnn.readNetFromONNX(str(path))
            rows = self._run(np.full((*self._size, 3), _GREY, np.uint8))
        except cv2.error as error:
            raise _refused(path, f"OpenCV cannot run it ({' '.join(error.err.split())[:150]})") from None
        finally:
            cv2.utils.logging.setLogLevel(level)
        cells = len(self._cells)
        if len(header.outputs) != 1 or rows.ndim != 3 or rows.shape[:2] != (1, cells) or rows.shape[2] < 6:
            shown = "one of several" if len(header.outputs) != 1 else rows.shape
            raise _refused(path, f"its output is {shown}, that of YOLOX is (1, {cells}, 5 + classes)")
        scores = rows[0, :, 4:]
        # Others of this shape give no objectness: it is 1 in each cell.
        if not (scores.min() >= 0 and scores.max() <= 1) or scores[:, 0].min() == 1:
            raise _refused(path, "its scores are not an objectness and probabilities of classes")
        self.classes = _class_names(path, header, rows.shape[2] - 5)
        # Files exported with `--decode_in_inference` give centres and sizes in pixels of the input.
        x, expected = rows[0, :, 0], self._cells[:, 0] * self._strides[:, 0]
        self._decoded = bool(x.std() > 0 and np.corrcoef(x, expected)[0, 1] > 0.9)

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        """As :meth:`~idc.systems.objects.detectors.contract.Detector.detect`."""
        return [self._detect(image) for image in images]

    def _detect(self, image: np.ndarray) -> Detections:
        height, width = image.shape[:2]
        scale = min(self._size[0] / height, self._size[1] / width)
        inner = max(1, int(height * scale)), max(1, int(width * scale))
        padded = np.full((*self._size, 3), _GREY, np.uint8)
        padded[: inner[0], : inner[1]] = cv2.resize(image, inner[::-1], interpolation=cv2.INTER_LINEAR)
        rows = self._run(padded)[0]
        numbers = rows[:, 5:].argmax(axis=1)
        scores = rows[:, 4] * rows[np.arange(len(rows)), 5 + numbers]
        kept = scores >= self.low
        rows, numbers, scores = rows[kept], numbers[kept], scores[kept]
        centres, sizes = rows[:, :2], rows[:, 2:4]
        if not self._decoded:
            centres = (centres + self._cells[kept]) * self._strides[kept]
            sizes = np.exp(sizes) * self._strides[kept]
        corners = (centres - sizes / 2) / scale
        sizes = sizes / scale
        chosen = list(
            cv2.dnn.NMSBoxesBatched(
                np.hstack([corners, sizes]).tolist(), scores.tolist(), numbers.tolist(), 0.0, _OVERLAP
            )
        )
        names = [self.classes[number] for number in numbers[chosen]]
        boxes = np.hstack([corners, corners + sizes])[chosen]
        return detections_of(boxes, names, scores[chosen], image, self.low)

    def _run(self, padded: np.ndarray) -> np.ndarray:
        with self._lock:
            self._network.setInput(cv2.dnn.blobFromImage(padded, swapRB=True))
            output: np.ndarray = self._network.forward().copy()
        return output


def yolox_identity(path: Path | str) -> str:
    """The hash of a file; ValueError if there is none, or it is not of ONNX."""
    return file_hash(_onnx_file(path)[0])


def _onnx_file(source: Path | str) -> tuple[Path, OnnxHeader]:
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"objects.detector: there is no file {source}")
    try:
        return path, read_onnx_header(path)
    except ValueError as error:
        raise ValueError(f"objects.detector: {error}; give one of YOLOX") from None


def _refused(path: Path, reason: str) -> ValueError:
    return ValueError(f"objects.detector: {path} is not a YOLOX network: {reason}")


def _input_size(path: Path, header: OnnxHeader) -> tuple[int, int]:
    shapes = list(header.inputs.values())
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3 or shapes[0][0] not in (1, None):
        shown = " and ".join(str(shape).replace("None", "?") for shape in shapes)
        raise _refused(path, f"its input is {shown}, that of YOLOX is (1, 3, height, width)")
    height, width = (side or 0 for side in shapes[0][2:])
    if any(side % _STRIDES[-1] or not 0 < side <= _MAX_SIDE for side in (height, width)):
        raise _refused(
            path,
            f"its input has no fixed height and width in multiples of {_STRIDES[-1]} up to {_MAX_SIDE}; export it with "
            "them",
        )
    return height, width


def _cells(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Column and row of every cell, (N, 2), and its stride, (N, 1), in the order of the output."""
    cells, strides = [], []
    for stride in _STRIDES:
        rows, columns = np.mgrid[0 : size[0] // stride, 0 : size[1] // stride]
        cells.append(np.stack([columns.ravel(), rows.ravel()], axis=1))
        strides.append(np.full((rows.size, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def _class_names(path: Path, header: OnnxHeader, count: int) -> tuple[str, ...]:
    """The names that the file's own notes list (``names``), else those of COCO for as many classes."""
    text = header.metadata.get("names", "()")
    try:
        listed = ast.literal_eval(text) if len(text) <= _MAX_NAMES else ()
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        listed = ()
    if isinstance(listed, dict) and all(str(key).isdigit() for key in listed):
        listed = [listed[key] for key in sorted(listed, key=int)]
    names = tuple(listed) if isinstance(listed, list | tuple) else ()
    if len(names) == len(set(names)) == count and all(isinstance(name, str) and name.strip() for name in names):
        return names
    if count == len(COCO_NAMES):
        return COCO_NAMES
    raise ValueError(
        f"objects.detector: {path} has {count} classes and does not name them: only the {len(COCO_NAMES)} of COCO are "
        "known by their number; write the names into its metadata as `names`, a JSON list of texts"
    )


# -- what an ONNX file says of itself, read without its weights and without the package ``onnx``

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields in protobuf's wire format."""
_GRAPH, _METADATA = 7, 14
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_NAME, _EXTERNAL_DATA, _LOCATION = 8, 13, 14
"""Of a tensor; with one of the last two its values are in another file, which OpenCV would open."""
_PARTS: dict[str, dict[int, str]] = {
    "model": {_GRAPH: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", _INITIALIZER: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Messages of onnx.proto with tensors in them: the numbers of the fields that lead to them, and their messages."""
_MAX_FIELDS = 500_000
"""Most fields that are read, in a loop in Python."""
_MAX_NAMES = 2**16
"""Most characters of a list of classes: Python's parser takes hundreds of bytes for each."""


class OnnxHeader(NamedTuple):
    """Inputs and outputs with their shapes, None for a size that is not fixed, and the file's own notes."""

    inputs: dict[str, tuple[int | None, ...]]
    outputs: dict[str, tuple[int | None, ...]]
    metadata: dict[str, str]


def read_onnx_header(path: Path) -> OnnxHeader:
    """The header of a file; ValueError if it is not an ONNX file, or has values in other files."""
    fields = _Fields()
    try:
        data = memoryview(path.read_bytes())
        elsewhere = _has_values_elsewhere(fields, data)
        model = list(fields(data))
        graph = [field for number, value in model if number == _GRAPH for field in fields(value)]
        weights = {_text(dict(fields(value))[_NAME]) for number, value in graph if number == _INITIALIZER}
        inputs, outputs = (
            dict(_name_and_shape(fields, value) for number, value in graph if number == kind)
            for kind in (_INPUT, _OUTPUT)
        )
        pairs = [dict(fields(value)) for number, value in model if number == _METADATA]
        metadata = {_text(pair[1]): _text(pair.get(2, memoryview(b""))) for pair in pairs}
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        limit = f", or has more than {_MAX_FIELDS:,} fields" if fields.left < 0 else ", or only a part of one"
        raise ValueError(f"{path} is not an ONNX file{limit}") from error
    if not inputs or not outputs:
        raise ValueError(f"{path} is not an ONNX file, or only a part of one")
    if elsewhere:
        raise ValueError(f"{path} keeps its weights in other files, which are not read")
    # Older files list their weights among the inputs.
    return OnnxHeader({name: shape for name, shape in inputs.items() if name not in weights}, outputs, metadata)


def _has_values_elsewhere(fields: _Fields, data: memoryview) -> bool:
    """Whether any tensor of a model has its values in another file: weights, constants in nodes, in their subgraphs."""
    pending = [("model", data)]
    while pending:
        kind, message = pending.pop()
        for number, value in fields(message):
            if kind == "tensor" and (number == _EXTERNAL_DATA or (number == _LOCATION and any(value))):
                return True
            if number in _PARTS[kind]:
                pending.append((_PARTS[kind][number], value))
    return False


class _Fields:
    """Reads the fields of messages, ``left`` of them."""

    def __init__(self) -> None:
        self.left = _MAX_FIELDS

    def __call__(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Numbers and values of the fields of a message; a varint as its bytes."""
        position = 0
        while position < len(data):
            self.left -= 1
            key, position = _varint(data, position)
            kind, start = key & 7, position
            if kind == _VARINT:
                _, position = _varint(data, position)
            elif kind == _BYTES:
                size, start = _varint(data, position)
                position = start + size
            elif kind in (_FIXED32, _FIXED64):
                position += 4 if kind == _FIXED32 else 8
            else:
                raise ValueError("no such kind of field")
            if position > len(data) or self.left < 0:
                raise ValueError("a field is cut off, or one too many")
            yield key >> 3, data[start:position]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than 64 bits")


def _name_and_shape(fields: _Fields, value_info: memoryview) -> tuple[str, tuple[int | None, ...]]:
    parts = dict(fields(value_info))
    tensor = dict(fields(dict(fields(parts[2]))[1]))
    sizes = [dict(fields(size)).get(1) for number, size in fields(tensor.get(2, memoryview(b""))) if number == 1]
    return _text(parts[1]), tuple(None if size is None else _varint(size, 0)[0] for size in sizes)


def _text(data: memoryview) -> str:
    return bytes(data).decode()
