"""DifferenceNet. What is unusual:

- its input is the difference of the two images, not the images;
- a caption is a class: no words are generated.

Shapes: B pairs, S side, K captions; differences (B, 3, S, S) to logits (B, K).
"""

from __future__ import annotations

from torch import nn


class DifferenceNet(nn.Sequential):
    def __init__(self, side: int, captions: int):
        down = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        super().__init__(*down, nn.Linear(32 * (side // 4) ** 2, captions))
