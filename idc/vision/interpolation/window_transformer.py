"""VFIformer's U-shaped Swin transformer: groups of window attention at 1, 1/2, 1/4 and 1/8 of the image's size.

Unusual here: the second group of blocks of each resolution but the last has *cross-scale* window attention: a query
attends to its own window and to a window around it that is twice as wide and half as fine. The masks of shifted windows
are computed for the size at hand; the official checkpoints' stored tables are only compared with ours.

Shapes: B images, H x W positions of the level at hand, C channels, w = window, N = w * w positions and n windows of an
image, h heads.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MASKED = -100.0


def resized(maps: Tensor, factor: float) -> Tensor:
    return F.interpolate(maps, scale_factor=factor, mode="bilinear", align_corners=False)


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


class WindowTransformer(nn.Module):
    """U-shaped: groups of window attention at 1, 1/2, 1/4 and 1/8, then back up by transposed convolutions."""

    def __init__(self, config: VFIformerConfig) -> None:
        super().__init__()
        width, c = config.width, config.context_channels
        self.window = config.window
        self.conv_first = nn.Conv2d(2 * c, width, 3, padding=1)
        self.patch_embed = Normalise(width)  # before the blocks of each resolution: one norm for all
        self.layers0, self.layers1, self.layers2, self.layers3 = (
            nn.ModuleList([Group(config, first, cross=False), Group(config, second, cross=level < 3)])
            for level, (first, second) in enumerate(config.depths)
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
        """Map ``x`` (B, 2c, H, W) and the warped features of both frames, from fine to coarse, to (B, 4, H, W)."""
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


class Group(nn.Module):
    """A residual Swin group (Liang et al. 2021): blocks and a convolution with a skip connection around them."""

    def __init__(self, config: VFIformerConfig, depth: int, cross: bool) -> None:
        super().__init__()
        self.shifts = depth > 1
        self.residual_group = Blocks(config, depth, cross)
        self.conv = nn.Conv2d(config.width, config.width, 3, padding=1)

    def forward(self, x_BHWC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        y_BCHW = self.conv(self.residual_group(x_BHWC, masks).permute(0, 3, 1, 2))
        return cast(Tensor, y_BCHW).permute(0, 2, 3, 1) + x_BHWC


class Blocks(nn.Module):
    """A sequence of blocks; the windows of every second one are shifted."""

    def __init__(self, config: VFIformerConfig, depth: int, cross: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(WindowBlock(config, n % 2 == 1, cross) for n in range(depth))

    def forward(self, x_BHWC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        for block in self.blocks:
            x_BHWC = block(x_BHWC, masks)
        return x_BHWC


class WindowBlock(nn.Module):
    """Window attention and MLP, both pre-norm with a skip connection."""

    def __init__(self, config: VFIformerConfig, shifted: bool, cross: bool) -> None:
        super().__init__()
        width, window = config.width, config.window
        self.window = window
        self.shift = window // 2 if shifted else 0
        self.cross = cross
        kind = CrossScaleAttention if cross else WindowAttention
        self.norm1 = nn.LayerNorm(width)
        self.attn = kind(width, window, config.heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, width * config.hidden)

    def forward(self, x_BHWC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        """``masks`` is for shifted windows, see :func:`shift_masks`."""
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
        x = x_BHWC + maps
        return cast(Tensor, x + self.mlp(self.norm2(x)))


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

    def __init__(self, width: int, window: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = _bias_table(window, heads)
        self.register_buffer("relative_position_index", relative_positions(window), persistent=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BnNC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = self.qkv(x_BnNC).chunk(3, dim=-1)
        bias = self.relative_position_bias_table[self.relative_position_index]
        return cast(Tensor, self.proj(attend(q, k, v, bias, masks[0] if masks else None, self.heads)))


class CrossScaleAttention(nn.Module):
    """Queries attend to their own window and to the wide window around it; an MLP merges the two results."""

    relative_position_index: Tensor

    def __init__(self, width: int, window: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table_x = _bias_table(window, heads)
        self.relative_position_bias_table_y = _bias_table(window, heads)
        self.register_buffer("relative_position_index", relative_positions(window), persistent=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.kv = nn.Linear(width, 2 * width)
        self.merge1 = nn.Linear(2 * width, width)
        self.merge2 = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BnNC: Tensor, wide_BnNC: Tensor, masks: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = self.qkv(x_BnNC).chunk(3, dim=-1)
        bias = self.relative_position_bias_table_x[self.relative_position_index]
        same = attend(q, k, v, bias, masks[0] if masks else None, self.heads)
        k, v = self.kv(wide_BnNC).chunk(2, dim=-1)
        bias = self.relative_position_bias_table_y[self.relative_position_index]
        wide = attend(q, k, v, bias, masks[1] if masks else None, self.heads)
        merged = self.merge2(F.leaky_relu(self.merge1(torch.cat([same, wide], dim=-1)), 0.2))
        return cast(Tensor, self.proj(merged + same))


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
    """(N, N) int64: row of the bias table for each query and key of a window, by their relative position."""
    y, x = torch.arange(window).repeat_interleave(window), torch.arange(window).repeat(window)
    down, across = y[:, None] - y[None], x[:, None] - x[None]
    return (down + window - 1) * (2 * window - 1) + across + window - 1


def to_windows(maps_BHWC: Tensor, window: int) -> Tensor:
    """Cut maps into windows (B, n, N, C), row by row."""
    batch, height, width, channels = maps_BHWC.shape
    parts = maps_BHWC.view(batch, height // window, window, width // window, window, channels)
    return parts.transpose(2, 3).reshape(batch, -1, window * window, channels)


def from_windows(windows_BnNC: Tensor, window: int, height: int, width: int) -> Tensor:
    """The inverse of :func:`to_windows`."""
    batch, _, _, channels = windows_BnNC.shape
    parts = windows_BnNC.view(batch, height // window, width // window, window, window, channels)
    return parts.transpose(2, 3).reshape(batch, height, width, channels)


def to_wide_windows(maps_BHWC: Tensor, window: int) -> Tensor:
    """Cut the wide windows (B, n, N, C): around each window of :func:`to_windows` the one twice as wide, at half the
    resolution; the maps are mirrored beyond their border."""
    half = resized(maps_BHWC.permute(0, 3, 1, 2), 1 / 2)
    half = F.pad(half, [window // 4] * 4, mode="reflect")
    columns = F.unfold(half, window, stride=window // 2)  # (B, C * N, n)
    return columns.unflatten(1, (maps_BHWC.shape[3], -1)).permute(0, 3, 2, 1)


def shift_masks(height: int, width: int, window: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Attention masks (n, N, N) of 0 or -100 that separate, in windows of rolled maps, pixels that were not neighbours
    before rolling: (for the keys of the same window, for those of the wide window)."""
    side = [torch.zeros(size, dtype=torch.long, device=device) for size in (height, width)]
    for part in side:
        part[-window:] = 1
        part[-(window // 2) :] = 2
    regions = (3 * side[0][:, None] + side[1][None]).float()[None, :, :, None]
    same, wide = to_windows(regions, window)[0], to_wide_windows(regions, window)[0]  # (n, N, 1)

    def apart(keys: Tensor) -> Tensor:
        return (keys.transpose(1, 2) != same).float() * _MASKED

    return apart(same), apart(wide)
