"""Small ONNX files, written without the package ``onnx``: the few fields of its messages that a network needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

FLOAT, INTEGER = 1, 7


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
