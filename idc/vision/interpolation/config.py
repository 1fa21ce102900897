"""Shape of VFIformer (Lu et al., Video Frame Interpolation with Transformer, CVPR 2022). No torch here."""

from __future__ import annotations

from typing import NamedTuple


class VFIformerConfig(NamedTuple):
    """Shape of VFIformer. The defaults are the official network (24,166,930 parameters); its small variant
    (17,024,426) has refine=False, width=136, window=4.

    Attributes:
        flow_channels: widths of the flow network's three blocks, which work at 1/4, 1/2 and 1/1 of the image's size.
        context_channels: width of the warped features at full resolution; it doubles at every lower one.
        refine: refine the flow from 1/8 to full resolution by the features; False: only enlarge it (official small).
        width: of the transformer.
        window: side of an attention window, in pixels of its level; 4 or 8. Every second block's windows are shifted
            by half of it.
        depths: blocks of the two groups of each resolution: 1, 1/2, 1/4 and 1/8. The second group of all but the last
            also attends to a second window, twice as wide and half as fine (cross-scale window attention).
        hidden: width of the blocks' MLP, as a multiple of ``width``.
    """

    flow_channels: tuple[int, ...] = (240, 150, 90)
    context_channels: int = 24  # c
    refine: bool = True
    width: int = 160
    heads: int = 2
    window: int = 8
    depths: tuple[tuple[int, int], ...] = ((3, 3), (3, 3), (3, 3), (1, 1))
    hidden: int = 2
