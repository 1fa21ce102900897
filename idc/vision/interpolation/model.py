"""VFIformer (Lu et al., Video Frame Interpolation with Transformer, CVPR 2022): the frame half way between two.

1. An IFNet-like flow network estimates the flow from the unknown middle frame to the first and to the last, at half
   resolution; images are warped by reading backwards.
2. It warps features of both frames at four resolutions; the full variant refines the flow on the way, from 1/8 to full
   resolution, by local correlations (the small official variant only enlarges it).
3. A U-shaped Swin transformer (``window_transformer.py``) reads both frames and their warped versions, takes in the
   warped features at every resolution, and predicts a blending mask and a residual for the two warped frames.

Unusual here: the network predicts only the exact middle, not any time between; it works on BGR in [0, 1] and on sizes
that are multiples of 64 (:meth:`VFIformer.forward` takes RGB of any size, pads and crops); its flow runs in float32
even under bf16 autocast. Submodules have the names of the official code, so that its checkpoints load.

Shapes: B images or features (B, C, H, W), c = context_channels. Flows are (B, 4, H, W): x and y displacement, in pixels
of their own resolution, to the first and to the last frame."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.remote_copies import local_folder
from idc.training.foreign import Ledger, find_state, read_checkpoint
from idc.vision.interpolation.window_transformer import (
    VFIformerConfig,
    WindowTransformer,
    relative_positions,
    resized,
    shift_masks,
)


def warp(image: Tensor, flow: Tensor) -> Tensor:
    """Sample ``image`` (B, C, H, W) at every pixel's place plus ``flow`` (B, 2, H, W); the border is repeated."""
    height, width = flow.shape[-2:]
    rows = torch.linspace(-1, 1, height, device=flow.device, dtype=flow.dtype)[:, None].expand(height, width)
    columns = torch.linspace(-1, 1, width, device=flow.device, dtype=flow.dtype).expand(height, width)
    x = columns + flow[:, 0] * (2 / (image.shape[3] - 1))
    y = rows + flow[:, 1] * (2 / (image.shape[2] - 1))
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=True)


def resized_flow(flow: Tensor, factor: float) -> Tensor:
    """Resize a flow: its maps and its unit change together."""
    return resized(flow, factor) * factor


def _conv_prelu(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.PReLU(outputs))


class FlowNet(nn.Module):
    """Three blocks from coarse to fine (IFNet, Huang et al. 2022); each adds to the flow of those before it."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.block0 = FlowBlock(6, channels[0], scale=4)
        self.block1 = FlowBlock(6 + 4, channels[1], scale=2)
        self.block2 = FlowBlock(6 + 4, channels[2], scale=1)

    def forward(self, first: Tensor, last: Tensor) -> list[Tensor]:
        """Estimate the flow at half resolution, once after each block."""
        estimates = [self.block0(torch.cat([first, last], dim=1))]
        for block in (self.block1, self.block2):
            flow = resized_flow(estimates[-1], 2)
            warped = [warp(first, flow[:, :2]), warp(last, flow[:, 2:])]
            estimates.append(estimates[-1] + block(torch.cat([*warped, flow], dim=1)))
        return estimates


class FlowBlock(nn.Module):
    """Looks at images at 1 / ``scale`` of their size and estimates a flow at half their size."""

    def __init__(self, inputs: int, channels: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.conv0 = nn.Sequential(_conv_prelu(inputs, channels // 2, 2), _conv_prelu(channels // 2, channels, 2))
        self.convblock = nn.Sequential(*(_conv_prelu(channels, channels) for _ in range(8)))
        self.conv1 = nn.ConvTranspose2d(channels, 4, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.scale > 1:
            x = resized(x, 1 / self.scale)
        x = self.conv0(x)
        flow: Tensor = self.conv1(self.convblock(x) + x)
        return resized(flow, self.scale) if self.scale > 1 else flow


class WarpedFeatures(nn.Module):
    """Computes features of both frames at 1, 1/2, 1/4 and 1/8 and warps them to the middle by a refined flow (in the
    small variant by the enlarged one)."""

    def __init__(self, channels: int, refine: bool) -> None:
        super().__init__()
        self.refine = refine
        self.conv1 = ConvPair(3, channels, stride=1)
        self.conv2 = ConvPair(channels, 2 * channels, stride=2)
        self.conv3 = ConvPair(2 * channels, 4 * channels, stride=2)
        self.conv4 = ConvPair(4 * channels, 8 * channels, stride=2)
        if refine:
            self.rf_block1 = FlowRefiner(channels)
            self.rf_block2 = FlowRefiner(2 * channels)
            self.rf_block3 = FlowRefiner(4 * channels)
            self.rf_block4 = FlowRefiner(8 * channels)

    def forward(self, first: Tensor, last: Tensor, flow: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The flow at full resolution, of that at half resolution, and the warped features of the first and of the
        last frame, from fine to coarse."""
        maps = [self.conv1(torch.cat([first, last]))]
        for layer in (self.conv2, self.conv3, self.conv4):
            maps.append(layer(maps[-1]))
        firsts, lasts = ([level.chunk(2)[side] for level in maps] for side in (0, 1))
        if self.refine:
            flow = resized_flow(flow, 1 / 4)
            refiners = (self.rf_block4, self.rf_block3, self.rf_block2, self.rf_block1)
            for refiner, a, b in zip(refiners, reversed(firsts), reversed(lasts), strict=True):
                if refiner is not self.rf_block4:
                    flow = resized_flow(flow, 2)
                flow = refiner(a, b, flow)
        else:
            flow = resized_flow(flow, 2)
        return flow, _warped(firsts, flow[:, :2]), _warped(lasts, flow[:, 2:])


def _warped(maps: list[Tensor], flow: Tensor) -> list[Tensor]:
    """Maps at 1, 1/2, ... warped by the flow at 1."""
    out = []
    for level in maps:
        out.append(warp(level, flow))
        flow = resized_flow(flow, 1 / 2)
    return out


class ConvPair(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv_prelu(inputs, outputs, stride)
        self.conv2 = _conv_prelu(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(self.conv1(x)))


class FlowRefiner(nn.Module):
    """Corrects the flow at one resolution, by comparing each frame's features around the place that the flow points to
    with the merged features of both frames."""

    points = 9
    """Positions compared: 3 x 3 around the one pointed to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.occl_convs = nn.Sequential(
            nn.Conv2d(2 * c, c, 1), nn.PReLU(c), nn.Conv2d(c, c, 1), nn.PReLU(c), nn.Conv2d(c, 1, 1), nn.Sigmoid()
        )
        self.corr_convs = nn.Sequential(nn.Conv2d(self.points, c, 1), nn.PReLU(c), nn.Conv2d(c, c, 1), nn.PReLU(c))
        self.flow_convs = nn.Sequential(*_conv_prelu(2, c), *_conv_prelu(c, c))
        self.motion_convs = _conv_prelu(2 * c, c)
        self.gru = nn.Sequential(*_conv_prelu(3 * c + 2, c), *_conv_prelu(c, c))
        self.flow_head = nn.Sequential(*_conv_prelu(c, c), nn.Conv2d(c, 2, 3, padding=1))

    def forward(self, first: Tensor, last: Tensor, flow: Tensor) -> Tensor:
        """Correct ``flow`` by the features (B, C, H, W) of the two frames at its resolution."""
        flows = (flow[:, :2], flow[:, 2:])
        around = [self._around(maps, part) for maps, part in zip((first, last), flows, strict=True)]
        there = [patch[:, :, self.points // 2] for patch in around]
        share = self.occl_convs(torch.cat(there, dim=1))
        merged = there[0] * share + there[1] * (1 - share)
        unit = _unit(merged)
        better = []
        for patch, maps, part in zip(around, there, flows, strict=True):
            correlation = (unit[:, :, None] * _unit(patch)).sum(1)  # (B, points, H, W)
            motion = self.motion_convs(torch.cat([self.corr_convs(correlation), self.flow_convs(part)], dim=1))
            hidden = self.gru(torch.cat([merged, maps, motion, part], dim=1))
            better.append(part + self.flow_head(hidden))
        return torch.cat(better, dim=1)

    def _around(self, maps: Tensor, flow: Tensor) -> Tensor:
        """The 3 x 3 features around every position, zeros outside the frame, warped: (B, C, points, H, W)."""
        batch, channels, height, width = maps.shape
        patches = F.unfold(maps, 3, padding=1).view(batch, channels * self.points, height, width)
        return warp(patches, flow).view(batch, channels, self.points, height, width)


def _unit(features: Tensor) -> Tensor:
    """Normalise features to length 1 along their channels. Epsilon is under the root, so that the zeros beyond the
    frame's border have a finite gradient."""
    return features * (features.square().sum(1, keepdim=True) + 1e-12).rsqrt()


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
