"""VFIformer (Lu et al., Video Frame Interpolation with Transformer, CVPR 2022): the frame half way between two.

1. An IFNet-like flow network gives the flow from the unknown middle frame to the first and to the last.
2. Features of both frames at four resolutions are warped by it; the full variant refines the flow on the way, from
   coarse to fine, by local correlations.
3. A U-shaped Swin transformer reads both frames and their warped versions, takes in the warped features at every
   resolution, and gives a blending mask and a residual for the two warped frames.

Unusual here: the second group of blocks of a resolution has *cross-scale* window attention, where a query also
attends to the window around it that is twice as wide and half as fine.

Submodules have the names of the official code, so that its checkpoints load. Its state dict has constant tables
beside the parameters (attention masks for the crop size it was built at, relative positions): they are made here only
with ``crop_size``, and an official file's are compared with ours, not used.

The network works on BGR in [0, 1] of sizes that are multiples of 64, and knows only the exact middle;
:meth:`VFIformer.forward` takes RGB of any size.

Shapes: B images, H x W pixels of the level at hand, C channels, L = H * W, w = window, N = w * w, n windows.
Flows are (B, 4, H, W): x and y displacement, in pixels of their own resolution, to the first and to the last frame.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.vision.interpolation.config import VFIformerConfig
from idc.vision.tokenizer.model import to_frames, to_images

CONFIG_FILE, WEIGHTS_FILE, PREPROCESS_FILE = "config.json", "model.safetensors", "preprocess.json"
PREPROCESS = {"channels": "RGB", "range": [0.0, 1.0], "size": "any"}

OFFICIAL_CROP = 192
"""The crop size of the official training, whose attention masks stand in its checkpoints."""

_MASKED = -100.0


class Middle(NamedTuple):
    """What VFIformer says of two frames.

    Attributes:
        frame: (B, 3, H, W) RGB in [0, 1].
        flow: (B, 4, H, W), the final one.
        estimates: (B, 4, H' / 2, W' / 2) after each of the flow network's three blocks; H' x W' is the padded size.
    """

    frame: Tensor
    flow: Tensor
    estimates: list[Tensor]


class VFIformer(nn.Module):
    """The network.

    Args:
        crop_size: also hold the official constant tables as buffers, the masks for images of this side. They are not
            read: ``forward`` makes the masks of the size at hand.
    """

    def __init__(self, config: VFIformerConfig, crop_size: int | None = None) -> None:
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
        self.transformer = Transformer(config, crop_size)

    def forward(self, first: Tensor, last: Tensor) -> Middle:
        """The middle of two batches of frames: float RGB (B, 3, H, W) in [0, 1], any size."""
        height, width = first.shape[-2:]
        multiple = self.config.pad_multiple
        down, across = -height % multiple, -width % multiple
        top, left = down // 2, across // 2
        first, last = (
            F.pad(images.flip(1), [left, across - left, top, down - top]) for images in (first, last)
        )  # flip: RGB to BGR
        frame, flow, estimates = self.middle_of(first, last)
        inside = (..., slice(top, top + height), slice(left, left + width))
        return Middle(frame[inside].flip(1), flow[inside], estimates)

    def middle_of(self, first: Tensor, last: Tensor) -> Middle:
        """The network itself: BGR, and sizes that ``pad_multiple`` divides."""
        with torch.autocast(first.device.type, enabled=False):  # bf16 would put a flow of 20 pixels 0.06 off
            estimates = self.flownet(first, last)
            flow, to_first, to_last = self.refinenet(first, last, estimates[-1])
        warped_first, warped_last = warp(first, flow[:, :2]), warp(last, flow[:, 2:])
        x = self.fuse_block(torch.cat([first, last, warped_first, warped_last], dim=1))
        out = self.transformer(x, to_first, to_last)
        residual, mask = 2 * torch.sigmoid(out[:, :3]) - 1, torch.sigmoid(out[:, 3:])
        frame = warped_first * mask + warped_last * (1 - mask) + residual
        return Middle(frame.clamp(0, 1), flow, estimates)

    # -- at rest -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write config.json, model.safetensors and preprocess.json."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in self.state_dict().items()}
        save_file(state, folder / WEIGHTS_FILE)
        for name, value in ((PREPROCESS_FILE, PREPROCESS), (CONFIG_FILE, self.config.model_dump(mode="json"))):
            (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> VFIformer:
        """Read what :meth:`save` wrote (a folder), or an official checkpoint (a file), for inference.

        Raises:
            ValueError: a file is missing or damaged, or does not fit the network in every tensor.
        """
        from idc.vision.interpolation.convert import load_official

        path = Path(path)
        return (load_official(path) if path.is_file() else _load_folder(path)).eval().requires_grad_(False)


def warp(image: Tensor, flow: Tensor) -> Tensor:
    """``image`` (B, C, H, W) read at every pixel's place plus ``flow`` (B, 2, H, W); the border is repeated."""
    height, width = flow.shape[-2:]
    rows = torch.linspace(-1, 1, height, device=flow.device, dtype=flow.dtype)[:, None].expand(height, width)
    columns = torch.linspace(-1, 1, width, device=flow.device, dtype=flow.dtype).expand(height, width)
    x = columns + flow[:, 0] * (2 / (image.shape[3] - 1))
    y = rows + flow[:, 1] * (2 / (image.shape[2] - 1))
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=True)


def resized(maps: Tensor, factor: float) -> Tensor:
    return F.interpolate(maps, scale_factor=factor, mode="bilinear", align_corners=False)


def resized_flow(flow: Tensor, factor: float) -> Tensor:
    """A flow at another resolution: its maps and its unit change together."""
    return resized(flow, factor) * factor


# -- flow ----------------------------------------------------------------------------------------------------------


def _conv_prelu(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.PReLU(outputs))


class FlowNet(nn.Module):
    """Three blocks from coarse to fine (IFNet, Huang et al. 2022); each adds to the flow of those before it."""

    def __init__(self, channels: tuple[int, int, int]) -> None:
        super().__init__()
        self.block0 = FlowBlock(6, channels[0], scale=4)
        self.block1 = FlowBlock(6 + 4, channels[1], scale=2)
        self.block2 = FlowBlock(6 + 4, channels[2], scale=1)

    def forward(self, first: Tensor, last: Tensor) -> list[Tensor]:
        """The flow at half resolution after each block."""
        estimates = [self.block0(torch.cat([first, last], dim=1))]
        for block in (self.block1, self.block2):
            flow = resized_flow(estimates[-1], 2)
            warped = [warp(first, flow[:, :2]), warp(last, flow[:, 2:])]
            estimates.append(estimates[-1] + block(torch.cat([*warped, flow], dim=1)))
        return estimates


class FlowBlock(nn.Module):
    """Images at 1 / ``scale`` of their size, to a flow at half their size."""

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
    """Features of both frames at 1, 1/2, 1/4 and 1/8, warped to the middle by a flow that is refined, or enlarged."""

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
        """(flow at full resolution, warped features of the first frame from fine to coarse, those of the last).

        ``flow`` is at half resolution.
        """
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
    """Improves the flow at one resolution by how well each frame's features around the place that the flow points to
    fit the merged features of both frames."""

    points = 9
    """Places compared: 3 x 3 around the one pointed to."""

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
        """Features (B, C, H, W) of the two frames, and a flow of their resolution, to a better flow."""
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
        """The 3 x 3 features around every place, zeros outside the frame, warped: (B, C, points, H, W)."""
        batch, channels, height, width = maps.shape
        patches = F.unfold(maps, 3, padding=1).view(batch, channels * self.points, height, width)
        return warp(patches, flow).view(batch, channels, self.points, height, width)


def _unit(features: Tensor) -> Tensor:
    """Features of length 1 along their channels. The tiny number is under the root: zeros beyond the frame's border
    have a finite gradient."""
    return features * (features.square().sum(1, keepdim=True) + 1e-12).rsqrt()


# -- transformer ---------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """U-shaped: groups of window attention at 1, 1/2, 1/4 and 1/8, and back by transposed convolutions."""

    def __init__(self, config: VFIformerConfig, crop_size: int | None) -> None:
        super().__init__()
        width, c = config.width, config.context_channels
        self.window = config.window
        self.conv_first = nn.Conv2d(2 * c, width, 3, padding=1)
        self.patch_embed = Normalise(width)  # before the blocks of each resolution: one norm for all
        self.layers0, self.layers1, self.layers2, self.layers3 = (
            nn.ModuleList(groups) for groups in _groups(config, crop_size)
        )
        self.conv_after_body0 = self._down(width + 2 * c)
        self.conv_after_body1 = self._down(width + 4 * c)
        self.conv_after_body2 = self._down(width + 8 * c)
        self.conv_up0 = self._up(width + 16 * c)
        self.conv_up1 = self._up(2 * width)
        self.conv_up2 = self._up(2 * width)
        self.conv_last1 = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(width, width, 3, padding=1)
        )
        self.conv_last2 = nn.Sequential(
            nn.Conv2d(width, width // 2, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(width // 2, 4, 3, padding=1)
        )
        self.norm = nn.LayerNorm(width)  # after them
        self.apply(_init)

    def _down(self, inputs: int) -> nn.Sequential:
        width = self.conv_first.out_channels
        return nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.LeakyReLU(0.2),
        )

    def _up(self, inputs: int) -> nn.Sequential:
        width = self.conv_first.out_channels
        return nn.Sequential(nn.ConvTranspose2d(inputs, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2))

    def forward(self, x: Tensor, to_first: list[Tensor], to_last: list[Tensor]) -> Tensor:
        """``x`` (B, 2c, H, W) and the warped features of both frames from fine to coarse, to (B, 4, H, W)."""
        start = self.conv_first(x)
        maps = [self._level(start, self.layers0)]
        downs = (self.conv_after_body0, self.conv_after_body1, self.conv_after_body2)
        for n, (down, groups) in enumerate(zip(downs, (self.layers1, self.layers2, self.layers3), strict=True)):
            maps.append(self._level(down(torch.cat([maps[n], to_first[n], to_last[n]], dim=1)), groups))
        up = self.conv_up0(torch.cat([maps[3], to_first[3], to_last[3]], dim=1))
        up = self.conv_up1(torch.cat([up, maps[2]], dim=1))
        up = self.conv_up2(torch.cat([up, maps[1]], dim=1))
        return cast(Tensor, self.conv_last2(self.conv_last1(torch.cat([up, maps[0]], dim=1)) + start))

    def _level(self, maps: Tensor, groups: nn.ModuleList) -> Tensor:
        x_BHWC = self.patch_embed(maps.permute(0, 2, 3, 1))
        masks = None
        if any(cast(Group, group).shifts for group in groups):
            masks = shift_masks(x_BHWC.shape[1], x_BHWC.shape[2], self.window, x_BHWC.device)
        for group in groups:
            x_BHWC = group(x_BHWC, masks)
        return cast(Tensor, self.norm(x_BHWC)).permute(0, 3, 1, 2)


class Normalise(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(x))


def _groups(config: VFIformerConfig, crop_size: int | None) -> list[list[Group]]:
    """Two groups a resolution."""
    out = []
    for level, depths in enumerate(config.depths):
        rise = sum(config.depths[min(level, len(config.depths) - 2)])
        rates = [config.drop_path * min(1.0, n / max(1, rise - 1)) for n in range(sum(depths))]
        has_cross = level < len(config.depths) - 1
        out.append(
            [
                Group(config, rates[: depths[0]], False, crop_size),
                Group(config, rates[depths[0] :], has_cross, crop_size),
            ]
        )
    return out


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


class Group(nn.Module):
    """Some blocks and a convolution, around which the input is added (a residual Swin group, Liang et al. 2021)."""

    def __init__(self, config: VFIformerConfig, rates: list[float], cross: bool, crop_size: int | None) -> None:
        super().__init__()
        self.shifts = len(rates) > 1
        self.residual_group = Blocks(config, rates, cross, crop_size)
        self.conv = nn.Conv2d(config.width, config.width, 3, padding=1)

    def forward(self, x_BHWC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        y_BCHW = self.conv(self.residual_group(x_BHWC, masks).permute(0, 3, 1, 2))
        return cast(Tensor, y_BCHW).permute(0, 2, 3, 1) + x_BHWC


class Blocks(nn.Module):
    """One block after the other; the windows of every second one are shifted."""

    def __init__(self, config: VFIformerConfig, rates: list[float], cross: bool, crop_size: int | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, n % 2 == 1, rate, cross, crop_size) for n, rate in enumerate(rates))

    def forward(self, x_BHWC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        for block in self.blocks:
            x_BHWC = block(x_BHWC, masks)
        return x_BHWC


class Block(nn.Module):
    """Window attention and MLP, each on the normalised input and added to it."""

    def __init__(
        self, config: VFIformerConfig, shifted: bool, drop_rate: float, cross: bool, crop_size: int | None
    ) -> None:
        super().__init__()
        width, window = config.width, config.window
        self.window = window
        self.shift = window // 2 if shifted else 0
        self.drop_rate = drop_rate
        self.cross = cross
        kind = CrossScaleAttention if cross else WindowAttention
        self.norm1 = nn.LayerNorm(width)
        self.attn = kind(width, window, config.heads, tables=crop_size is not None)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, int(width * config.mlp_ratio))
        if shifted and crop_size is not None:
            own, wide = shift_masks(crop_size, crop_size, window)
            for name, mask in ({"attn_mask_x": own, "attn_mask_y": wide} if cross else {"attn_mask": own}).items():
                self.register_buffer(name, mask)

    def forward(self, x_BHWC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        """``masks``: of shifted windows, see :func:`shift_masks`."""
        height, width = x_BHWC.shape[1:3]
        maps = self.norm1(x_BHWC)
        if self.shift:
            assert masks is not None
            maps = maps.roll((-self.shift, -self.shift), dims=(1, 2))
        else:
            masks = None
        windows = to_windows(maps, self.window)
        if self.cross:
            out = self.attn(windows, to_wide_windows(maps, self.window), masks)
        else:
            out = self.attn(windows, masks)
        maps = from_windows(out, self.window, height, width)
        if self.shift:
            maps = maps.roll((self.shift, self.shift), dims=(1, 2))
        x = x_BHWC + self._kept(maps)
        return x + self._kept(self.mlp(self.norm2(x)))

    def _kept(self, branch: Tensor) -> Tensor:
        """Stochastic depth: in training, all of a sample's branch or nothing of it."""
        if not self.training or not self.drop_rate:
            return branch
        keep = 1 - self.drop_rate
        return branch * (torch.rand(len(branch), 1, 1, 1, device=branch.device) < keep) / keep


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(F.gelu(self.fc1(x))))


class WindowAttention(nn.Module):
    """Attention within windows, with a learned bias for every relative position (Swin, Liu et al. 2021)."""

    relative_position_index: Tensor

    def __init__(self, width: int, window: int, heads: int, tables: bool) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = _bias_table(window, heads)
        self.register_buffer("relative_position_index", relative_positions(window), persistent=tables)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BnNC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = self.qkv(x_BnNC).chunk(3, dim=-1)
        bias = self.relative_position_bias_table[self.relative_position_index]
        return cast(Tensor, self.proj(attend(q, k, v, bias, masks[0] if masks else None, self.heads)))


class CrossScaleAttention(nn.Module):
    """The same queries attend to their own window and to the wide window around it; an MLP merges the two."""

    relative_position_index: Tensor

    def __init__(self, width: int, window: int, heads: int, tables: bool) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table_x = _bias_table(window, heads)
        self.relative_position_bias_table_y = _bias_table(window, heads)
        self.register_buffer("relative_position_index", relative_positions(window), persistent=tables)
        self.qkv = nn.Linear(width, 3 * width)
        self.kv = nn.Linear(width, 2 * width)
        self.merge1 = nn.Linear(2 * width, width)
        self.merge2 = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BnNC: Tensor, wide_BnNC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = self.qkv(x_BnNC).chunk(3, dim=-1)
        bias = self.relative_position_bias_table_x[self.relative_position_index]
        own = attend(q, k, v, bias, masks[0] if masks else None, self.heads)
        k, v = self.kv(wide_BnNC).chunk(2, dim=-1)
        bias = self.relative_position_bias_table_y[self.relative_position_index]
        wide = attend(q, k, v, bias, masks[1] if masks else None, self.heads)
        merged = self.merge2(F.leaky_relu(self.merge1(torch.cat([own, wide], dim=-1)), 0.2))
        return cast(Tensor, self.proj(merged + own))


def attend(q: Tensor, k: Tensor, v: Tensor, bias_NNh: Tensor, mask_nNN: Tensor | None, heads: int) -> Tensor:
    """Scaled dot-product attention in every window: q, k, v and the result are (B, n, N, C)."""
    batch, count, _, channels = q.shape
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(2, 3) for x in (q, k, v))  # (B, n, h, N, C / h)
    bias = bias_NNh.permute(2, 0, 1)
    if mask_nNN is None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        bias = bias[None]
    else:
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))
        bias = (bias + mask_nNN[:, None]).flatten(0, 1)[None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
    return out.reshape(batch, count, heads, -1, channels // heads).transpose(2, 3).flatten(3)


def _bias_table(window: int, heads: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty((2 * window - 1) ** 2, heads), std=0.02))


def relative_positions(window: int) -> Tensor:
    """(N, N) int64: the row of the bias table for each query and key of a window, by how far apart they are."""
    y, x = torch.arange(window).repeat_interleave(window), torch.arange(window).repeat(window)
    down, across = y[:, None] - y[None], x[:, None] - x[None]
    return (down + window - 1) * (2 * window - 1) + across + window - 1


def to_windows(maps_BHWC: Tensor, window: int) -> Tensor:
    """(B, n, N, C): the windows row by row."""
    batch, height, width, channels = maps_BHWC.shape
    parts = maps_BHWC.view(batch, height // window, window, width // window, window, channels)
    return parts.transpose(2, 3).reshape(batch, -1, window * window, channels)


def from_windows(windows_BnNC: Tensor, window: int, height: int, width: int) -> Tensor:
    """The inverse of :func:`to_windows`."""
    batch, _, _, channels = windows_BnNC.shape
    parts = windows_BnNC.view(batch, height // window, width // window, window, window, channels)
    return parts.transpose(2, 3).reshape(batch, height, width, channels)


def to_wide_windows(maps_BHWC: Tensor, window: int) -> Tensor:
    """(B, n, N, C): around each window of :func:`to_windows` the one twice as wide, at half the resolution; the maps
    are mirrored beyond their border."""
    half = resized(maps_BHWC.permute(0, 3, 1, 2), 1 / 2)
    half = F.pad(half, [window // 4] * 4, mode="reflect")
    columns = F.unfold(half, window, stride=window // 2)  # (B, C * N, n)
    return columns.unflatten(1, (maps_BHWC.shape[3], -1)).permute(0, 3, 2, 1)


def shift_masks(height: int, width: int, window: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """What keeps apart, in windows of rolled maps, pixels that were not neighbours before: (n, N, N) with 0 or -100 for
    query and key, with the keys of the same window and with those of the wide window."""
    side = [torch.zeros(size, dtype=torch.long, device=device) for size in (height, width)]
    for part in side:
        part[-window:] = 1
        part[-(window // 2) :] = 2
    regions = (3 * side[0][:, None] + side[1][None]).float()[None, :, :, None]
    own, wide = to_windows(regions, window)[0], to_wide_windows(regions, window)[0]  # (n, N, 1)

    def apart(keys: Tensor) -> Tensor:
        return (keys.transpose(1, 2) != own).float() * _MASKED

    return apart(own), apart(wide)


# -- checkpoints -----------------------------------------------------------------------------------------------------


def _load_folder(folder: Path) -> VFIformer:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not an interpolator: it has no {name}; a training writes <run>/artifact")
    try:
        config = VFIformerConfig.model_validate_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder} is not an interpolator of this version: {error}") from None
    model = VFIformer(config)
    try:
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (RuntimeError, OSError, SafetensorError) as error:
        raise ValueError(f"{folder / WEIGHTS_FILE} does not fit {CONFIG_FILE}: {error}") from None
    return model


def fingerprint_of_weights(path: Path | str) -> str:
    """A short hash of an artifact's config and weights, or of a checkpoint file.

    Raises:
        ValueError: they do not load.
    """
    VFIformer.load(path)
    path = Path(path)
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else [path / CONFIG_FILE, path / WEIGHTS_FILE]:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:20]


# -- use -----------------------------------------------------------------------------------------------------------


class VFIformerMiddle:
    """A middle of :mod:`.middle_frames`: uint8 RGB frames of any size to the one half way between.

    In float32, on a GPU if there is one.

    Args:
        weights: an artifact's folder, or an official checkpoint.
    """

    def __init__(self, weights: Path | str) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = VFIformer.load(weights).to(self.device)

    @torch.inference_mode()
    def __call__(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        if np.array_equal(first, second):
            return first.copy()
        images = to_images(np.stack([first, second])).to(self.device)
        return to_frames(self.model(images[:1], images[1:]).frame)[0]
