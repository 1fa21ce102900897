"""What captioning and stage 1 cost, with random weights: tokens a second by the paper's definition, each means of speed
as a ratio, the paper's tables 3 and 14, and how much of the hardware stage 1 uses.

Tokens a second are counted as the official code does, whatever the captions say: pairs times steps, padding included,
over the seconds from two images in memory to the words, with the device's work done at the end of each part (the
official code does not wait for it). Images are decoded and resized before.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from benchmarks.measurement import DecodingConfig, Environment, Measurement, by_turns, environment, measure_decoding
from idc.config import ConfigModel
from idc.systems.procap.config import DecoderConfig, EncoderConfig, SpeedConfig
from idc.vision.tokenizer.config import TokenizerConfig

if TYPE_CHECKING:
    import torch

    from idc.decoding import Decoded
    from idc.systems.procap.captioner import CaptioningModel
    from idc.systems.procap.model import ProcedureEncoder, Shapes
    from idc.systems.procap.task import PretrainTask
    from idc.vision.tokenizer.model import ImageTokenizer

Frames = Literal["queries", "given", "even", "drawn"]
"""What stands between the two images: queries (implicit procedure captioning), or frames (explicit): given with the
images; interpolated, k of them at even distances (so in the official code); interpolated, k drawn by confidence."""

TABLE_3 = {1: 766.02, 2: 699.04, 4: 461.24, 7: 270.55}
"""The paper's tokens a second by k, on an A40."""
TABLE_14 = 421.03
"""The paper's tokens a second of explicit procedure captioning, k = 2. What of the frames it counts is not said."""


class Speed(NamedTuple):
    """Optimisations and number format of a captioner."""

    config: SpeedConfig
    precision: Literal["fp32", "bf16"] = "fp32"


class CaptioningConfig(ConfigModel):
    """From two images to the caption, by default at the paper's CLEVR-Change size (appendix H), random weights."""

    tokenizer: TokenizerConfig = TokenizerConfig()
    """Image tokenizer."""
    encoder: EncoderConfig = EncoderConfig(init="normal")
    """Procedure encoder. `init: normal` is as fast as the other one, and made in no time."""
    decoder: DecoderConfig = DecoderConfig()
    """Text decoder."""
    vocabulary_size: int = Field(80, ge=5)
    """Words (the official CLEVR-Change vocabulary)."""
    num_keyframes: int = Field(2, ge=1)  # k
    """Sets of queries, and of key frames, k."""
    other_keyframes: tuple[int, ...] = (1, 4, 7)
    """Other k to compare with (table 3)."""
    explicit: tuple[Literal["given", "even", "drawn"], ...] = ("given", "even", "drawn")
    """Which kinds of explicit procedure captioning to compare with (table 14). given: frames that were stored before.
    even: interpolated, k at even distances (official). drawn: interpolated, k drawn by confidence, for which all l
    frames need features."""
    depth: int = Field(3, ge=1, le=8)  # d
    """Recursion depth d of the interpolation: l = 2^d - 1 frames."""
    interpolation: Literal["dis", "blend"] = "dis"
    """What makes a frame half way between two. (Paper: VFIformer.)"""
    batch_sizes: tuple[int, ...] = Field((2,), min_length=1)
    """Pairs captioned at a time, each measured. (The official code: 32.)"""
    images_at_once: int = Field(64, ge=1)
    """Images in one pass through the tokenizer."""
    steps: int = Field(24, ge=1)
    """Tokens of each caption, padding counted."""
    repeats: int = Field(3, ge=1)
    """Runs of each kind; one more before them is not counted, and its captions are compared."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: the last means of speed, after those that leave float32 alone; for hardware that has it."""
    compile: bool = False
    """Measure torch.compile too."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Where to run, e.g. cuda."""

    def faults(self) -> Iterator[str]:
        if self.explicit and self.num_keyframes > 2**self.depth - 1:
            yield f"num_keyframes: {self.num_keyframes} cannot be taken from 2^depth - 1 = {2**self.depth - 1} frames"

    def speeds(self) -> dict[str, Speed]:
        """Ways to run the captioner from the naive one on, each with one more optimisation than the one before."""
        means: dict[str, dict[str, Any]] = {
            "cached decoding": {"cached": True},
            "fused attention": {"fused_attention": True},
        }
        if self.device != "cpu":
            means["channels-last"] = {"channels_last": True}
        if self.precision == "bf16":
            means["bf16"] = {}
        if self.compile:
            means["torch.compile"] = {"compile": True}
        speed = Speed(SpeedConfig(cached=False, fused_attention=False, channels_last=False))
        ways = {"naive": speed}
        for name, change in means.items():
            speed = Speed(speed.config.model_copy(update=change), "bf16" if name == "bf16" else speed.precision)
            ways[name] = speed
        return ways


class PretrainingConfig(ConfigModel):
    """A step of stage 1, by default at the paper's CLEVR-Change size, with random weights and samples."""

    encoder: EncoderConfig = EncoderConfig(init="normal")
    """Procedure encoder."""
    grid: tuple[int, int] = (14, 14)
    """Patches down and across."""
    feature_dim: int = Field(256, ge=1)
    """Width of a patch's feature. Samples have their features stored, so the tokenizer takes no part."""
    codebook_size: int = Field(1024, ge=2)
    """Codes."""
    vocabulary_size: int = Field(80, ge=5)
    """Words."""
    num_keyframes: int = Field(2, ge=1)  # k
    """Key frames k."""
    batch_size: int = Field(8, ge=1)
    """Samples of a step; each goes through the encoder three times (eq. 5)."""
    repeats: int = Field(3, ge=1)
    """Steps of each kind; one more before them is not counted."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: autocast, for hardware that has it."""
    compile: bool = False
    """Measure torch.compile too."""
    peak_tflops: float | None = Field(None, gt=0)
    """The device's published peak in this precision, 10^12 operations a second (A40 bf16: 150, A100: 312, H100: 989).
    Not given: the fastest of three large matrix products on it, which is less."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Where to run, e.g. cuda."""


# -- the models --------------------------------------------------------------------------------------------------

Model = TypeVar("Model", bound="torch.nn.Module")


def make_tokenizer(config: CaptioningConfig) -> ImageTokenizer:
    import torch

    from idc.vision.tokenizer.model import ImageTokenizer

    torch.manual_seed(0)
    return ImageTokenizer(config.tokenizer).to(config.device).eval().requires_grad_(False)


def make_captioner(config: CaptioningConfig, num_keyframes: int) -> CaptioningModel:
    """Random weights, but attention to the procedure is made sharper and stronger, and what all its positions have in
    common is taken off: so captions tell pairs apart and are worth comparing."""
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
    """A copy that can be accelerated by itself; the weights are those of ``model``."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def make_pairs(count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth random pictures, and the same with a square moved, uint8 (count, side, side, 3) each."""
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
    """Captions pairs in one way, and keeps the seconds of each part of each run.

    Attributes:
        seconds: of each run: ``frames`` (interpolation), ``features``, ``encoder``, ``decoder``.
    """

    def __init__(
        self,
        config: CaptioningConfig,
        tokenizer: ImageTokenizer,
        captioner: CaptioningModel,
        speed: Speed,
        frames: Frames = "queries",
    ) -> None:
        import torch

        from idc.systems.procap.speed import accelerate

        self.config, self.speed, self.frames = config, speed, frames
        self.device = torch.device(config.device)
        self.tokenizer, self.captioner = twin(tokenizer), twin(captioner)
        accelerate(self.tokenizer, self.captioner.encoder, speed.config, self.device)
        self.seconds: list[dict[str, float]] = []

    def __call__(self, before: np.ndarray, after: np.ndarray) -> Decoded:
        """Captions of uint8 pictures (B, Y, X, 3) as word ids."""
        from idc.data.text import BOS, EOS, PAD, UNK
        from idc.decoding import decode
        from idc.systems.procap.speed import running

        laps = [time.perf_counter()]
        with running(self.speed.config, "bfloat16" if self.speed.precision == "bf16" else "float32", self.device):
            frames_BGYXC = self._frames(before, after)
            self._lap(laps)
            features_BGPZ = self._features(frames_BGYXC)
            if self.frames == "drawn":
                features_BGPZ = self._drawn(frames_BGYXC, features_BGPZ)
            self._lap(laps)
            procedure = self._procedure(features_BGPZ)
            self._lap(laps)
            found = decode(
                self.captioner.decoder,
                procedure,
                bos=BOS,
                eos=EOS,
                pad=PAD,
                max_length=self.config.steps,
                banned=(UNK, PAD, BOS),
                cached=self.speed.config.cached,
                stop_early=False,
            )
            self._lap(laps)
        parts = ("frames", "features", "encoder", "decoder")
        self.seconds.append(dict(zip(parts, np.diff(laps).tolist(), strict=True)))
        return found

    def totals(self) -> list[float]:
        """Seconds of each run."""
        return [sum(run.values()) for run in self.seconds]

    def part(self, name: str) -> list[float]:
        """Seconds of a part of each run."""
        return [run[name] for run in self.seconds]

    def _lap(self, laps: list[float]) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()
        laps.append(time.perf_counter())

    def _frames(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """The frames that get features, (B, G, Y, X, 3)."""
        from idc.vision.interpolation.middle_frames import interpolate, make_middle

        k, between = self.captioner.encoder.shapes.num_keyframes, 2**self.config.depth - 1
        if self.frames == "queries":
            return np.stack([before, after], axis=1)
        if self.frames == "given":  # what they show does not matter to the time
            return np.stack([before, *[after] * k, after], axis=1)
        middle = make_middle(self.config.interpolation)
        made = np.stack([interpolate(*pair, self.config.depth, middle) for pair in zip(before, after, strict=True)])
        if self.frames == "drawn":
            return made
        return made[:, [0, *(round(n * (between + 1) / (k + 1)) for n in range(1, k + 1)), between + 1]]

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
    """The means of speed one after another, the parts, real tokens; then other k (table 3) and explicit procedure
    captioning (table 14), both in the fastest way.

    Raises:
        ValueError: in float32 two ways say different captions.
    """
    import torch

    torch.set_num_threads(config.threads)
    where = environment(config.threads, config.device)  # first, as the load average will soon be this job's own
    tokenizer, captioner = make_tokenizer(config), make_captioner(config, config.num_keyframes)
    for batch in config.batch_sizes:
        yield from _means(config, where, tokenizer, captioner, batch)
    fastest = list(config.speeds().values())[-1]
    for batch in config.batch_sizes:
        base = Way(config, tokenizer, captioner, fastest)
        others = {k: Way(config, tokenizer, make_captioner(config, k), fastest) for k in config.other_keyframes}
        explicit: dict[str, Way] = {kind: Way(config, tokenizer, captioner, fastest, kind) for kind in config.explicit}
        _run({"base": base, **{str(k): way for k, way in others.items()}, **explicit}, config, batch)
        about = f"{batch} pairs, {fastest.precision}"
        for k, way in others.items():
            published = TABLE_3.get(k, 0) / TABLE_3[2] if config.num_keyframes == 2 else 0
            title = f"implicit captioning, k = {k} over k = {config.num_keyframes} ({about})"
            aim = f"paper: {published:.2f}" if published else ""
            yield _rates(config, where, batch, title, aim, way.totals(), base.totals(), seconds=way.seconds)
        for kind, way in explicit.items():
            made = f"{2**config.depth - 1} frames by {config.interpolation}"
            how = {
                "given": "with frames that were made before",
                "even": f"with {made}, {config.num_keyframes} of them at even distances",
                "drawn": f"with {made}, {config.num_keyframes} of them drawn by confidence",
            }[kind]
            aim = f"paper: {TABLE_3[2] / TABLE_14:.2f} (VFIformer)" if config.num_keyframes == 2 else ""
            title = f"captioning, implicit over explicit {how} (k = {config.num_keyframes}, {about})"
            yield _rates(config, where, batch, title, aim, base.totals(), way.totals(), seconds=way.seconds)


def _means(
    config: CaptioningConfig, where: Environment, tokenizer: ImageTokenizer, captioner: CaptioningModel, batch: int
) -> Iterator[Measurement]:
    speeds = config.speeds()
    ways = {name: Way(config, tokenizer, captioner, speed) for name, speed in speeds.items()}
    first = _run(ways, config, batch)
    agreement = {}
    for name, found in first.items():
        share = float((found.ids == first["naive"].ids).float().mean())
        if speeds[name].precision == "fp32" and share < 1:
            raise ValueError(
                f"captioning: with {name} {1 - share:.2%} of the words are others than the naive path's, in fp32 on "
                f"{config.device}"
            )
        agreement[name] = {
            "share_of_equal_tokens": share,
            "largest_difference_of_log_probability": float(
                (found.log_probability - first["naive"].log_probability).abs().max()
            ),
        }
    names = list(ways)
    fast, naive = ways[names[-1]], ways["naive"]
    side, encoder, decoder = config.tokenizer.image_size, config.encoder, config.decoder
    size = (
        f"{batch} pairs of {side}x{side}, k = {config.num_keyframes}, encoder {encoder.layers}x{encoder.width}, "
        f"decoder {decoder.layers}x{decoder.width}, {config.steps} steps"
    )
    precision = fast.speed.precision
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


def _run(ways: dict[str, Way], config: CaptioningConfig, batch: int) -> dict[str, Decoded]:
    """Each way once, then the counted runs by turns; what the first ones said."""
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
    """Tokens a second of what took ``above`` seconds over that of what took ``below``."""
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


def measure_decoder(config: DecodingConfig) -> list[Measurement]:
    """The decoder alone, cached over uncached, at the paper's CLEVR-Change size with random weights."""
    import torch

    from idc.systems.procap.captioner import CaptioningModel
    from idc.systems.procap.model import Shapes

    torch.manual_seed(0)
    torch.set_num_threads(config.threads)
    shapes = Shapes(
        num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=config.vocabulary_size
    )
    encoder = EncoderConfig(init="normal")  # as fast as the other one, and made in no time
    captioner = CaptioningModel(encoder, DecoderConfig(), shapes).to(config.device).eval()
    memory = torch.randn(config.batch_size, shapes.frames * shapes.patches, encoder.width, device=config.device)
    ends = torch.randn(config.encoder_batch, 2, shapes.patches, shapes.feature_dim, device=config.device)
    without = copy.deepcopy(captioner.decoder)
    project, without.project = without.project, torch.nn.Sequential()

    @torch.no_grad()
    def encode() -> torch.Tensor:
        return captioner.procedure(ends)

    return measure_decoding(config, captioner.decoder, (without, project), memory, encode)


# -- stage 1 -----------------------------------------------------------------------------------------------------


class Step:
    """A training step of stage 1 on one random batch, the same for all steps."""

    def __init__(
        self,
        config: PretrainingConfig,
        folder: str,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
        everywhere: bool = False,
        compiled: bool = False,
    ):
        import torch

        from idc.training.config import TrainConfig
        from idc.training.context import LocalContext
        from idc.training.data import to_device
        from idc.training.engines import make_engine, param_groups

        torch.manual_seed(0)
        task = make_task(config)
        if everywhere:
            task.encoder.__class__ = everywhere_encoder()
        context = LocalContext(folder, use_gpu=config.device.startswith("cuda"))
        groups, schedules = param_groups(task)
        train = TrainConfig(steps=1, batch_size=config.batch_size, precision=precision, compile=compiled)
        self.engine = make_engine(task.to(context.device).train(), groups, context, train)
        self.batch = to_device(random_batch(config), context.device)
        self.rates = [1e-4 for _ in schedules]

    def __call__(self) -> float:
        loss, _ = self.engine.accumulate(self.batch)
        self.engine.step(self.rates)
        return float(loss)


def make_task(config: PretrainingConfig) -> PretrainTask:
    from idc.data.text import PAD
    from idc.systems.procap.config import PretrainJob
    from idc.systems.procap.task import PretrainTask

    def no_pixels(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the samples hold features")

    return PretrainTask(PretrainJob(procedures="random", encoder=config.encoder), make_shapes(config), PAD, no_pixels)


def make_shapes(config: PretrainingConfig) -> Shapes:
    from idc.systems.procap.model import Shapes

    return Shapes(config.num_keyframes, config.grid, config.feature_dim, config.codebook_size, config.vocabulary_size)


def everywhere_encoder() -> type[ProcedureEncoder]:
    """The procedure encoder whose last block computes every position, also those that no loss reads."""
    from idc.systems.procap.model import ProcedureEncoder

    class Everywhere(ProcedureEncoder):
        def modeling(
            self,
            features_BFPZ: torch.Tensor,
            masked_BFP: torch.Tensor,
            ids_BN: torch.Tensor,
            pad: int,
            read_CFP: torch.Tensor | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            align, consistency, frames = super().modeling(features_BFPZ, masked_BFP, ids_BN, pad)
            assert read_CFP is not None
            return align, consistency, frames[: len(read_CFP)][read_CFP.flatten(1)]

    return Everywhere


def random_batch(config: PretrainingConfig) -> dict[str, torch.Tensor]:
    """A batch as :func:`idc.systems.procap.data.collate` makes it, with the masks that training draws."""
    import torch

    from idc.data.text import SPECIALS
    from idc.systems.procap.config import MaskingConfig
    from idc.systems.procap.data import draw_mask

    random, torch_random = np.random.default_rng(0), torch.Generator().manual_seed(0)
    shapes, count = make_shapes(config), config.batch_size
    masks = [draw_mask(MaskingConfig(), shapes, random) for _ in range(count)]
    frames = (count, shapes.frames, shapes.patches)

    def words() -> torch.Tensor:
        size = (count, config.encoder.text_length)
        return torch.randint(len(SPECIALS), shapes.vocabulary_size, size, generator=torch_random)

    return {
        "frames": torch.randn(*frames, shapes.feature_dim, generator=torch_random).half(),
        "tokens": torch.randint(0, shapes.codebook_size, frames, generator=torch_random),
        "masked": torch.from_numpy(np.stack([masked for masked, _ in masks])),
        "entire": torch.from_numpy(np.stack([entire for _, entire in masks])),
        "text": words(),
        "other_text": words(),
        "warped": torch.randn(*frames, shapes.feature_dim, generator=torch_random).half(),
        "redone": torch.zeros(0, 1, 1, 3, dtype=torch.uint8),
        "redone_at": torch.zeros(0, 2, dtype=torch.int64),
    }


def measure_pretraining(config: PretrainingConfig) -> Iterator[Measurement]:
    """The last block where it is read over everywhere; bf16 over fp32; compiled over not; the use of the hardware.

    Raises:
        ValueError: the two kinds of last block have different losses in float32.
    """
    import torch

    torch.set_num_threads(config.threads)
    where = environment(config.threads, config.device)
    cuda = config.device.startswith("cuda")
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder:
        steps = {"everywhere": Step(config, folder, everywhere=True), "read": Step(config, folder)}
        if config.precision == "bf16":
            steps["bf16"] = Step(config, folder, precision="bf16")
        if config.compile:
            steps["compiled"] = Step(config, folder, precision=config.precision, compiled=True)
        actions: dict[str, Callable[[], Any]] = dict(steps)
        first = {name: action() for name, action in actions.items()}  # also the warm-up
        if abs(first["read"] - first["everywhere"]) > 1e-4 * abs(first["everywhere"]):
            raise ValueError(f"stage 1: the loss is {first['read']} where read, {first['everywhere']} everywhere")
        seconds = by_turns(actions, config.repeats, sync)
        fastest = list(steps)[-1]
        plain = "bf16" if config.precision == "bf16" else "read"
        work = count_flops(steps[plain])  # compiled kernels are not seen by the counter; they do the same work
    encoder = config.encoder
    size = f"{config.batch_size} samples, k = {config.num_keyframes}, encoder {encoder.layers}x{encoder.width}"

    def measured(title: str, unit: str, aim: str, above: Sequence[float], below: Sequence[float], **more: Any) -> Any:
        return Measurement(
            part="pretraining", title=f"{title} ({size}, {more.pop('precision', 'fp32')})", unit=unit, aim=aim,
            above=list(above), below=list(below), more=more, environment=where,
        )  # fmt: skip

    rates = {name: [config.batch_size / second for second in values] for name, values in seconds.items()}
    yield measured("stage 1, last block only where it is read over everywhere", "samples/s", "", rates["read"],
                   rates["everywhere"], losses=first)  # fmt: skip
    if config.precision == "bf16":
        yield measured("stage 1, bf16 over fp32", "samples/s", "", rates["bf16"], rates["read"], precision="bf16")
    if config.compile:
        yield measured("stage 1, torch.compile over without", "samples/s", "", rates["compiled"], rates[plain],
                       precision=config.precision)  # fmt: skip
    peak, source = config.peak_tflops, "the published peak"
    if peak is None:
        peak, source = matrix_tflops(config), "its fastest matrix product"
    done = [work / second / 1e12 for second in seconds[fastest]]
    yield measured(
        f"stage 1, model FLOP/s over {source}", "TFLOP/s", "at least 0.40 on a GPU", done, [peak] * len(done),
        precision=config.precision, flops_of_a_step=work,
    )  # fmt: skip


def count_flops(action: Callable[[], Any]) -> int:
    """Operations of the matrix products and convolutions of a step, forward and backward, counted as it runs; scores
    that fused attention computes a second time in its backward pass count once."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    def backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
        return 2 * int(sdpa_flop_count(query, key, value))

    aten = torch.ops.aten
    kinds = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
    formulas: dict[Any, Any] = {}
    for kind in kinds:
        formulas[getattr(aten, f"_scaled_dot_product_{kind}")] = forward
        formulas[getattr(aten, f"_scaled_dot_product_{kind}_backward")] = backward
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        action()
    return int(counter.get_total_flops())


def matrix_tflops(config: PretrainingConfig) -> float:
    """10^12 operations a second of the fastest of three products of large square matrices."""
    import torch

    cuda = config.device.startswith("cuda")
    side = 8192 if cuda else 2048
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    left, right = (torch.randn(side, side, device=config.device, dtype=dtype) for _ in range(2))
    product: dict[str, Callable[[], Any]] = {"product": lambda: left @ right}
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    by_turns(product, 1, sync)
    return 2 * side**3 / min(by_turns(product, 3, sync)["product"]) / 1e12
