"""ProCap from two images to the caption, with random weights: tokens per second by the paper's definition, each
optimisation as a ratio, and the paper's tables 3 and 14.

Tokens per second are counted as in the official code: pairs times steps, padding included, over the seconds from two
images in memory (decoded and resized) to the words. Unlike the official code, each part ends with a device
synchronisation.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from benchmarks.measurement import Environment, Measurement, by_turns, this_environment
from idc.config import ConfigModel
from idc.systems.procap.config import DecoderConfig, EncoderConfig
from idc.vision.tokenizer.config import TokenizerConfig

if TYPE_CHECKING:
    import torch

    from idc.decoding import Decoded
    from idc.systems.procap.captioner import CaptioningModel
    from idc.systems.procap.speed import Optimisations
    from idc.vision.tokenizer.model import ImageTokenizer

Frames = Literal["queries", "given", "even", "drawn"]
"""Frames that fill the procedure between the two images. queries: implicit procedure captioning. The rest is explicit,
with frames: given (stored before), even (interpolated, k at even distances, as in the official code), drawn
(interpolated, k drawn by confidence)."""

TABLE_3 = {1: 766.02, 2: 699.04, 4: 461.24, 7: 270.55}
"""The paper's tokens per second by k, on an A40."""
TABLE_14 = 421.03
"""The paper's tokens per second of explicit procedure captioning, k = 2. The paper does not state
which work on the frames it includes."""


class CaptioningConfig(ConfigModel):
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
    other_keyframes: tuple[int, ...] = (1, 4, 7)
    """Other values of k to compare (table 3)."""
    explicit: tuple[Literal["given", "even", "drawn"], ...] = ("given", "even", "drawn")
    """Kinds of explicit procedure captioning to compare (table 14). given: frames stored before. even: interpolated, k
    at even distances (official). drawn: interpolated, k drawn by confidence; needs features of all l frames."""
    depth: int = Field(3, ge=1, le=8)  # d
    """Recursion depth d of the interpolation: l = 2^d - 1 frames."""
    interpolation: Literal["dis", "blend"] = "dis"
    """Interpolator of middle frames. (Paper: VFIformer.)"""
    batch_sizes: tuple[int, ...] = Field((2,), min_length=1)
    """Batch sizes to measure, in pairs. (Official code: 32.)"""
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
    device: str = "cpu"
    """Torch device, e.g. cuda."""

    def faults(self) -> Iterator[str]:
        if self.explicit and self.num_keyframes > 2**self.depth - 1:
            yield f"num_keyframes: {self.num_keyframes} cannot be taken from 2^depth - 1 = {2**self.depth - 1} frames"

    def speeds(self) -> dict[str, Optimisations]:
        """Ways to run the captioner from the naive one on; each adds one optimisation to the one before."""
        from idc.nn.packed import packing_works
        from idc.systems.procap.speed import Optimisations

        changes: dict[str, dict[str, bool]] = {"cached decoding": {"cached": True}}
        changes["fused attention"] = {"fused_attention": True}
        if self.device == "cpu":
            changes["few images at once"] = {"few_images": True}
        changes["channels-last"] = {"channels_last": True}
        if self.device == "cpu" and packing_works():
            changes["packed linear"] = {"packed": True}
        if self.precision == "bf16":
            changes["bf16"] = {"bf16": True, "packed": False}  # only float32 is packed
        ways = {"naive": Optimisations(cached=False, fused_attention=False)}
        for name, change in changes.items():
            ways[name] = replace(list(ways.values())[-1], **change)
        return ways


# -- the models --------------------------------------------------------------------------------------------------

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


# -- one way to caption ------------------------------------------------------------------------------------------


class Way:
    """Captions pairs with one speed setting and one kind of frames, and records the seconds per part and run.

    Attributes:
        seconds: one dict per run: ``frames`` (interpolation), ``features``, ``encoder``, ``decoder``.
    """

    def __init__(
        self,
        config: CaptioningConfig,
        tokenizer: ImageTokenizer,
        captioner: CaptioningModel,
        speed: Optimisations,
        frames: Frames = "queries",
    ) -> None:
        import torch

        from idc.systems.procap.speed import accelerate

        self.config, self.speed, self.frames = config, speed, frames
        self.device = torch.device(config.device)
        self.tokenizer, self.captioner = twin(tokenizer), twin(captioner)
        accelerate(self.tokenizer, self.captioner.encoder, speed, self.device)
        self.seconds: list[dict[str, float]] = []

    def __call__(self, before: np.ndarray, after: np.ndarray) -> Decoded:
        """Caption uint8 images (B, Y, X, 3); returns word ids."""
        from idc.data.text import BOS, EOS, PAD, UNK
        from idc.decoding import decode
        from idc.systems.procap.speed import running

        laps = [time.perf_counter()]
        with running(self.speed, self.device):
            frames_BGYXC = self._frames(before, after)
            self._lap(laps)
            features_BGPZ = self._features(frames_BGYXC)
            if self.frames == "drawn":
                features_BGPZ = self._drawn(frames_BGYXC, features_BGPZ)
            self._lap(laps)
            procedure = self._procedure(features_BGPZ)
            self._lap(laps)
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
            self._lap(laps)
        parts = ("frames", "features", "encoder", "decoder")
        self.seconds.append(dict(zip(parts, np.diff(laps).tolist(), strict=True)))
        return decoded

    def totals(self) -> list[float]:
        """Seconds per run."""
        return [sum(run.values()) for run in self.seconds]

    def part(self, name: str) -> list[float]:
        """Seconds of one part, per run."""
        return [run[name] for run in self.seconds]

    def _lap(self, laps: list[float]) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()
        laps.append(time.perf_counter())

    def _frames(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """The frames to compute features of, (B, G, Y, X, 3)."""
        from idc.vision.interpolation.middle_frames import interpolate, make_middle

        k, between = self.captioner.encoder.shapes.num_keyframes, 2**self.config.depth - 1
        if self.frames == "queries":
            return np.stack([before, after], axis=1)
        if self.frames == "given":  # the time does not depend on their content
            return np.stack([before, *[after] * k, after], axis=1)
        middle = make_middle(self.config.interpolation)
        frames = np.stack([interpolate(*pair, self.config.depth, middle) for pair in zip(before, after, strict=True)])
        if self.frames == "drawn":
            return frames
        return frames[:, [0, *(round(n * (between + 1) / (k + 1)) for n in range(1, k + 1)), between + 1]]

    def _features(self, frames_BGYXC: np.ndarray) -> torch.Tensor:
        import torch

        from idc.vision.tokenizer.model import to_images

        pictures = frames_BGYXC.reshape(-1, *frames_BGYXC.shape[2:])
        step = self.config.images_at_once
        parts = [
            self.tokenizer.features(to_images(pictures[start : start + step]).to(self.device)).float()
            for start in range(0, len(pictures), step)
        ]
        return torch.cat(parts).unflatten(0, frames_BGYXC.shape[:2])

    def _drawn(self, frames_BGYXC: np.ndarray, features_BGPZ: torch.Tensor) -> torch.Tensor:
        """The features of both images and of k frames drawn by confidence."""
        import torch

        from idc.systems.procap.procedures.similarity import (
            TokenizerSimilarity,
            confidence,
            pair_rng,
            sample_keyframes,
        )

        similarity, k = TokenizerSimilarity(), self.captioner.encoder.shapes.num_keyframes
        kept = []
        for index, (frames, features) in enumerate(zip(frames_BGYXC, features_BGPZ, strict=True)):
            scores = confidence(*similarity(frames, features.cpu().numpy(), []))
            keyframes = sample_keyframes(scores, k, pair_rng(0, str(index)))
            kept.append(features[[0, *keyframes, len(frames) - 1]])
        return torch.stack(kept)

    def _procedure(self, features_BGPZ: torch.Tensor) -> torch.Tensor:
        if self.frames == "queries":
            return self.captioner.procedure(features_BGPZ)
        encoder = self.captioner.encoder
        return encoder._run(encoder.place(encoder.embed_frames(features_BGPZ)), None)


# -- captioning --------------------------------------------------------------------------------------------------


def measure_captioning(config: CaptioningConfig) -> Iterator[Measurement]:
    """The optimisations one by one, the parts, real tokens; then other k (table 3) and explicit procedure captioning
    (table 14), both with the fastest settings.

    Raises:
        ValueError: in float32 an optimisation changes captions.
    """
    import torch

    torch.set_num_threads(config.threads)
    where = this_environment(config.threads, config.device)  # first: later this job dominates the load average
    tokenizer, captioner = make_image_tokenizer(config), make_captioner(config, config.num_keyframes)
    for batch in config.batch_sizes:
        yield from _optimisations(config, where, tokenizer, captioner, batch)
    fastest = list(config.speeds().values())[-1]
    for batch in config.batch_sizes:
        base = Way(config, tokenizer, captioner, fastest)
        others = {k: Way(config, tokenizer, make_captioner(config, k), fastest) for k in config.other_keyframes}
        explicit: dict[str, Way] = {kind: Way(config, tokenizer, captioner, fastest, kind) for kind in config.explicit}
        _run({"base": base, **{str(k): way for k, way in others.items()}, **explicit}, config, batch)
        about = f"{batch} pairs, {_precision(fastest)}"
        for k, way in others.items():
            published = TABLE_3.get(k, 0) / TABLE_3[2] if config.num_keyframes == 2 else 0
            title = f"implicit captioning, k = {k} over k = {config.num_keyframes} ({about})"
            aim = f"paper: {published:.2f}" if published else ""
            yield _rates(config, where, batch, title, aim, way.totals(), base.totals(), seconds=way.seconds)
        for kind, way in explicit.items():
            frames = f"{2**config.depth - 1} frames by {config.interpolation}"
            how = {
                "given": "with frames that were made before",
                "even": f"with {frames}, {config.num_keyframes} of them at even distances",
                "drawn": f"with {frames}, {config.num_keyframes} of them drawn by confidence",
            }[kind]
            aim = f"paper: {TABLE_3[2] / TABLE_14:.2f} (VFIformer)" if config.num_keyframes == 2 else ""
            title = f"captioning, implicit over explicit {how} (k = {config.num_keyframes}, {about})"
            yield _rates(config, where, batch, title, aim, base.totals(), way.totals(), seconds=way.seconds)


def _optimisations(
    config: CaptioningConfig, where: Environment, tokenizer: ImageTokenizer, captioner: CaptioningModel, batch: int
) -> Iterator[Measurement]:
    speeds = config.speeds()
    ways = {name: Way(config, tokenizer, captioner, speed) for name, speed in speeds.items()}
    first = _run(ways, config, batch)
    agreement = {}
    for name, decoded in first.items():
        share = float((decoded.ids == first["naive"].ids).float().mean())
        if not speeds[name].bf16 and share < 1:
            raise ValueError(
                f"captioning: {name} changes {1 - share:.2%} of the naive path's words in fp32 on {config.device}; "
                "only equal captions can be compared"
            )
        agreement[name] = {
            "share_of_equal_tokens": share,
            "largest_difference_of_log_probability": float(
                (decoded.log_probability - first["naive"].log_probability).abs().max()
            ),
        }
    names = list(ways)
    fast, naive = ways[names[-1]], ways["naive"]
    side, encoder, decoder = config.tokenizer.image_size, config.encoder, config.decoder
    size = (
        f"{batch} pairs of {side}x{side}, k = {config.num_keyframes}, encoder {encoder.layers}x{encoder.width}, "
        f"decoder {decoder.layers}x{decoder.width}, {config.steps} steps"
    )
    precision = _precision(fast.speed)
    distinct = len({tuple(row) for row in first["naive"].ids.tolist()})
    title = f"captioning, fast in {precision} over naive ({size})"
    seconds = {name: way.seconds for name, way in ways.items()}
    more = {"seconds": seconds, "agreement": agreement, "distinct_captions": distinct}
    yield _rates(config, where, batch, title, "at least 4", fast.totals(), naive.totals(), **more)
    for before, name in itertools.pairwise(names):
        title = f"captioning, {name} over without ({batch} pairs)"
        yield _rates(config, where, batch, title, "", ways[name].totals(), ways[before].totals())
    for part, what in {"features": "image tokenizer", "encoder": "encoder", "decoder": "decoder"}.items():
        title = f"{what} alone, fast in {precision} over naive ({batch} pairs)"
        yield _rates(config, where, batch, title, "", fast.part(part), naive.part(part))
    real = int(first[names[-1]].lengths.sum()) / batch
    yield Measurement(
        part="captioning",
        title=f"captioning, real tokens over padded ones ({batch} pairs, random weights)",
        unit="tokens/s",
        aim="",
        above=[batch * real / second for second in fast.totals()],
        below=[batch * config.steps / second for second in fast.totals()],
        more={"real_tokens_a_caption": real},
        environment=where,
    )


def _precision(speed: Optimisations) -> str:
    return "bf16" if speed.bf16 else "fp32"


def _run(ways: dict[str, Way], config: CaptioningConfig, batch: int) -> dict[str, Decoded]:
    """Run each way once as warm-up, then the timed runs in turns; returns the captions of the warm-up."""
    before, after = make_pairs(batch, config.tokenizer.image_size)
    first = {name: way(before, after) for name, way in ways.items()}
    for way in ways.values():
        way.seconds.clear()

    def action(way: Way) -> Callable[[], Decoded]:
        return lambda: way(before, after)

    by_turns({name: action(way) for name, way in ways.items()}, config.repeats, lambda: None)
    return first


def _rates(
    config: CaptioningConfig,
    where: Environment,
    batch: int,
    title: str,
    aim: str,
    above: list[float],
    below: list[float],
    **more: Any,
) -> Measurement:
    """Tokens per second of runs of ``above`` seconds over those of runs of ``below`` seconds."""
    tokens = batch * config.steps
    return Measurement(
        part="captioning",
        title=title,
        unit="tokens/s",
        aim=aim,
        above=[tokens / second for second in above],
        below=[tokens / second for second in below],
        more=more,
        environment=where,
    )
