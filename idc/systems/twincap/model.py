"""TwinCap, a small difference captioner. What is unusual:

- one convolutional stem reads both images from their pixels, end to end; the trunk compares by [f_a, f_b, f_b - f_a];
- the trunk points at a place in each image, by a softmax over the map, and reads the stem's features there; heads and
  decoder see these two looks next to the map itself;
- dense heads find the objects of each image and what they look like, and teach the trunk to point at what changed:
  that map is the change map, so it is about objects and not about pixels;
- where several objects may change, the peaks of these maps are looks of their own: features of both images near a peak,
  compared among the peaks;
- pooled heads classify the change and the changed object.

Shapes:
    B pairs   H, W image   h, w = H/4, W/4 stem   S = H/8 * W/8 trunk positions   C stem channels   D trunk channels
    E decoder width   N objects of an image   P peaks   a trailing 2 or a leading 2 after B: before, after
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.schema import CHANGE_TYPES
from idc.nn.config import WordDecoderConfig
from idc.nn.word_decoder import WordDecoder
from idc.rendered.captions import ATTRIBUTES
from idc.systems.twincap.config import ModelConfig, SupervisionConfig
from idc.systems.twincap.truth import PARTS, VALUES

SIZES = [len(VALUES[name]) for name in ATTRIBUTES]
"""Number of values of each attribute."""


class Encoded(NamedTuple):
    """All that the network computes of a pair before the words.

    Attributes:
        memory: of the decoder, (B, S + 3 + P, E): the trunk's positions, the pooled one, the looks before and after,
            and the peaks.
        pooled: (B, 2 D + 2 C): attended and mean features of the trunk, and the looks.
        features: of the stem, (B, 2, C, h, w).
        change: logits of where the trunk points, (B, 2, h, w): with dense heads the changed objects' heat maps.
        cells: numbers of the cells at which the peaks are, row * w + column, (B, P).
        parts: logits of the peaks' parts in the change, (B, P, parts); None without peaks.
    """

    memory: Tensor
    pooled: Tensor
    features: Tensor
    change: Tensor
    cells: Tensor
    parts: Tensor | None


class Block(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(*_conv(channels, channels), *_conv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _conv(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), ChannelNorm(outputs), nn.ReLU()]


class ChannelNorm(nn.Module):
    """Layer norm over the channels at each position of (B, channels, height, width). In bf16 on a CPU it takes half the
    time of a group norm."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class AttributeHead(nn.Module):
    """Logits of the attributes of an object."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, sum(SIZES))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(..., width) to one (..., values) per attribute."""
        return self.linear(x).split(SIZES, dim=-1)


class PeakLayer(nn.Module):
    """Self-attention among the peaks of a pair, then a feed-forward part, with pre-norm and residuals."""

    def __init__(self, config: WordDecoderConfig):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_self, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, config.feedforward), nn.Linear(config.feedforward, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, E) to the same."""
        parts = self.qkv(self.norm_self(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norm_feedforward(x))))


class Peaks(nn.Module):
    """Looks at the peaks of heat maps: each is of one object, or of one before and one after at the same position."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.count, width = config.peaks, config.decoder.width
        self.read = nn.Linear(2 * config.stem_channels[1] + config.channels + 4, width)
        self.rows = nn.Parameter(0.1 * torch.randn(config.height // 4, width))
        self.columns = nn.Parameter(0.1 * torch.randn(config.width // 4, width))
        self.layers = nn.ModuleList(PeakLayer(config.decoder) for _ in range(config.peak_layers))
        self.norm = nn.LayerNorm(width)
        self.parts = nn.Linear(width, len(PARTS))

    def forward(self, features: Tensor, trunk: Tensor, objects: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """The looks (B, P, E) and their cells (B, P).

        Args:
            features: of the stem, (B, 2, C, h, w).
            trunk: (B, D, h/2, w/2).
            objects, change: logits of the heat maps, (B, 2, h, w).
        """
        cells = peak_cells(objects, change, self.count)
        width = features.shape[-1]
        row, column = cells // width, cells % width
        near = near_objects(features, objects).flatten(1, 2)
        maps = torch.cat([near, objects, change], dim=1)
        at_peaks = _at(maps, cells)
        context = _at(trunk, row // 2 * (width // 2) + column // 2)
        looks = self.read(torch.cat([at_peaks, context], dim=-1)) + self.rows[row] + self.columns[column]
        for layer in self.layers:
            looks = layer(looks)
        return self.norm(looks), cells


def peak_cells(objects: Tensor, change: Tensor, count: int) -> Tensor:
    """Numbers of the cells, row * w + column, at which the heat maps (logits, (B, 2, h, w)) peak: (B, count), the
    highest peak first. A peak is a cell that none of its eight neighbours exceeds. Its height is the larger probability
    of an object in the two images plus that of a change: what changed comes before what stayed; the rest is ground."""
    height = (objects.detach().float().sigmoid().amax(1) + change.detach().float().sigmoid().amax(1)).unsqueeze(1)
    peaks = height >= F.max_pool2d(height, 3, 1, 1)
    ranks = height + 2.0 * peaks  # heights are at most 2, so all peaks come before all other cells
    return ranks.flatten(1).topk(count, dim=1).indices


def near_objects(features: Tensor, objects: Tensor) -> Tensor:
    """For each cell the features (B, 2, C, h, w) of the object that is there or in a cell next to it: their mean
    over these nine cells, by the exponential of the objects' heat, logits (B, 2, h, w). An object is not in quite
    the same cell of both images where the camera moved."""
    heat_logits = objects.float()
    weights = (heat_logits - heat_logits.amax(dim=(-2, -1), keepdim=True)).clamp_min(-30.0).exp().unsqueeze(2)
    sums = F.avg_pool2d((features.float() * weights).flatten(0, 1), 3, 1, 1)
    near = sums / F.avg_pool2d(weights.flatten(0, 1), 3, 1, 1)
    return near.unflatten(0, features.shape[:2]).to(features.dtype)


def _at(maps: Tensor, cells: Tensor) -> Tensor:
    """Columns of maps (B, C, h, w) at cells (B, P): (B, P, C)."""
    return maps.flatten(2).gather(2, cells.unsqueeze(1).expand(-1, maps.shape[1], -1)).transpose(1, 2)


class TwinNet(nn.Module):
    """Images of pairs to captions, attributes of the change, and heat maps, by the heads of ``supervision``."""

    def __init__(self, config: ModelConfig, supervision: SupervisionConfig, vocabulary_size: int):
        super().__init__()
        self.config = config
        half, quarter = config.stem_channels
        width, twin = config.channels, config.stem == "twin"
        self.stem = nn.Sequential(
            *_conv(3 if twin else 9, half, 2),
            *_conv(half, quarter, 2),
            *[Block(quarter) for _ in range(config.stem_blocks)],
        )
        copies = (3 if config.difference else 2) if twin else 1
        self.merge = nn.Sequential(*_conv(copies * quarter, width, 2))
        self.rows = nn.Parameter(0.1 * torch.randn(width, config.height // 8, 1))
        self.columns = nn.Parameter(0.1 * torch.randn(width, 1, config.width // 8))
        self.trunk = nn.Sequential(*[Block(width) for _ in range(config.blocks)])
        self.attend = nn.Linear(width, 1)
        self.point = nn.Conv2d(width, 8, 1)
        pooled = 2 * width + 2 * quarter
        self.to_memory, self.pooled_to_memory, self.look_to_memory = (
            nn.Linear(size, config.decoder.width) for size in (width, pooled, quarter)
        )
        self.sides = nn.Parameter(0.1 * torch.randn(2, config.decoder.width))
        self.norm = nn.LayerNorm(config.decoder.width)
        self.decoder = WordDecoder(config.decoder, vocabulary_size)
        self.kind = nn.Linear(pooled, len(CHANGE_TYPES)) if supervision.heads else None
        self.changed = nn.ModuleList(AttributeHead(pooled) for _ in range(2)) if supervision.heads else None
        heads = (1 if twin else 2) if supervision.dense else 0
        self.objects = nn.ModuleList(nn.Conv2d(quarter, 1, 1) for _ in range(heads)) if heads else None
        self.looks = nn.ModuleList(AttributeHead(quarter) for _ in range(heads)) if heads else None
        for head in (self.point, *(self.objects or ())):
            nn.init.constant_(head.bias, -3.0)  # type: ignore[arg-type]  # few cells belong to an object
        self.peaks = Peaks(config) if config.peaks else None

    def forward(self, images: Tensor) -> Encoded:
        """uint8 (B, 2, H, W, 3) to what the heads and the decoder read."""
        pixels = images.permute(0, 1, 4, 2, 3).to(self.rows.dtype) / 127.5 - 1
        if self.config.stem == "twin":
            features = self.stem(pixels.flatten(0, 1).contiguous(memory_format=torch.channels_last))
            features = features.unflatten(0, (-1, 2))
            parts = [features[:, 0], features[:, 1]]
            if self.config.difference:
                parts.append(parts[1] - parts[0])
        else:
            before, after = pixels.unbind(1)
            stacked = torch.cat([before, after, 2 * (before - after)], dim=1)
            features = (
                self.stem(stacked.contiguous(memory_format=torch.channels_last)).unsqueeze(1).expand(-1, 2, -1, -1, -1)
            )
            parts = [features[:, 0]]
        x = self.trunk(self.merge(torch.cat(parts, dim=1)) + self.rows + self.columns)
        tokens = x.flatten(2).transpose(1, 2)
        weights = self.attend(tokens).softmax(dim=1)
        change = F.pixel_shuffle(self.point(x), 2)
        looks = (change.flatten(2).softmax(dim=2).unsqueeze(2) * features.flatten(3)).sum(dim=3)
        pooled = torch.cat([(weights * tokens).sum(dim=1), tokens.mean(dim=1), looks.flatten(1)], dim=1)
        memory = torch.cat(
            [
                self.to_memory(tokens),
                self.pooled_to_memory(pooled).unsqueeze(1),
                self.look_to_memory(looks) + self.sides,
            ],
            dim=1,
        )
        memory = self.norm(memory)
        if self.peaks is None:
            return Encoded(memory, pooled, features, change, tokens.new_zeros((len(x), 0), dtype=torch.long), None)
        peaks, cells = self.peaks(features, x, self.object_maps(features), change)
        parts = self.peaks.parts(peaks)
        return Encoded(torch.cat([memory, peaks], dim=1), pooled, features, change, cells, parts)

    def object_maps(self, features: Tensor) -> Tensor:
        """Logits of the objects' heat maps, (B, 2, h, w), of :attr:`Encoded.features`."""
        assert self.objects is not None
        first, second = (self.objects[0], self.objects[-1])
        return torch.stack([first(features[:, 0]), second(features[:, 1])], dim=1).squeeze(2)

    def object_looks(self, features: Tensor, circles: Tensor) -> list[Tensor]:
        """Logits of the attributes of objects, one (B, 2, N, values) per attribute, of the features in the cell that
        holds the centre of the object; ``circles`` (B, 2, N, 3) are a batch's ``places``."""
        assert self.looks is not None
        height, width = features.shape[-2:]
        column = (circles[..., 0] * width).long().clamp(0, width - 1)
        row = (circles[..., 1] * height).long().clamp(0, height - 1)
        cells = (row * width + column).unsqueeze(2).expand(-1, -1, features.shape[2], -1)
        cell_features = features.flatten(3).gather(3, cells).transpose(2, 3)
        sides = [head(cell_features[:, image]) for image, head in enumerate((self.looks[0], self.looks[-1]))]
        return [torch.stack(pair, dim=1) for pair in zip(*sides, strict=True)]

    def change_map(self, encoded: Encoded) -> Tensor:
        """Where the changed objects are, or were, (B, h, w) in [0, 1]: the larger of the two heat maps."""
        return encoded.change.sigmoid().amax(dim=1)


def heat(circles: Tensor, labels: Tensor, height: int, width: int) -> Tensor:
    """Target heat maps of objects, (..., height, width): 1 at an object's centre, one half at its radius.
    ``circles`` (..., N, 3) are a batch's ``places``; negative ``labels`` (..., N) are of no object."""
    y = (torch.arange(height, device=circles.device) + 0.5) / height
    x = (torch.arange(width, device=circles.device) + 0.5) / width
    radius = circles[..., 2, None].clamp_min(0.75 / width)  # less than a cell would not be seen
    across = ((x - circles[..., 0, None]) / radius) ** 2
    down = ((y - circles[..., 1, None]) * (height / width) / radius) ** 2
    near = torch.exp2(-(down.unsqueeze(-1) + across.unsqueeze(-2)))
    near = near * (labels >= 0)[..., None, None]
    return near.amax(dim=-3) if circles.shape[-2] else near.sum(dim=-3)
