"""What the header of a JPEG 2000 makes OpenJPEG allocate, before it is decoded.

OpenJPEG allocates 6 kB for each tile and 1.2 kB for each component of it when it reads the header, and 390 bytes for
each code block of a tile: hundreds of bytes of a file can ask for gigabytes.
"""

from __future__ import annotations

import re
import struct

_MAX_TILES = 10_000
_MAX_BLOCKS = 500_000
"""Most code blocks of a tile. In their usual size, 64x64, an RGB image of 50 million pixels has 37,000."""
_MAX_PACKETS = 2**26
"""Most packets of a tile: layers times resolutions, components and precincts. OpenJPEG keeps two bytes of each."""
_MAX_COMPONENTS, _MAX_BITS = 4, 16
"""More are not read by Pillow, or not honest: each value takes four bytes in any case."""
_MAX_BOXES = 1000

_BEGIN = b"\xff\x4f\xff\x51"
"""The markers SOC and SIZ."""
_SIZE = struct.Struct(">HHIIIIIIIIH")
_CODING = re.compile(
    rb"\xff(?:\x52\0[\x0c-\x2d](?=(.).(..)[\0\1]([\0-\x20])([\0-\x08])([\0-\x08]).[\0\1](.{0,33}))|"
    rb"\x53\0[\x09-\x2a](?=.(.)([\0-\x20])([\0-\x08])([\0-\x08]).[\0\1](.{0,33})))",
    re.DOTALL,
)
"""The markers COD and COC, in the main header or in that of a tile: flags, layers (of COD alone), decompositions, block
width and height as exponents less two, precincts. Pixels in which the pattern occurs by chance are as good as none."""
_MAX_CODING = 20_000
"""Most of these markers."""
_COPIED = re.compile(rb"\xff(?:\x74..\0\0..|\x75..\0\0.)\0\0", re.DOTALL)
"""The markers MCT and MCC, which OpenJPEG copies for every tile. Only part 2 of the standard has them."""


def refuse_costly_codestream(data: bytes, size: tuple[int, int]) -> None:
    """Check a JPEG 2000 file.

    Args:
        size: width and height that Pillow reads, in a file of boxes from one of these.

    Raises:
        ValueError: to decode it would take much more memory than its pixels do: why.
        struct.error: the file is damaged.
    """
    begin = _codestream(data)
    if data[begin : begin + 4] != _BEGIN:
        raise ValueError("its codestream does not begin with its size")
    _, _, right, bottom, left, top, across, down, tiles_left, tiles_top, components = _SIZE.unpack_from(data, begin + 4)
    depths = data[begin + 4 + _SIZE.size :: 3][:components]
    if (right - left, bottom - top) != size:
        raise ValueError(f"it has {right - left} x {bottom - top} pixels, and {size[0]} x {size[1]} by its header")
    if components > _MAX_COMPONENTS or any((depth & 0x7F) >= _MAX_BITS for depth in depths):
        raise ValueError(f"it has more than {_MAX_COMPONENTS} components, or more than {_MAX_BITS} bits")
    tiles = -(-(right - tiles_left) // max(1, across)) * -(-(bottom - tiles_top) // max(1, down))
    if tiles > _MAX_TILES:
        raise ValueError(f"it has {tiles:,} tiles, more than {_MAX_TILES:,}")
    if _COPIED.search(data):
        raise ValueError("it has transformations of part 2 of the standard")
    layers = packets = 1
    for number, match in enumerate(_CODING.finditer(data)):
        coding = match.groups()[:6] if match[1] else (match[7], b"\0\1", *match.groups()[7:])
        blocks, of_layer = _blocks(min(across, size[0]), min(down, size[1]), coding)
        layers, packets = max(layers, int.from_bytes(coding[1], "big")), max(packets, of_layer * components)
        if number >= _MAX_CODING or blocks * components > _MAX_BLOCKS or layers * packets > _MAX_PACKETS:
            raise ValueError(
                f"it has more than {_MAX_BLOCKS:,} code blocks or {_MAX_PACKETS:,} packets in a tile, or changes its "
                f"coding more than {_MAX_CODING:,} times"
            )


def _codestream(data: bytes) -> int:
    """Position of the codestream: of a bare one the begin of the file, else in the box that OpenJPEG opens."""
    if data.startswith(_BEGIN):
        return 0
    position = 0
    for _ in range(_MAX_BOXES):
        length, kind = struct.unpack_from(">I4s", data, position)
        head = 8
        if length == 1:
            (length,), head = struct.unpack_from(">Q", data, position + 8), 16
        if kind == b"jp2c":
            return position + head
        position += max(length, head)
    raise ValueError(f"it has more than {_MAX_BOXES} boxes")


def _blocks(width: int, height: int, coding: tuple[bytes, ...]) -> tuple[int, int]:
    """Code blocks of a component of a tile, and packets of a layer: all resolutions times the most precincts."""
    (flags,), _, (levels,), (block_x,), (block_y,), precincts = coding
    blocks = packets = 0
    for level in range(levels + 1):
        sizes = precincts[level] if flags & 1 and level < len(precincts) else 0xFF
        half = int(level > 0)  # above the lowest resolution there are three bands of half its sides
        counts = packets_of_level = 1
        for side, block, precinct in ((width, block_x, sizes & 15), (height, block_y, sizes >> 4)):
            side = -(-side >> levels - level)
            counts *= -(-side >> min(block + 2, max(precinct - half, 0)) + half)
            packets_of_level *= -(-side >> precinct)
        blocks += counts * (3 if half else 1)
        packets = max(packets, packets_of_level * (levels + 1))
    return blocks, packets
