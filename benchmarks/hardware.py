"""The processor's peak, found by measurement, and the share of it that each part of ProCap reaches.

The peak is that of the fastest of large products and convolutions, MKL's and oneDNN's: which library uses the
processor's instructions differs between makers. Peak and parts are measured by turns, since a machine's speed changes.
Only operations of products, convolutions and attention are counted; the time is that of everything.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from benchmarks.captioning import CaptioningConfig, Way, make_captioner, make_image_tokenizer, make_pairs
from benchmarks.measurement import Environment, Measurement, by_turns, this_environment
from benchmarks.pretraining import PretrainingConfig, TrainingStep, count_flops
from idc.config import ConfigModel

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "bf16"]


class HardwareConfig(ConfigModel):
    """The processor's peak and the shares of it. Sizes, threads and batch sizes of the parts are those of the sections
    `captioning` and `pretraining`."""

    side: int = Field(2048, ge=64)
    """Side of the square matrices of the large products."""
    repeats: int = Field(3, ge=1)
    """Timed runs of each kind, after one warm-up."""


class TimedStep:
    """A training step whose forward pass, backward pass and optimizer are timed apart.

    Attributes:
        seconds: one dict per call: ``forward``, ``backward``, ``optimizer``.
    """

    def __init__(self, config: PretrainingConfig, folder: str, stage: Literal[1, 2]) -> None:
        self.step = TrainingStep(config, folder, stage=stage)
        self.seconds: list[dict[str, float]] = []

    def __call__(self) -> None:
        from idc.training.engines import TorchEngine

        engine = self.step.engine
        assert isinstance(engine, TorchEngine)
        began = time.perf_counter()
        loss = engine.module(self.step.batch)[0]
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        engine.step(self.step.rates)
        end = time.perf_counter()
        self.seconds.append({"forward": forward - began, "backward": backward - forward, "optimizer": end - backward})


def peak_kinds(side: int, precision: Precision) -> dict[str, tuple[Callable[[], Any], int]]:
    """Large operations that could reach the peak: by name, the action and its number of operations.

    ``product`` is torch's own (MKL's in fp32), the others are oneDNN's, that of packed weights where it works here.
    """
    import torch
    import torch.nn.functional as F

    from idc.nn.packed import PackedLinear, packing_works

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(side, side).to(dtype) for _ in range(2))
    kinds: dict[str, tuple[Callable[[], Any], int]] = {"product": (lambda: left @ right, 2 * side**3)}
    if packing_works():
        packed = PackedLinear(torch.nn.Linear(side, side, bias=False).to(dtype), side)
        kinds["oneDNN linear"] = (lambda: packed(left), 2 * side**3)
    channels, edge = max(16, side // 16), max(16, side // 32)
    images = torch.randn(4, channels, edge, edge).to(dtype).contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(channels, channels, 3, 3).to(dtype).contiguous(memory_format=torch.channels_last)
    work = 2 * 4 * channels**2 * 9 * edge**2
    kinds["oneDNN convolution"] = (lambda: F.conv2d(images, kernel, padding=1), work)
    return kinds


def has_native_bf16() -> bool:
    """Whether this processor has instructions for bf16, as far as torch reports it."""
    import torch

    try:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    except AttributeError:
        return False


def measure_hardware(
    config: HardwareConfig, captioning: CaptioningConfig, pretraining: PretrainingConfig
) -> Iterator[Measurement]:
    """oneDNN's peaks over MKL's product; then the share of the fastest of them in fp32 that the image tokenizer, the
    procedure encoder and the decoder reach in captioning, and the training steps of both stages."""
    import torch

    torch.set_num_threads(captioning.threads)
    where = this_environment(captioning.threads)
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if has_native_bf16() else ("fp32",)
    peaks = {(p, name): kind for p in precisions for name, kind in peak_kinds(config.side, p).items()}
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder, torch.no_grad():
        way, work = _captioning(captioning)
        stages = {1: TimedStep(pretraining, folder, 1), 2: TimedStep(pretraining, folder, 2)}
        actions: dict[str, Callable[[], Any]] = {f"{p} {name}": kind[0] for (p, name), kind in peaks.items()}
        pairs = make_pairs(captioning.batch_sizes[0], captioning.tokenizer.image_size)
        actions["captioning"] = lambda: way(*pairs)
        actions |= {f"stage {stage}": torch.enable_grad()(step) for stage, step in stages.items()}
        for stage in stages:
            work[f"stage {stage}"] = count_flops(actions[f"stage {stage}"])
        by_turns({name: action for name, action in actions.items() if not name.startswith("stage")}, 1, _nothing)
        for records in (way.seconds, *(step.seconds for step in stages.values())):
            records.clear()
        seconds = by_turns(actions, config.repeats, _nothing)
    rates = {key: [kind[1] / second / 1e12 for second in seconds[" ".join(key)]] for key, kind in peaks.items()}
    for precision, name in rates:
        if (precision, name) != ("fp32", "product"):
            what = f"{name}, {precision}" if name != "product" else f"MKL or oneDNN product, {precision}"
            yield _measured(f"peak: {what}, over torch's product in fp32", rates[precision, name],
                            rates["fp32", "product"], where)  # fmt: skip
    best = [max(values) for values in zip(*(rates[key] for key in rates if key[0] == "fp32"), strict=True)]
    shape, pre = captioning.tokenizer, pretraining
    about = {
        "features": f"image tokenizer, {captioning.batch_sizes[0]} pairs of {shape.image_size}x{shape.image_size}",
        "encoder": f"encoder {captioning.encoder.layers}x{captioning.encoder.width}, captioning",
        "decoder": f"decoder {captioning.decoder.layers}x{captioning.decoder.width}, captioning",
    }
    for part, title in about.items():
        reached = [work[part] / second / 1e12 for second in way.part(part)]
        yield _measured(f"{title}, over the fp32 peak", reached, best, where, flops=work[part])
    for stage, step in stages.items():
        passes = [run["forward"] + run["backward"] for run in step.seconds]
        reached = [work[f"stage {stage}"] / second / 1e12 for second in passes]
        size = f"{pre.batch_size} samples, encoder {pre.encoder.layers}x{pre.encoder.width}"
        title = f"training, stage {stage}, forward and backward ({size}), over the fp32 peak"
        yield _measured(title, reached, best, where, flops=work[f"stage {stage}"], seconds=step.seconds)


def _captioning(config: CaptioningConfig) -> tuple[Way, dict[str, int]]:
    """The fastest way to caption in fp32, and the operations of its parts, counted on the plain models: the counter
    does not know the operators of packed weights, which do the same work."""
    from idc.data.text import BOS, EOS, PAD, UNK
    from idc.decoding import decode
    from idc.vision.tokenizer.model import to_images

    config = config.model_copy(update={"precision": "fp32", "compile": False})
    tokenizer, captioner = make_image_tokenizer(config), make_captioner(config, config.num_keyframes)
    before, _ = make_pairs(config.batch_sizes[0], config.tokenizer.image_size)
    images = to_images(before)
    features: torch.Tensor = tokenizer.features(images)
    ends = features.unsqueeze(1).expand(-1, 2, -1, -1)
    procedure = captioner.procedure(ends)
    marks: dict[str, Any] = {"bos": BOS, "eos": EOS, "pad": PAD, "banned": (UNK, PAD, BOS)}
    work = {
        "features": 2 * count_flops(lambda: tokenizer.features(images)),  # of both images
        "encoder": count_flops(lambda: captioner.procedure(ends)),
        "decoder": count_flops(
            lambda: decode(captioner.decoder, procedure, max_length=config.steps, stop_early=False, **marks)
        ),
    }
    return Way(config, tokenizer, captioner, list(config.speeds().values())[-1]), work


def _measured(title: str, above: list[float], below: list[float], where: Environment, **more: Any) -> Measurement:
    return Measurement(
        part="hardware", title=title, unit="TFLOP/s", aim="", above=above, below=below, more=more, environment=where
    )


def _nothing() -> None:
    """There is nothing to wait for on a CPU."""
