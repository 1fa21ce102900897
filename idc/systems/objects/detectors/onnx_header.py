"""What an ONNX file says of itself, read without its weights and without the package ``onnx``.

The file is a protobuf message; the numbers of its fields are those of onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields in protobuf's wire format."""
_GRAPH, _METADATA = 7, 14
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_NAME, _LOCATION = 8, 14
"""Of a tensor; with a location its values are in another file."""


class OnnxHeader(NamedTuple):
    """Inputs and outputs with their shapes, None for a size that is not fixed, and the file's own notes."""

    inputs: dict[str, tuple[int | None, ...]]
    outputs: dict[str, tuple[int | None, ...]]
    metadata: dict[str, str]


def read_onnx_header(path: Path) -> OnnxHeader:
    """The header of a file; ValueError if it is not an ONNX file."""
    try:
        model = list(_fields(memoryview(path.read_bytes())))
        graph = [field for number, value in model if number == _GRAPH for field in _fields(value)]
        tensors = [dict(_fields(value)) for number, value in graph if number == _INITIALIZER]
        weights = {_text(tensor[_NAME]) for tensor in tensors}
        inputs, outputs = (
            dict(_name_and_shape(value) for number, value in graph if number == kind) for kind in (_INPUT, _OUTPUT)
        )
        pairs = [dict(_fields(value)) for number, value in model if number == _METADATA]
        metadata = {_text(pair[1]): _text(pair.get(2, memoryview(b""))) for pair in pairs}
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not an ONNX file, or only a part of one") from error
    if not inputs or not outputs:
        raise ValueError(f"{path} is not an ONNX file, or only a part of one")
    if any(any(tensor.get(_LOCATION, b"")) for tensor in tensors):
        raise ValueError(f"{path} keeps its weights in other files, which are not read")
    # Older files list their weights among the inputs.
    return OnnxHeader({name: shape for name, shape in inputs.items() if name not in weights}, outputs, metadata)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Fields of a message; a varint as its bytes."""
    position = 0
    while position < len(data):
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
        if position > len(data):
            raise ValueError("a field is cut off")
        yield key >> 3, data[start:position]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _name_and_shape(value_info: memoryview) -> tuple[str, tuple[int | None, ...]]:
    fields = dict(_fields(value_info))
    tensor = dict(_fields(dict(_fields(fields[2]))[1]))
    sizes = [dict(_fields(size)).get(1) for number, size in _fields(tensor.get(2, memoryview(b""))) if number == 1]
    return _text(fields[1]), tuple(None if size is None else _varint(size, 0)[0] for size in sizes)


def _text(data: memoryview) -> str:
    return bytes(data).decode()
