"""YOLOX networks of ONNX files that are written here: decoded a second time, and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from idc.captioning.objects_config import COCO_NAMES
from idc.systems.objects.detectors import detector_identity, load_detector

FLOAT, INTEGER = 1, 7
SIZE = (96, 160)
STRIDES = (8, 16, 32)
IMAGES = ((60, 200), (230, 90), (97, 161))


# -- small ONNX files, written without the package ``onnx``: the few fields of its messages that a network needs


def _varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + _varint(rest) if rest else bytes([head])


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A protobuf message of (number, value); integers are varints."""
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += _varint(number << 3) + _varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            data += _varint(number << 3 | 2) + _varint(len(value)) + value
    return data


def tensor(name: str, values: np.ndarray) -> bytes:
    kind = INTEGER if values.dtype == np.int64 else FLOAT
    raw = values.astype(np.int64 if kind == INTEGER else np.float32).tobytes()
    return message(*((1, size) for size in values.shape), (2, kind), (8, name), (9, raw))


def node(operation: str, inputs: Sequence[str], output: str, **attributes: int | list[int]) -> bytes:
    fields: list[tuple[int, str | bytes]] = [(1, name) for name in inputs]
    fields += [(2, output), (3, output), (4, operation)]
    for name, value in attributes.items():
        if isinstance(value, int):
            fields.append((5, message((1, name), (3, value), (20, 2))))
        else:
            fields.append((5, message((1, name), *((8, item) for item in value), (20, 7))))
    return message(*fields)


def _value(name: str, shape: Sequence[int | str]) -> bytes:
    sizes = [(1, message((2, size) if isinstance(size, str) else (1, size))) for size in shape]
    return message((1, name), (2, message((1, message((1, 1), (2, message(*sizes)))))))


def model(
    nodes: Sequence[bytes],
    weights: Mapping[str, np.ndarray],
    input_shape: Sequence[int | str],
    output_shape: Sequence[int | str],
    metadata: Mapping[str, str] = {},
    location: int = 0,
) -> bytes:
    """A network from ``images`` to ``output``; with location 1 its weights are said to be in another file."""
    graph = message(
        *((1, item) for item in nodes),
        (2, "graph"),
        *((5, tensor(name, values) + message((14, location))) for name, values in weights.items()),
        (11, _value("images", input_shape)),
        (12, _value("output", output_shape)),
    )
    extra = [(14, message((1, key), (2, value))) for key, value in metadata.items()]
    return message((1, 8), (2, "tests"), (7, graph), (8, message((1, ""), (2, 13))), *extra)


def yolox_like(
    size: tuple[int, int],
    weights: Sequence[np.ndarray],
    biases: Sequence[np.ndarray],
    metadata: Mapping[str, str] = {},
    batch: int | str = 1,
    strides: Sequence[int] = (8, 16, 32),
    transposed: bool = True,
) -> bytes:
    """YOLOX's output (1, N, 5 + classes): of each stride one convolution as large as the stride."""
    nodes, tensors, parts = [], {"shape": np.array([1, weights[0].shape[0], -1])}, []
    for stride, weight, bias in zip(strides, weights, biases, strict=True):
        for name, rows in ((f"box{stride}", slice(0, 4)), (f"score{stride}", slice(4, None))):
            tensors |= {f"{name}.w": weight[rows], f"{name}.b": bias[rows]}
            nodes.append(
                node(
                    "Conv", ["images", f"{name}.w", f"{name}.b"], name, strides=[stride] * 2, kernel_shape=[stride] * 2
                )
            )
        nodes += [
            node("Sigmoid", [f"score{stride}"], f"sigmoid{stride}"),
            node("Concat", [f"box{stride}", f"sigmoid{stride}"], f"map{stride}", axis=1),
            node("Reshape", [f"map{stride}", "shape"], f"flat{stride}"),
        ]
        parts.append(f"flat{stride}")
    cells = sum((size[0] // stride) * (size[1] // stride) for stride in strides)
    shape = (1, cells, weights[0].shape[0]) if transposed else (1, weights[0].shape[0], cells)
    nodes.append(node("Concat", parts, "all" if transposed else "output", axis=2))
    if transposed:
        nodes.append(node("Transpose", ["all"], "output", perm=[0, 2, 1]))
    return model(nodes, tensors, (batch, 3, *size), shape, metadata)


def random_weights(classes: int = 80, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Boxes and scores depend on every pixel; a few dozen boxes overlap."""
    random = np.random.default_rng(seed)
    weights = [random.normal(0, 0.008 / side, (5 + classes, 3, side, side)).astype(np.float32) for side in STRIDES]
    biases = []
    for _ in STRIDES:
        bias = random.normal(0, 0.5, 5 + classes).astype(np.float32)
        bias[2:5] = 0.8, 0.8, 1  # boxes of about two cells
        biases.append(bias)
    return weights, biases


def decoded_naively(image: np.ndarray, weights: list[np.ndarray], biases: list[np.ndarray]) -> list[tuple[Any, ...]]:
    """(name, score, box) cell by cell, by score; boxes of a class that overlap a better one by 0.45 left out."""
    scale = min(SIZE[0] / image.shape[0], SIZE[1] / image.shape[1])
    shape = int(image.shape[1] * scale), int(image.shape[0] * scale)
    canvas = np.full((*SIZE, 3), 114.0)
    canvas[: shape[1], : shape[0]] = cv2.resize(image, shape)[..., ::-1]  # BGR
    boxes = []
    for stride, weight, bias in zip(STRIDES, weights, biases, strict=True):
        for row in range(SIZE[0] // stride):
            for column in range(SIZE[1] // stride):
                patch = canvas[row * stride : (row + 1) * stride, column * stride : (column + 1) * stride]
                values = np.einsum("ochw,hwc->o", weight.astype(float), patch) + bias
                chances = 1 / (1 + np.exp(-values[4:]))
                score, number = chances[0] * chances[1:].max(), chances[1:].argmax()
                x, y = (column + values[0]) * stride, (row + values[1]) * stride
                width, height = np.exp(values[2]) * stride, np.exp(values[3]) * stride
                box = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2]) / scale
                boxes.append((COCO_NAMES[number], float(score), box))
    kept: list[tuple[Any, ...]] = []
    for name, score, box in sorted(boxes, key=lambda item: -item[1]):
        if score >= 0.2 and all(name != other or overlap(box, rival) <= 0.45 for other, _, rival in kept):
            kept.append((name, score, box))
    height, width = image.shape[:2]
    return [(name, score, box.clip(0, [width, height] * 2)) for name, score, box in kept]


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    shared = float(np.prod(sides.clip(0)))
    return shared / (float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2])) - shared)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


@pytest.mark.parametrize("shape", IMAGES)
def test_boxes_are_those_of_a_naive_decoding(files: Path, shape: tuple[int, int]) -> None:
    weights, biases = random_weights()
    (files / "yolox.onnx").write_bytes(yolox_like(SIZE, weights, biases, batch="n"))
    image = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    [detections] = load_detector(str(files / "yolox.onnx")).detect([image])
    expected = decoded_naively(image, weights, biases)
    expected = [item for item in expected if (item[2][2:] > item[2][:2]).all()]
    assert len(expected) > 20
    assert detections.names == tuple(name for name, _, _ in expected)
    np.testing.assert_allclose(detections.scores, [score for _, score, _ in expected], atol=1e-4)
    np.testing.assert_allclose(detections.boxes, [box for _, _, box in expected], atol=0.02)


def test_boxes_in_pixels_of_the_input_are_read_too(files: Path) -> None:
    """As exported with ``--decode_in_inference``: here from a table, whatever the image."""
    rows = []
    for stride in STRIDES:
        y, x = np.mgrid[0 : SIZE[0] // stride, 0 : SIZE[1] // stride]
        row = np.zeros((x.size, 85), np.float32)
        row[:, 0], row[:, 1], row[:, 2], row[:, 3] = (x.ravel() + 0.5) * stride, (y.ravel() + 0.5) * stride, 20, 10
        rows.append(row)
    rows[0][0, 4:] = rows[2][-1, 4:] = 0.9
    table = np.concatenate(rows)[None]
    nodes = [
        node("GlobalAveragePool", ["images"], "mean"),
        node("ReduceSum", ["mean", "axes"], "sum", keepdims=0),
        node("Mul", ["sum", "zero"], "nothing"),
        node("Add", ["nothing", "table"], "output"),
    ]
    tensors = {"axes": np.array([1, 2, 3]), "zero": np.zeros(1), "table": table}
    (files / "decoded.onnx").write_bytes(model(nodes, tensors, (1, 3, *SIZE), table.shape))
    [detections] = load_detector(str(files / "decoded.onnx")).detect(
        [np.zeros((2 * SIZE[0], 2 * SIZE[1], 3), np.uint8)]
    )
    assert [box.tolist() for box in detections.boxes] == [[0, 0, 28, 18], [268, 150, 308, 170]]


@pytest.mark.parametrize(
    ("metadata", "classes"),
    [
        ({"names": '["helmet", "vest", "crane"]'}, ("helmet", "vest", "crane")),
        ({"names": "{0: 'helmet', 2: 'crane', 1: 'vest'}"}, ("helmet", "vest", "crane")),
        ({}, None),
        ({"names": "__import__('os')"}, None),
    ],
)
def test_other_classes_than_of_coco_need_their_names_in_the_file(
    files: Path, metadata: Mapping[str, str], classes: tuple[str, ...] | None
) -> None:
    weights, biases = random_weights(3)
    (files / "three.onnx").write_bytes(yolox_like(SIZE, weights, biases, metadata))
    if classes is not None:
        assert load_detector(str(files / "three.onnx"), ["vest"]).classes == classes
        return
    with pytest.raises(ValueError, match=r"^objects\.detector: .*three\.onnx has 3 classes and does not name them"):
        load_detector(str(files / "three.onnx"))


def _refusals() -> dict[str, tuple[bytes, str]]:
    weights, biases = random_weights(4)
    sure = yolox_like(SIZE, weights, [np.where(np.arange(9) == 4, 99, bias).astype(np.float32) for bias in biases])
    pooled = [node("GlobalAveragePool", ["images"], "pooled"), node("Flatten", ["pooled"], "output", axis=1)]

    def simple(*shape: int | str, operation: str = "Relu") -> bytes:
        return model([node(operation, ["images"], "output")], {}, shape, shape)

    return {
        "text": (b"a text, not a network", "not an ONNX file"),
        "cut": (sure[: len(sure) // 2], "only a part of one"),
        "other protobuf": (message((1, "text"), (7, message((1, "a"), (11, "b")))), "not an ONNX file"),
        "weights elsewhere": (
            model(pooled, {"w": np.zeros(1)}, (1, 3, 96, 96), (1, 3), location=1),
            "keeps its weights in other files",
        ),
        "numbers without an end": (b"\xff" * 2**20, "not an ONNX file"),
        "many small fields": (message((7, b"\x08\0" * 600_000)), "more than 500,000 fields"),
        "a field of many": (
            model(pooled, {}, (1, 3, 96, 96), (1, 3)) + message((14, b"\x08\0" * 600_000)),
            "more than",
        ),
        "a huge input": (simple(1, 3, 2**20, 2**20), "multiples of 32 up to 4096"),
        "a long list of names": (
            yolox_like(SIZE, *random_weights(4), {"names": '["a", "b", "c", "d"' + " " * 2**16 + "]"}),
            "does not name them",
        ),
        "YOLOv8": (yolox_like(SIZE, weights, biases, transposed=False), r"output is \(1, 9, 315\)"),
        "no objectness": (sure, "scores are not an objectness"),
        "language model": (simple("batch", "length"), r"its input is \(\?, \?\)"),
        "free size": (simple(1, 3, "height", "width"), "no fixed height and width"),
        "odd size": (simple(1, 3, 100, 100), "multiples of 32"),
        "unknown operation": (simple(1, 3, 96, 96, operation="Frobnicate"), "OpenCV cannot run it .*Frobnicate"),
    }


@pytest.mark.parametrize("kind", _refusals())
def test_other_files_are_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    data, reason = _refusals()[kind]
    (tmp_path / "net.onnx").write_bytes(data)
    with pytest.raises(ValueError, match=rf"^objects\.detector: .*net\.onnx .*{reason}") as error:
        load_detector(str(tmp_path / "net.onnx"))
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


ELSEWHERE = message((1, 1), (2, FLOAT), (13, message((1, "location"), (2, "/etc/passwd"))), (14, 1))
SUBGRAPH = message((1, message((4, "Constant"), (5, message((1, "value"), (5, ELSEWHERE))))))
VALUES = {
    "a constant": (7, (1, (5, (5, ELSEWHERE)))),
    "a constant without a location": (7, (1, (5, (5, message((8, "w"), (13, b"")))))),
    "a list of tensors": (7, (1, (5, (10, ELSEWHERE)))),
    "a subgraph": (7, (1, (5, (6, SUBGRAPH)))),
    "one of several subgraphs": (7, (1, (5, (11, SUBGRAPH)))),
    "a sparse constant": (7, (1, (5, (22, (1, ELSEWHERE))))),
    "a list of sparse constants": (7, (1, (5, (23, (2, ELSEWHERE))))),
    "a sparse weight": (7, (15, (1, ELSEWHERE))),
    "a function": (25, (7, (5, (5, ELSEWHERE)))),
    "a function's default": (25, (11, (5, ELSEWHERE))),
    "training": (20, (1, (5, message((8, "w")) + ELSEWHERE))),
    "a step of training": (20, (2, (1, (5, (5, ELSEWHERE))))),
}
"""Where a tensor may be in a file: numbers of fields, from the model to the tensor."""


@pytest.mark.parametrize("where", VALUES)
def test_values_in_other_files_are_refused_wherever_they_are(tmp_path: Path, where: str) -> None:
    def nested(path: Any) -> bytes:
        return path if isinstance(path, bytes) else message((path[0], nested(path[1])))

    data = yolox_like(SIZE, *random_weights(2)) + nested(VALUES[where])  # protobuf joins two graphs of a file
    (tmp_path / "net.onnx").write_bytes(data)
    with pytest.raises(ValueError, match=r"net\.onnx keeps its weights in other files, which are not read"):
        load_detector(str(tmp_path / "net.onnx"))


def test_a_file_is_identified_by_its_contents(tmp_path: Path) -> None:
    data = yolox_like(SIZE, *random_weights(2))
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    for path, contents in zip(paths, (data, data, yolox_like(SIZE, *random_weights(2, seed=1))), strict=True):
        path.write_bytes(contents)
    first, copy, other = (detector_identity(str(path)) for path in paths)
    assert first == copy != other
    with pytest.raises(ValueError, match=r"^objects\.detector: there is no file .*gone\.onnx$"):
        detector_identity(str(tmp_path / "gone.onnx"))
