"""VFIformer (Lu et al., Video Frame Interpolation with Transformer, CVPR 2022): the frame half way between two.

1. An IFNet-like flow network (``flow_network.py``) estimates the flow from the unknown middle frame to the first and to
   the last.
2. It warps features of both frames at four resolutions; the full variant refines the flow on the way, from coarse to
   fine, by local correlations.
3. A U-shaped Swin transformer (``window_transformer.py``) reads both frames and their warped versions, takes in the
   warped features at every resolution, and predicts a blending mask and a residual for the two warped frames.

Unusual here: the network predicts only the exact middle, not any time between; it works on BGR in [0, 1] and on sizes
that are multiples of 64 (:meth:`VFIformer.forward` takes RGB of any size, pads and crops); its flow runs in float32
even under bf16 autocast.

Submodules have the names of the official code, so that its checkpoints load.

Shapes: B images, H x W pixels, c = context_channels. Flows are (B, 4, H, W): x and y displacement, in pixels of
their own resolution, to the first and to the last frame.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.remote_copies import local_folder
from idc.training.foreign import Ledger, find_state, read_checkpoint
from idc.vision.interpolation.flow_network import FlowNet, WarpedFeatures, warp
from idc.vision.interpolation.window_transformer import (
    VFIformerConfig,
    WindowTransformer,
    relative_positions,
    shift_masks,
)

_MULTIPLE = 64
"""Images are padded to multiples of this, by zeros, evenly on both sides (official test), and the result is cropped."""


class VFIformer(nn.Module):
    """The network."""

    def __init__(self, config: VFIformerConfig) -> None:
        super().__init__()
        c = config.context_channels
        self.config = config
        self.flownet = FlowNet(config.flow_channels)
        self.refinenet = WarpedFeatures(c, config.refine)
        self.fuse_block = nn.Sequential(
            nn.Conv2d(12, 2 * c, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.LeakyReLU(0.2),
        )
        self.transformer = WindowTransformer(config)

    def forward(self, first: Tensor, last: Tensor) -> Tensor:
        """Predict the middle of two batches of frames: float RGB (B, 3, H, W) in [0, 1], any size."""
        height, width = first.shape[-2:]
        down, across = -height % _MULTIPLE, -width % _MULTIPLE
        top, left = down // 2, across // 2
        first, last = (
            F.pad(images.flip(1), [left, across - left, top, down - top]) for images in (first, last)
        )  # flip: RGB to BGR
        frame = self.middle_of(first, last)[0]
        return frame[..., top : top + height, left : left + width].flip(1)

    def middle_of(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The network itself, BGR in and out, of sizes that 16 and eight windows divide: the frame, the final flow, and
        the flow network's estimates after each of its blocks, at half the size."""
        with torch.autocast(first.device.type, enabled=False):  # bf16 would put a flow of 20 pixels 0.06 off
            estimates = self.flownet(first, last)
            flow, to_first, to_last = self.refinenet(first, last, estimates[-1])
        warped_first, warped_last = warp(first, flow[:, :2]), warp(last, flow[:, 2:])
        x = self.fuse_block(torch.cat([first, last, warped_first, warped_last], dim=1))
        out = self.transformer(x, to_first, to_last)
        residual, mask = 2 * torch.sigmoid(out[:, :3]) - 1, torch.sigmoid(out[:, 3:])
        frame = warped_first * mask + warped_last * (1 - mask) + residual
        return frame.clamp(0, 1), flow, estimates


def load_vfiformer(path: Path | str) -> VFIformer:
    """Load a checkpoint of the official code, for inference; the shapes of its tensors are those of the network.
    Every tensor is used, or is a constant table that is compared with ours (attention masks at the crop size of the
    official training, relative positions). ValueError: the file cannot be read, or a tensor is missing, unknown or
    of another shape."""
    path = local_folder(path)
    ledger = Ledger(find_state(read_checkpoint(path), None, path), str(path))
    config, crop_size = _shape(ledger)
    model = VFIformer(config)
    model.load_state_dict({name: ledger.take(name, ours.shape) for name, ours in model.state_dict().items()})
    same, wide = shift_masks(crop_size, crop_size, config.window)
    tables = {"attn_mask": same, "attn_mask_x": same, "attn_mask_y": wide}
    tables["relative_position_index"] = relative_positions(config.window)
    for name in ledger.state:
        if (table := tables.get(name.rpartition(".")[2])) is not None and not torch.equal(ledger.take(name), table):
            raise ValueError(f"{path} has other values in the constant table {name} than VFIformer")
    ledger.close()
    return model.eval().requires_grad_(False)


def _shape(ledger: Ledger) -> tuple[VFIformerConfig, int]:
    """The shape that the tensors have, and the crop size of the attention masks."""
    groups = "transformer.layers{}.{}.residual_group.blocks"
    first = groups.format(0, 0)
    masks, positions, _ = ledger.shape(f"{groups.format(0, 1)}.1.attn_mask_x")
    hidden, width = ledger.shape(f"{first}.0.mlp.fc1.weight")
    config = VFIformerConfig(
        flow_channels=tuple(ledger.shape(f"flownet.block{block}.conv1.weight")[0] for block in range(3)),
        context_channels=ledger.shape("fuse_block.0.weight")[0] // 2,
        refine=any(name.startswith("refinenet.rf_block") for name in ledger.state),
        width=width,
        heads=ledger.shape(f"{first}.0.attn.relative_position_bias_table")[1],
        window=math.isqrt(positions),
        depths=tuple(
            (
                ledger.count(groups.format(level, 0) + ".{}.norm1.weight"),
                ledger.count(groups.format(level, 1) + ".{}.norm1.weight"),
            )
            for level in range(4)
        ),
        hidden=hidden // width,
    )
    return config, math.isqrt(masks) * config.window
