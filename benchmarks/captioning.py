"""ProCap from two images to the caption, with random weights: tokens per second, all optimisations over none.

    python -m benchmarks.captioning
    python -m benchmarks.captioning batch_size=4 precision=bf16 threads=1

By default at the paper's CLEVR-Change size. Tokens per second are counted as in the official code: pairs times steps,
padding included, over the seconds from two images in memory (decoded and resized) to the words; each part ends with a
synchronisation of the device. In float32 both ways must give equal captions.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from pydantic import Field

from benchmarks.measurement import OnDevice, Row, by_turns, markdown, sync_of
from idc.config import cli
from idc.systems.procap.config import DecoderConfig, EncoderConfig
from idc.vision.tokenizer.config import TokenizerConfig

if TYPE_CHECKING:
    import torch

    from idc.nn.decoding import Decoded
    from idc.systems.procap.captioner import CaptioningModel
    from idc.systems.procap.speed import Optimisations
    from idc.vision.tokenizer.model import ImageTokenizer


class CaptioningConfig(OnDevice):
    """From two images to the caption, by default at the paper's CLEVR-Change size (appendix H), random weights."""

    tokenizer: TokenizerConfig = TokenizerConfig()
    """Image tokenizer."""
    encoder: EncoderConfig = EncoderConfig(init="normal")
    """Procedure encoder. `init: normal` runs as fast as the other one and is initialised faster."""
    decoder: DecoderConfig = DecoderConfig()
    """Text decoder."""
    vocabulary_size: int = Field(80, ge=5)
    """Vocabulary size (official for CLEVR-Change: 80)."""
    num_keyframes: int = Field(2, ge=1)  # k
    """Number of key frames, and of query sets, k."""
    batch_size: int = Field(2, ge=1)
    """Pairs of a batch. (Official code: 32.)"""
    images_at_once: int = Field(64, ge=1)
    """Images per tokenizer pass."""
    steps: int = Field(24, ge=1)
    """Tokens per caption, padding included."""
    repeats: int = Field(3, ge=1)
    """Timed runs of each kind, after one warm-up run, whose captions are compared."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: also measure bf16, after the optimisations in float32; needs hardware support."""
    threads: int = Field(2, ge=1)
    """Torch threads."""

    def speeds(self) -> dict[str, Optimisations]:
        """Ways to run the captioner from the naive one on; each adds one optimisation to the one before."""
        from idc.systems.procap.speed import Optimisations
        from idc.training.linears import onednn_is_exact

        changes: dict[str, dict[str, bool]] = {"cached decoding": {"cached": True}}
        changes["fused attention"] = {"fused_attention": True}
        if self.device == "cpu":
            changes["few images at once"] = {"few_images": True}
            changes["channels-last"] = {"channels_last": True}
        if self.device == "cpu" and onednn_is_exact():
            changes["linear layers by oneDNN"] = {"onednn": True}
        if self.precision == "bf16":
            changes["bf16"] = {"bf16": True, "onednn": False}
        ways = {"naive": Optimisations(cached=False, fused_attention=False)}
        for name, change in changes.items():
            ways[name] = replace(list(ways.values())[-1], **change)
        return ways


Model = TypeVar("Model", bound="torch.nn.Module")


def make_image_tokenizer(config: CaptioningConfig) -> ImageTokenizer:
    import torch

    from idc.vision.tokenizer.model import ImageTokenizer

    torch.manual_seed(0)
    return ImageTokenizer(config.tokenizer).to(config.device).eval().requires_grad_(False)


def make_captioner(config: CaptioningConfig, num_keyframes: int) -> CaptioningModel:
    """A captioner with random weights. Attention to the procedure is sharpened and amplified, and the mean over its
    positions is subtracted, so that captions differ between pairs and comparing them is meaningful."""
    import torch

    from idc.systems.procap.captioner import CaptioningModel
    from idc.systems.procap.model import Shapes

    shape = config.tokenizer
    shapes = Shapes(num_keyframes, shape.grid, shape.latent_dim, shape.codebook_size, config.vocabulary_size)
    torch.manual_seed(0)
    captioner = CaptioningModel(config.encoder, config.decoder, shapes)
    captioner.to(config.device).eval()
    with torch.no_grad():
        for name, weight in captioner.decoder.named_parameters():
            if name.endswith("cross_attention.q.weight"):
                weight.mul_(10)
            elif name.endswith("cross_attention.out.weight"):
                weight.mul_(50)
        norm = captioner.decoder.project[-1]
        if isinstance(norm, torch.nn.LayerNorm):
            ends = torch.randn(1, 2, shapes.patches, shapes.feature_dim, device=config.device)
            norm.bias.sub_(captioner.decoder.project(captioner.procedure(ends)).mean((0, 1)))
    return captioner


def twin(model: Model) -> Model:
    """A copy that can be accelerated independently; it shares the weights of ``model``."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def make_pairs(count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth random images, and the same with a square moved; uint8 (count, side, side, 3) each."""
    import cv2

    random = np.random.default_rng(0)
    before = np.stack(
        [
            cv2.resize(random.integers(0, 255, (8, 8, 3), dtype=np.uint8), (side, side), interpolation=cv2.INTER_CUBIC)
            for _ in range(count)
        ]
    )
    after = before.copy()
    size = side // 4
    for old, new in zip(before, after, strict=True):
        colour = random.integers(0, 255, 3)
        for picture in (old, new):
            top, left = random.integers(0, side - size, 2)
            picture[top : top + size, left : left + size] = colour
    return before, after


class Way:
    """Captions pairs with one speed setting, and records the seconds per part and run.

    Attributes:
        seconds: one dict per run: ``features``, ``encoder``, ``decoder``.
    """

    def __init__(
        self, config: CaptioningConfig, tokenizer: ImageTokenizer, captioner: CaptioningModel, speed: Optimisations
    ) -> None:
        import torch

        from idc.systems.procap.speed import accelerate

        self.config, self.speed, self.device = config, speed, torch.device(config.device)
        self.tokenizer, self.captioner = twin(tokenizer), twin(captioner)
        accelerate(self.tokenizer, self.captioner.encoder, speed, self.device)
        self.sync = sync_of(config.device)
        self.seconds: list[dict[str, float]] = []

    def __call__(self, before: np.ndarray, after: np.ndarray) -> Decoded:
        """Caption uint8 images (B, Y, X, 3); returns word ids."""
        from idc.data.text import BOS, EOS, PAD, UNK
        from idc.nn.decoding import decode
        from idc.systems.procap.speed import running

        laps = []

        def lap() -> None:
            self.sync()
            laps.append(time.perf_counter())

        lap()
        with running(self.speed, self.device):
            features_BGPZ = self._features(np.stack([before, after], axis=1))
            lap()
            procedure = self.captioner.procedure(features_BGPZ)
            lap()
            decoded = decode(
                self.captioner.decoder,
                procedure,
                bos=BOS,
                eos=EOS,
                pad=PAD,
                max_length=self.config.steps,
                banned=(UNK, PAD, BOS),
                cached=self.speed.cached,
                stop_early=False,
            )
            lap()
        self.seconds.append(dict(zip(("features", "encoder", "decoder"), np.diff(laps).tolist(), strict=True)))
        return decoded

    def rates(self, part: str | None = None) -> list[float]:
        """Tokens per second of each run, of the whole path or of one part."""
        tokens = self.config.batch_size * self.config.steps
        return [tokens / (sum(run.values()) if part is None else run[part]) for run in self.seconds]

    def _features(self, frames_BGYXC: np.ndarray) -> torch.Tensor:
        import torch

        from idc.vision.tokenizer.model import to_images

        pictures, step = frames_BGYXC.reshape(-1, *frames_BGYXC.shape[2:]), self.config.images_at_once
        parts = [
            self.tokenizer.features(to_images(pictures[start : start + step], self.device)).float()
            for start in range(0, len(pictures), step)
        ]
        return torch.cat(parts).unflatten(0, frames_BGYXC.shape[:2])


def measure_captioning(config: CaptioningConfig) -> Iterator[Row]:
    """The fastest way over the naive one, as a whole and by parts.

    Raises:
        ValueError: in float32 the optimisations change captions.
    """
    import torch

    torch.set_num_threads(config.threads)
    tokenizer, captioner = make_image_tokenizer(config), make_captioner(config, config.num_keyframes)
    slowest, *_, fastest = config.speeds().values()
    naive, fast = (Way(config, tokenizer, captioner, speed) for speed in (slowest, fastest))
    pairs = make_pairs(config.batch_size, config.tokenizer.image_size)
    equal = float((fast(*pairs).ids == naive(*pairs).ids).float().mean())
    if not fastest.bf16 and equal < 1:
        raise ValueError(
            f"captioning: the optimisations change {1 - equal:.2%} of the naive path's words in fp32 on "
            f"{config.device}; only equal captions can be compared"
        )
    naive.seconds.clear()
    fast.seconds.clear()
    by_turns({"naive": lambda: naive(*pairs), "fast": lambda: fast(*pairs)}, config.repeats)
    side, encoder, decoder = config.tokenizer.image_size, config.encoder, config.decoder
    size = (
        f"{config.batch_size} pairs of {side}x{side}, k = {config.num_keyframes}, encoder {encoder.layers}x"
        f"{encoder.width}, decoder {decoder.layers}x{decoder.width}, {config.steps} steps"
    )
    precision = "bf16" if fast.speed.bf16 else "fp32"
    title = f"captioning, fast in {precision} over naive ({size})"
    yield Row(title, "tokens/s", fast.rates(), naive.rates(), more={"equal_tokens": f"{equal:.4f}"})
    for part, what in {"features": "image tokenizer", "encoder": "encoder", "decoder": "decoder"}.items():
        title = f"{what} alone, fast in {precision} over naive"
        yield Row(title, "tokens/s", fast.rates(part), naive.rates(part))


def main() -> None:
    config = cli(CaptioningConfig, __doc__, local=False, overwrite=False).config
    print(markdown(measure_captioning(config), config.device))


if __name__ == "__main__":
    main()
