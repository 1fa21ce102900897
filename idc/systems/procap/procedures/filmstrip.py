"""A stored procedure as a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from idc.data.images import decode_image


def filmstrip(row: dict[str, Any]) -> np.ndarray:
    """Draw a stored procedure: its frames side by side, a bar of confidence under each frame between (if all are
    stored), a white bar for key frames; uint8 (H', W', 3)."""
    frames = [decode_image(data) for data in row["frames"]]
    height, width = frames[0].shape[:2]
    bar = max(8, height // 6)
    strip = np.zeros((height + bar, width * len(frames), 3), np.uint8)
    weights = np.asarray(row["confidence"])
    low, high = float(weights.min()), float(weights.max())
    for n, frame in enumerate(frames):
        left = n * width
        strip[:height, left : left + width] = frame
        if 1 <= n <= len(weights) and len(frames) == len(weights) + 2:
            share = 0.5 if high - low < 1e-6 else (weights[n - 1] - low) / (high - low)
            top = height + bar - max(2, round(share * bar))
            colour = (255, 255, 255) if n in row["keyframes"] else (90, 130, 220)
            strip[top:, left + 2 : left + width - 2] = colour
    return strip
