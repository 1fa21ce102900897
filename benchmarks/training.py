"""A training step of ProCap's first stage with random weights: the gain of each optimisation, the share of the device's
peak, and what Ray Train and DeepSpeed add to the bare loop.

    python -m benchmarks.training
    python -m benchmarks.training device=cuda precision=bf16 batch_size=32 rounds=0
    python -m benchmarks.training encoder.width=128 encoder.layers=4 grid=[4,4] rounds=3   # the size of the demo

By default at the paper's CLEVR-Change size.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from benchmarks.measurement import Row, by_turns, markdown, sync_of
from idc.config import ConfigModel, cli
from idc.systems.procap.config import EncoderConfig

if TYPE_CHECKING:
    import torch

    from idc.systems.procap.model import ProcedureEncoder, Shapes
    from idc.systems.procap.task import PretrainTask


class TrainingConfig(ConfigModel):
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
    rounds: int = Field(0, ge=0)
    """Rounds of the bare loop, DeepSpeed and DeepSpeed on Ray Train, in turns; 0: not measured."""
    steps: int = Field(8, ge=1)
    """Optimizer steps of such a round, after two that do not count."""
    peak_tflops: float | None = Field(None, gt=0)
    """The device's published peak in this precision, 10^12 operations per second (A40 bf16: 150, A100: 312, H100: 989).
    Default: that of the fastest of three large matrix products on the device, which is lower."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Torch device, e.g. cuda."""


class TrainingStep:
    """A training step, always on the same random batch.

    Args:
        everywhere: the last block of stage 1 computes all positions.
        onednn: see :func:`idc.training.engines.make_engine`.
        loop: the optimizer goes through the parameters in a loop over torch's operations.
    """

    def __init__(
        self,
        config: TrainingConfig,
        folder: str,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
        everywhere: bool = False,
        onednn: bool | None = None,
        loop: bool = False,
    ):
        import torch

        from idc.training.config import TrainConfig
        from idc.training.context import LocalContext
        from idc.training.data import to_device
        from idc.training.engines import TorchEngine, make_engine, param_groups

        torch.manual_seed(0)
        task = make_task(config)
        if everywhere:
            task.get_submodule("encoder").__class__ = everywhere_encoder()
        context = LocalContext(folder, use_gpu=config.device.startswith("cuda"))
        groups, schedules = param_groups(task)
        train = TrainConfig(steps=1, batch_size=config.batch_size, precision=precision)
        self.engine = make_engine(task.to(context.device).train(), groups, context, train, onednn)
        if loop:
            assert isinstance(self.engine, TorchEngine)
            for group in self.engine.optimizer.param_groups:
                group.update(fused=False, foreach=False)
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


def everywhere_encoder() -> type[ProcedureEncoder]:
    """A procedure encoder whose last block computes all positions, including those that no loss reads."""
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
        "redone": torch.zeros(0, 1, 1, 3, dtype=torch.uint8),
        "redone_at": torch.zeros(0, 2, dtype=torch.int64),
    }


def measure_training(config: TrainingConfig) -> Iterator[Row]:
    """Last block only at positions that a loss reads over all positions; the optimizer in one pass; oneDNN over MKL;
    bf16 over fp32; the share of the peak; then the loop.

    Raises:
        ValueError: two kinds of a step have different losses in float32.
    """
    import torch

    from idc.training.linears import onednn_is_exact

    torch.set_num_threads(config.threads)
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder:
        steps = {"everywhere": TrainingStep(config, folder, everywhere=True), "read": TrainingStep(config, folder)}
        if config.device == "cpu":
            steps["loop"] = TrainingStep(config, folder, loop=True)
        if config.device == "cpu" and onednn_is_exact():
            steps |= {name: TrainingStep(config, folder, onednn=name == "onednn") for name in ("mkl", "onednn")}
        if config.precision == "bf16":
            steps["bf16"] = TrainingStep(config, folder, precision="bf16")
        first = {name: step() for name, step in steps.items()}  # also the warm-up
        for name in first.keys() - {"bf16"}:
            if abs(first[name] - first["everywhere"]) > 1e-4 * abs(first["everywhere"]):
                raise ValueError(
                    f"training: the loss is {first[name]} in the step {name!r} and {first['everywhere']} in "
                    "'everywhere'; only equal losses can be compared"
                )
        seconds = by_turns(dict(steps), config.repeats, sync_of(config.device))
        plain = "bf16" if config.precision == "bf16" else "read"
        work = count_flops(steps[plain])
    encoder = config.encoder
    size = f"{config.batch_size} samples, k = {config.num_keyframes}, encoder {encoder.layers}x{encoder.width}"
    rates = {name: [config.batch_size / second for second in values] for name, values in seconds.items()}
    for above, below, title in (
        ("read", "everywhere", "last block only where it is read over everywhere"),
        ("read", "loop", "optimizer in one pass over a loop of operations"),
        ("onednn", "mkl", "linear layers by oneDNN over MKL"),
        ("bf16", "read", "bf16 over fp32"),
    ):
        if {above, below} <= rates.keys():
            yield Row(f"stage 1, {title} ({size})", "samples/s", rates[above], rates[below])
    peak = config.peak_tflops or matrix_tflops(config)
    done = [work / second / 1e12 for second in seconds[plain]]
    source = "its fastest matrix product" if config.peak_tflops is None else "the published peak"
    title = f"stage 1, {plain if plain == 'bf16' else 'fp32'}, model FLOP/s over {source} ({size})"
    yield Row(title, "TFLOP/s", done, [peak] * len(done), more={"flops_of_a_step": work})
    if config.rounds:
        yield from measure_loop(config)


RUNS: dict[str, dict[str, Any]] = {
    "torch": {"engine": "torch"},
    "deepspeed": {"engine": "deepspeed"},
    "ray": {"engine": "deepspeed"},
}
"""Runs of the loop and their settings; the last is on Ray Train."""


def measure_loop(config: TrainingConfig) -> Iterator[Row]:
    """Seconds of a step of DeepSpeed, and of DeepSpeed on Ray Train with one worker, over the bare loop in torch: a run
    of each per round, in turns, with the same samples, seed and threads."""
    from cluster.config import ClusterConfig
    from cluster.session import session
    from cluster.train import launch
    from idc.training.config import TrainConfig

    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder, session(ClusterConfig()):
        for number in range(config.rounds):
            for name in list(RUNS)[:: 1 if number % 2 == 0 else -1]:
                train = TrainConfig.model_validate({
                    "steps": config.steps + 2, "batch_size": config.batch_size, "log_every": 1, "eval_every": 0,
                    "checkpoint_every": 10**6, "keep_best": None, "cpus_per_worker": config.threads,
                    "tracking": {"enabled": False}, **RUNS[name],
                })  # fmt: skip
                run = Path(folder) / f"{name}-{number}"
                payload = config.model_dump(mode="json")
                launch("benchmarks.training:loop_entry", payload, train, run, local=name != "ray")
                lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
                seconds[name].append(statistics.median(line["seconds_per_step"] for line in lines[2:]))
    for name, title in (("deepspeed", "DeepSpeed"), ("ray", "Ray Train + DeepSpeed (1 worker)")):
        yield Row(f"a training step, {title} over the bare torch loop", "s/step", seconds[name], seconds["torch"])


def loop_entry(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    """A training of stage 1 on random samples."""
    import torch

    from idc.training.config import TrainConfig
    from idc.training.data import Loader, Loaders
    from idc.training.loop import fit

    config = TrainingConfig.model_validate({name: payload[name] for name in TrainingConfig.model_fields})
    train = TrainConfig.model_validate(payload["train"])
    torch.manual_seed(0)

    def collate(samples: Sequence[int]) -> dict[str, Any]:
        return random_batch(config.model_copy(update={"batch_size": len(samples)}))

    dataset = _Numbers()
    loader = Loader.from_config(dataset, collate, train, context.rank, context.world_size)
    return fit(make_task(config), Loaders(loader, None), context, train)


class _Numbers:
    """The samples of :func:`loop_entry`, which are drawn when they are collated."""

    def __len__(self) -> int:
        return 1024

    def get(self, index: int, epoch: int) -> int:
        return index


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
