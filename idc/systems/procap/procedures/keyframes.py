"""Key frames of pairs that are in no folder of procedures, for captioners that read frames between the images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.stages import Interpolate, Score
from idc.vision.tokenizer.model import ImageTokenizer, to_images


class KeyFrames:
    """Computes the features of before, key frames and after of a pair, as a folder of procedures with these settings
    stores them.

    The draw by confidence is seeded by the settings' seed and the pixels of the two images: the same pair always has
    the same draw, but not that of its stored procedure, which is seeded by the pair's id.

    Raises:
        ValueError: weights that the settings name cannot be loaded, or the key frames were drawn with captions.
    """

    def __init__(self, config: ProceduresConfig, tokenizer: ImageTokenizer) -> None:
        if "text" in config.kinds:
            raise ValueError(
                "procedure=frames: the key frames of these procedures were drawn with captions, which a new pair does "
                "not have; build procedures with strategy=visual or uniform"
            )
        here = config.model_copy(update={"cpus_per_actor": float(torch.get_num_threads())})  # stages set the threads
        settings = here.model_dump(mode="json")
        self.config, self.tokenizer = config, tokenizer
        self.interpolate = Interpolate(settings, tokenizer.config.model_dump(mode="json"))
        self.score = Score(settings)

    @torch.no_grad()
    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Tensor:
        """Features (B, k + 2, n_I, d_z) of pairs of uint8 RGB images (H, W, 3) of any sizes."""
        drawn = [_digest(before, after) for before, after in zip(befores, afters, strict=True)]
        batch = self.interpolate({"pair_id": drawn, "before": list(befores), "after": list(afters)})
        pixels, at_once = np.concatenate(batch["frames"]), self.config.frames_per_batch
        passes = [
            self.tokenizer.features(to_images(pixels[start : start + at_once], self.tokenizer.codebook.device)).float()
            for start in range(0, len(pixels), at_once)
        ]
        last = self.config.num_between + 1
        features = torch.cat(passes).unflatten(0, (len(befores), last + 1))
        # Similarity reads them in float16, as the stage between tokenizer and score does.
        stored = list(features.to(torch.float16).cpu().numpy())
        batch = self.score({**batch, "features": stored, "captions": [[] for _ in befores]})
        which = torch.tensor([[0, *chosen, last] for chosen in batch["keyframes"]], device=features.device)
        return features[torch.arange(len(which), device=features.device).unsqueeze(1), which]


def _digest(before: np.ndarray, after: np.ndarray) -> str:
    digest = hashlib.sha256()
    for image in (before, after):
        digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()
