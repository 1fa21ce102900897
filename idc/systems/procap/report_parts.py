"""Parts of a run's page about ProCap's models: images as the tokenizer keeps them, and imagined frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from idc.report.collect import Imagine, Reconstruct


def reconstruction(folder: str) -> Reconstruct:
    """A function that encodes and decodes images with the tokenizer."""
    import numpy as np
    import torch

    from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_frames, to_images

    tokenizer = ImageTokenizer.load(folder).eval()

    @torch.no_grad()
    def reconstruct(images: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        frames = np.stack([prepare_frame(image, tokenizer.config) for image in images])
        back = to_frames(tokenizer.decode(tokenizer.encode(to_images(frames))))
        return list(zip(frames, back, strict=True))

    return reconstruct


def imagination(artifact: str) -> Imagine:
    """A function that returns the frames ProCap imagines between two images."""
    from idc.systems.procap.imagine import Imaginer

    imaginer = Imaginer(artifact)

    def imagine(before: np.ndarray, after: np.ndarray, caption: str) -> list[tuple[str, np.ndarray]]:
        return [(imagined.way, imagined.frames) for imagined in imaginer(before, after, caption)]

    return imagine
