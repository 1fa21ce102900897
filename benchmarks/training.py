"""A step of ProCap's stage 1 with random weights: bf16 over fp32, and the share of the device's peak.

    python -m benchmarks.training
    python -m benchmarks.training device=cuda precision=bf16 batch_size=32
    python -m benchmarks.training encoder.width=128 encoder.layers=4 grid=[4,4]    # the size of the demo

By default at the paper's CLEVR-Change size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from benchmarks.measurement import OnDevice, Row, by_turns, markdown, sync_of
from idc.config import cli
from idc.systems.procap.config import EncoderConfig

if TYPE_CHECKING:
    import torch

    from idc.systems.procap.model import Shapes
    from idc.systems.procap.task import PretrainTask


class TrainingConfig(OnDevice):
    """A training step, by default at the paper's CLEVR-Change size, with random weights and samples."""

    encoder: EncoderConfig = EncoderConfig(init="normal")
    """Procedure encoder."""
    grid: tuple[int, int] = (14, 14)
    """Patches per column and per row."""
    feature_dim: int = Field(256, ge=1)
    """Width of a patch's feature. Samples contain stored features, so the tokenizer does not run."""
    codebook_size: int = Field(1024, ge=2)
    """Codebook size of the tokenizer."""
    vocabulary_size: int = Field(80, ge=5)
    """Vocabulary size."""
    num_keyframes: int = Field(2, ge=1)  # k
    """Number of key frames, k."""
    batch_size: int = Field(8, ge=1)
    """Samples per step; each passes the encoder three times (eq. 5)."""
    repeats: int = Field(3, ge=1)
    """Timed steps of each kind, after one warm-up."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: also measure bf16 autocast; needs hardware support."""
    peak_tflops: float | None = Field(None, gt=0)
    """The device's published peak in this precision, 10^12 operations per second (A40 bf16: 150, A100: 312, H100: 989).
    Default: that of the fastest of three large matrix products on the device, which is lower."""
    threads: int = Field(2, ge=1)
    """Torch threads."""


class TrainingStep:
    """A training step, always on the same random batch."""

    def __init__(self, config: TrainingConfig, folder: str, precision: Literal["fp32", "bf16"] = "fp32"):
        import torch

        from idc.training.config import TrainConfig
        from idc.training.context import LocalContext
        from idc.training.data import to_device
        from idc.training.engines import make_engine, param_groups

        torch.manual_seed(0)
        task = make_task(config)
        context = LocalContext(folder, use_gpu=config.device.startswith("cuda"))
        groups, schedules = param_groups(task)
        train = TrainConfig(steps=1, batch_size=config.batch_size, precision=precision)
        self.engine = make_engine(task.to(context.device).train(), groups, context, train)
        self.batch = to_device(random_batch(config), context.device)
        self.rates = [1e-4 for _ in schedules]

    def __call__(self) -> float:
        loss, _ = self.engine.accumulate(self.batch)
        self.engine.step(self.rates)
        return float(loss)


def no_pixels(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the samples hold features")


def make_task(config: TrainingConfig) -> PretrainTask:
    from idc.data.text import PAD
    from idc.systems.procap.config import PretrainJob
    from idc.systems.procap.task import PretrainTask

    return PretrainTask(PretrainJob(procedures="random", encoder=config.encoder), make_shapes(config), PAD, no_pixels)


def make_shapes(config: TrainingConfig) -> Shapes:
    from idc.systems.procap.model import Shapes

    return Shapes(config.num_keyframes, config.grid, config.feature_dim, config.codebook_size, config.vocabulary_size)


def random_batch(config: TrainingConfig) -> dict[str, torch.Tensor]:
    """A batch in the format of :func:`idc.systems.procap.data.collate`, with masks drawn as in training."""
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
        "recomputed": torch.zeros(0, 1, 1, 3, dtype=torch.uint8),
        "recompute_index": torch.zeros(0, 2, dtype=torch.int64),
    }


def measure_training(config: TrainingConfig) -> Iterator[Row]:
    """bf16 over fp32, and the share of the peak."""
    import torch

    torch.set_num_threads(config.threads)
    kinds: list[Literal["fp32", "bf16"]] = ["fp32", "bf16"] if config.precision == "bf16" else ["fp32"]
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder:
        steps = {kind: TrainingStep(config, folder, kind) for kind in kinds}
        for step in steps.values():
            step()
        actions: dict[str, Callable[[], Any]] = {str(kind): step for kind, step in steps.items()}
        seconds = by_turns(actions, config.repeats, sync_of(config.device))
        work = count_flops(steps[config.precision])
    encoder = config.encoder
    size = f"{config.batch_size} samples, k = {config.num_keyframes}, encoder {encoder.layers}x{encoder.width}"
    rates = {name: [config.batch_size / second for second in values] for name, values in seconds.items()}
    if config.precision == "bf16":
        yield Row(f"stage 1, bf16 over fp32 ({size})", "samples/s", rates["bf16"], rates["fp32"])
    peak = config.peak_tflops or matrix_tflops(config)
    done = [work / second / 1e12 for second in seconds[config.precision]]
    source = "its fastest matrix product" if config.peak_tflops is None else "the published peak"
    title = f"stage 1, {config.precision}, model FLOP/s over {source} ({size})"
    yield Row(title, "TFLOP/s", done, [peak] * len(done), more={"flops_of_a_step": work})


def count_flops(action: Callable[[], Any]) -> int:
    """Run a step and count the operations of its matrix products and convolutions, forward and backward. Scores that
    fused attention recomputes in its backward pass count once."""
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


def matrix_tflops(config: TrainingConfig) -> float:
    """10^12 operations per second of the fastest of three products of large square matrices."""
    import torch

    cuda = config.device.startswith("cuda")
    side = 8192 if cuda else 2048
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    left, right = (torch.randn(side, side, device=config.device, dtype=dtype) for _ in range(2))
    product: dict[str, Callable[[], Any]] = {"product": lambda: left @ right}
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    by_turns(product, 1, sync)
    return 2 * side**3 / min(by_turns(product, 3, sync)["product"]) / 1e12


def main() -> None:
    config = cli(TrainingConfig, __doc__, local=False, overwrite=False).config
    print(markdown(measure_training(config), config.device))


if __name__ == "__main__":
    main()
