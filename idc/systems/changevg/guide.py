"""The guide of ChangeVG: where roads and buildings changed, and a caption. Change-Agent's MCI, or the paper's
equations. What is unusual:

- one SegFormer encoder (of transformers) for both images; two branches read its maps;
- a block of a BI3 layer attends from one image to ReLU(BN(conv(q * (k - q)))): where both images agree, that is
  a constant; only if queries and keys are equal to the last bit does it attend to the keys themselves;
- blocks add depthwise convolutions of three shapes (3x3, 1x5, 5x1) to their inputs first;
- the summary's layers update both images at once, the map's one after the other, with the input added;
- each layer of the word decoder adds its input to its output; the positions are sinusoids; input and output embedding
  are two tensors.

Shapes:
    B pairs   H, W image   C channels of a level   Y, X its height and width   S = Y * X of the last level
    E decoder width   T caption length   V words   K = 3 classes of a map
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import SegformerConfig, SegformerModel

from idc.data.change_masks import CLASSES
from idc.nn.word_decoder import CachingDecoder, WordDecoderLayer, sinusoids
from idc.systems.changevg.config import BackboneConfig, GuideConfig, GuideDecoderConfig
from idc.vision.pretrained import load_pretrained

MEAN, DEVIATION = (0.39073, 0.38623, 0.32989), (0.15329, 0.14628, 0.13648)
"""Of LEVIR's pixels per colour, in [0, 1], by which images are normalised."""


class Guided(NamedTuple):
    """What the guide computes of pairs before the words: the decoder's memory (B, S, E), and logits of the class of
    each pixel (B, K, H, W)."""

    memory: Tensor
    classes: Tensor


# -- the image encoder --------------------------------------------------------------------------------------------


def _encoder(config: BackboneConfig, pretrained: bool) -> SegformerModel:
    """SegFormer's encoder, of random weights or those of ``config.weights``."""
    sizes: dict[str, Any] = {
        "hidden_sizes": config.widths,
        "depths": config.depths,
        "num_attention_heads": config.heads,
        "sr_ratios": config.reductions,
        "strides": (config.first_stride, 2, 2, 2),
    }
    if pretrained and config.weights is not None:
        encoder: Any = load_pretrained(SegformerModel, config.weights, "model.backbone.weights").float()
        differing = [
            f"{name} are {tuple(theirs)}" for name, size in sizes.items()
            if tuple(theirs := getattr(encoder.config, name)) != tuple(size)
        ]  # fmt: skip
        if differing:
            raise ValueError(f"model.backbone.weights={config.weights!r}: {'; '.join(differing)}; give its sizes")
        rates = torch.linspace(0, config.drop_path, sum(config.depths)).tolist()
        blocks = [block for stage in encoder.stages for block in stage.blocks]
        for rate, block in zip(rates, blocks, strict=True):
            if hasattr(block.drop_path, "drop_prob"):
                block.drop_path.drop_prob = rate
    else:
        encoder = SegformerModel(SegformerConfig(**sizes, drop_path_rate=config.drop_path))
    # The authors' epsilon, with which the published weights were trained; transformers leaves torch's 1e-5 here.
    stages: Any = encoder.stages
    for stage in stages:
        for norm in (stage.layer_norm, *(n for b in stage.blocks for n in (b.layernorm_before, b.layernorm_after))):
            norm.eps = 1e-6
    return encoder


# -- BI3 layers ---------------------------------------------------------------------------------------------------


class ShapedConvolutions(nn.Module):
    """Adds to its input what depthwise convolutions of three shapes compute of it; ``momentum`` of the batch norm."""

    def __init__(self, width: int, momentum: float = 0.1):
        super().__init__()
        self.square = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.row = nn.Conv2d(width, width, (1, 5), padding=(0, 2), groups=width)
        self.column = nn.Conv2d(width, width, (5, 1), padding=(2, 0), groups=width)
        self.norm = nn.BatchNorm2d(3 * width, momentum=momentum)
        self.mix = nn.Conv2d(3 * width, width, 1)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        shapes = torch.cat([self.square(x_BCYX), self.row(x_BCYX), self.column(x_BCYX)], dim=1)
        mixed: Tensor = self.mix(F.gelu(self.norm(shapes)))
        return x_BCYX + mixed


class ContrastBlock(nn.Module):
    """A transformer block from one image's map to another's, half of a BI3 layer: to the ``contrast`` of both maps,
    or to the other map, also where the two differ."""

    def __init__(self, width: int, heads: int, dropout: float, contrast: bool = True):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.query_shapes = ShapedConvolutions(width)
        # MCI computes keys and values by two calls of one module on the same map: two updates of 0.1 each.
        self.key_shapes = ShapedConvolutions(width, momentum=0.19)
        self.contrast = (
            nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU()) if contrast else None
        )
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BCYX: Tensor, other_BCYX: Tensor) -> Tensor:
        queries, keys = self.query_shapes(x_BCYX), self.key_shapes(other_BCYX)
        if self.contrast is not None:
            # MCI asks this once for a whole batch, which its inference makes of one pair: asked for each pair, a pair's
            # result does not depend on the others. The two convolutions differ, so that equal images alone do not do
            # it.
            equal_B111 = (queries == keys).flatten(1).all(dim=1).view(-1, 1, 1, 1)
            keys = torch.where(equal_B111, keys, self.contrast(queries * (keys - queries)))
        queries_BSC, keys_BSC = queries.flatten(2).mT, keys.flatten(2).mT
        parts = (self.query(queries_BSC), self.key(keys_BSC), self.value(keys_BSC))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=self.rate if self.training else 0.0)
        x_BSC = self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        x_BSC = self.norm_attention(x_BSC + queries_BSC)
        wide = self.dropout(F.relu(self.widen(x_BSC)))
        out_BSC: Tensor = self.norm_feedforward(self.dropout(self.narrow(wide)) + x_BSC)
        return out_BSC.mT.unflatten(2, x_BCYX.shape[2:])


class Positions(nn.Module):
    """Adds learned positions to a map: half of the channels are of the column, half of the row."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.columns = nn.Parameter(torch.empty(length, width // 2))
        self.rows = nn.Parameter(torch.empty(length, width // 2))

    def forward(self, x_BCYX: Tensor) -> Tensor:
        height, width = x_BCYX.shape[2:]
        columns = self.columns[:width].unsqueeze(0).expand(height, -1, -1)
        rows = self.rows[:height].unsqueeze(1).expand(-1, width, -1)
        return x_BCYX + torch.cat([columns, rows], dim=-1).permute(2, 0, 1)


class Exchange(nn.Module):
    """BI3 layers between the maps of two images. ``in_turn``: the second image reads the first one's new map, and
    inputs are added to outputs (the map's branch); else both are updated at once, and outputs replace inputs (the
    summary's)."""

    def __init__(self, config: GuideConfig, layers: int, in_turn: bool):
        super().__init__()
        width = config.backbone.widths[3]
        self.in_turn = in_turn
        self.positions = Positions(width, config.positions)
        self.layers = nn.ModuleList(
            nn.ModuleList(ContrastBlock(width, config.heads, config.dropout) for _ in range(2)) for _ in range(layers)
        )

    def forward(self, before_BCYX: Tensor, after_BCYX: Tensor) -> tuple[Tensor, Tensor]:
        before, after = self.positions(before_BCYX), self.positions(after_BCYX)
        for halves in self.layers:
            first, second = cast(nn.ModuleList, halves)
            if self.in_turn:
                before = first(before, after) + before
                after = second(after, before) + after
            else:
                before, after = first(before, after), second(after, before)
        return before, after


# -- the map ------------------------------------------------------------------------------------------------------


class LevelFusion(nn.Module):
    """Both images' maps of a level as one: equations (5) to (7), or MCI's."""

    def __init__(self, width: int, outputs: int, paper: bool):
        super().__init__()
        self.difference = (
            nn.Conv2d(width, width, 3, padding=1)
            if paper
            else nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))
        )
        self.fuse = nn.Sequential(
            nn.Conv2d(3 * width, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 1),
        )

    def forward(self, before_BCYX: Tensor, after_BCYX: Tensor) -> Tensor:
        similarity = F.cosine_similarity(before_BCYX, after_BCYX, dim=1).unsqueeze(1)
        change = self.difference(after_BCYX - before_BCYX) + similarity
        fused: Tensor = self.fuse(torch.cat([before_BCYX, change, after_BCYX], dim=1))
        return fused


class MciMap(nn.Module):
    """The class map as MCI draws it: BI3 layers, fusion of each level, sums from coarse to fine."""

    def __init__(self, config: GuideConfig):
        super().__init__()
        widths = config.backbone.widths
        self.exchange = Exchange(config, config.map_layers, in_turn=True)
        self.fusions = nn.ModuleList(LevelFusion(width, 2 * width, paper=False) for width in widths)
        self.finer = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2 * width, 2 * width, 1),
                nn.BatchNorm2d(2 * width),
                nn.ReLU(),
                nn.ConvTranspose2d(2 * width, 2 * below, 4, stride=2, padding=1),
            )
            for width, below in zip(widths, (widths[0], *widths), strict=False)
        )
        stride = config.backbone.first_stride // 2  # `finer` ends at half the first level's stride
        self.head = nn.Sequential(
            nn.ConvTranspose2d(2 * widths[0], widths[0], 2 + stride, stride=stride, padding=1),
            nn.Conv2d(widths[0], len(CLASSES), 1),
        )

    def forward(self, befores: list[Tensor], afters: list[Tensor]) -> Tensor:
        last = self.exchange(befores[-1], afters[-1])
        pairs = [*zip(befores[:-1], afters[:-1], strict=True), last]
        fused = [fusion(*pair) for fusion, pair in zip(self.fusions, pairs, strict=True)]
        x = self.finer[-1](fused[-1])
        for level in reversed(range(len(fused) - 1)):
            x = self.finer[level](fused[level] + x)
        classes: Tensor = self.head(x)
        return classes


class PaperMap(nn.Module):
    """The class map by equations (5) to (11): fusion of each level, BI3 layers on the last, concatenation."""

    def __init__(self, config: GuideConfig):
        super().__init__()
        widths, top = config.backbone.widths, config.backbone.widths[3]
        self.fusions = nn.ModuleList(LevelFusion(width, width, paper=True) for width in widths)
        self.refine = nn.ModuleList(
            ContrastBlock(top, config.heads, config.dropout, contrast=False) for _ in range(config.map_layers)
        )
        self.finer = nn.ModuleList(
            nn.ConvTranspose2d((1 if level == 3 else 2) * width, below, 4, stride=2, padding=1)
            for level, (width, below) in enumerate(zip(widths, (widths[0], *widths), strict=False))
        )
        self.head = nn.Conv2d(widths[0], len(CLASSES) - 1, 1)

    def forward(self, befores: list[Tensor], afters: list[Tensor]) -> Tensor:
        pairs = zip(befores, afters, strict=True)
        fused = [fusion(*pair) for fusion, pair in zip(self.fusions, pairs, strict=True)]
        refined = fused[-1]
        for layer in self.refine:
            refined = layer(refined, refined)
        x = self.finer[-1](refined)
        for level in reversed(range(len(fused) - 1)):
            x = self.finer[level](torch.cat([fused[level], x], dim=1))
        kinds = self.head(x)
        # The background's logit is 0: the largest logit is then a class whose sigmoid is above one half, if there is
        # any.
        return torch.cat([torch.zeros_like(kinds[:, :1]), kinds], dim=1)


# -- the summary --------------------------------------------------------------------------------------------------


class SummaryMemory(nn.Module):
    """Both images' maps as the memory of the word decoder: equations (12) to (14), or MCI's residual block."""

    def __init__(self, width: int, outputs: int, paper: bool):
        super().__init__()
        half = outputs // 2
        self.paper = paper
        self.join = nn.Conv2d(2 * width, outputs, 1)
        narrow, middle, widen = (
            nn.Conv2d(outputs, half, 1),
            nn.Conv2d(half, half, 3, padding=1),
            nn.Conv2d(half, outputs, 1),
        )
        layers = [narrow, middle, nn.BatchNorm2d(half), nn.ReLU(), widen]
        if not paper:
            layers = [narrow, nn.BatchNorm2d(half), nn.ReLU(), *layers[1:], nn.BatchNorm2d(outputs)]
        self.residual = nn.Sequential(*layers)

    def forward(self, before_BCYX: Tensor, after_BCYX: Tensor) -> Tensor:
        x: Tensor = self.join(torch.cat([before_BCYX, after_BCYX], dim=1))
        x = x + self.residual(x)
        return (x if self.paper else F.relu(x)).flatten(2).mT


# -- the words ----------------------------------------------------------------------------------------------------


class GuideDecoderLayer(WordDecoderLayer):
    """Self-attention, cross-attention, feed-forward, each normalised after it was added to its input; dropout of the
    attention weights too."""

    def _entered(self, x_BTE: Tensor) -> Tensor:
        return x_BTE

    def self_attend(self, x_BTE: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        attended = self.self_out(self._attend(query, key, value, causal))
        return cast(Tensor, self.norm_self(x_BTE + self.dropout(attended)))

    def cross_attend_and_mlp(self, x_BTE: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attended = self.cross_out(self._attend(self._split(self.cross_q(x_BTE)), key, value, causal=False))
        x_BTE = self.norm_cross(x_BTE + self.dropout(attended))
        wide = self.dropout(F.relu(self.widen(x_BTE)))
        return cast(Tensor, self.norm_feedforward(x_BTE + self.dropout(self.narrow(wide))))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        rate = self.dropout.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=causal)
        return attended.transpose(1, 2).flatten(2)


class GuideDecoder(CachingDecoder):
    """Predicts caption words from a memory of width E; ids are those of an own :class:`~idc.data.text.Vocabulary`."""

    def __init__(self, config: GuideDecoderConfig, vocabulary_size: int):
        super().__init__()
        self.config = config
        self.words = nn.Parameter(torch.empty(vocabulary_size, config.width).uniform_(-0.1, 0.1))
        self.layers = nn.ModuleList(GuideDecoderLayer(config) for _ in range(config.layers))
        self.out = nn.Linear(config.width, vocabulary_size)
        nn.init.uniform_(self.out.weight, -0.1, 0.1)
        nn.init.zeros_(self.out.bias)
        self.dropout = nn.Dropout(config.dropout)

    def rules(self) -> dict[str, Any]:
        return {**super().rules(), **({"banned": ()} if self.config.special_words else {})}

    def _memory(self, memory_BSD: Tensor) -> Tensor:
        return memory_BSD

    def _positions(self, length: int, device: torch.device) -> Tensor:
        return sinusoids(length, self.config.width, device)

    def _embed(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return cast(Tensor, self.dropout(F.embedding(ids, self.words) + positions))

    def _layer_residual(self, output: Tensor, entered: Tensor) -> Tensor:
        return output + entered

    def _logits(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out(self.dropout(x)))


# -- the whole ----------------------------------------------------------------------------------------------------


class GuideNet(nn.Module):
    """Images of pairs to class maps and to the memory of captions; ``pretrained`` loads ``config.backbone.weights``."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: GuideConfig, vocabulary_size: int, pretrained: bool = False):
        super().__init__()
        self.config = config
        self.encoder = _encoder(config.backbone, pretrained)
        self.map = MciMap(config) if config.map == "mci" else PaperMap(config)
        self.exchange = Exchange(config, config.summary_layers, in_turn=False)
        for part in (self.map, self.exchange):  # MCI's initial weights; those of the others are torch's
            for parameter in part.parameters():
                if parameter.ndim > 1:
                    nn.init.xavier_uniform_(parameter)
        self.memory = SummaryMemory(config.backbone.widths[3], config.decoder.width, paper=config.summary == "paper")
        self.decoder = GuideDecoder(config.decoder, vocabulary_size)
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, 255 * torch.tensor(values).view(3, 1, 1), persistent=False)

    def branches(self) -> dict[str, list[nn.Module]]:
        """The modules that belong to one branch alone, by the name of the goal that trains them."""
        return {"map": [self.map], "summary": [self.exchange, self.memory, self.decoder]}

    def forward(self, images: Tensor) -> Guided:
        """uint8 (B, 2, H, W, 3) to maps and memory."""
        pixels = (images.permute(0, 1, 4, 2, 3).to(self.mean.dtype) - self.mean) / self.deviation
        levels = self._levels(pixels.flatten(0, 1))
        befores, afters = ([level.unflatten(0, (-1, 2))[:, image] for level in levels] for image in range(2))
        memory = self.memory(*self.exchange(befores[-1], afters[-1]))
        classes = self.map(befores, afters)
        if classes.shape[2:] != images.shape[2:4]:
            classes = F.interpolate(classes, images.shape[2:4], mode="bilinear", align_corners=False)
        return Guided(memory, classes)

    def _levels(self, x: Tensor) -> list[Tensor]:
        """The maps of all levels, (2 B, C, Y, X) each, with the images of a pair one after the other."""
        levels = []
        for stage in self.encoder.stages:
            x = stage(x)
            levels.append(x)
        return levels
