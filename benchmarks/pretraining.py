"""A training step of ProCap's stages: the gain of each optimisation, and the utilisation of the hardware."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from idc.config import ConfigModel
from idc.systems.procap.config import DecoderConfig, EncoderConfig

if TYPE_CHECKING:
    import torch

    from idc.systems.procap.model import ProcedureEncoder, Shapes
    from idc.systems.procap.task import FinetuneTask, PretrainTask
    from idc.training.task import Task
from benchmarks.measurement import Measurement, by_turns, this_environment


class PretrainingConfig(ConfigModel):
    """A training step, by default at the paper's CLEVR-Change size, with random weights and samples."""

    encoder: EncoderConfig = EncoderConfig(init="normal")
    """Procedure encoder."""
    decoder: DecoderConfig = DecoderConfig()
    """Text decoder of stage 2."""
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
    compile: bool = False
    """Also measure torch.compile."""
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
        stage: of ProCap.
        everywhere: the last block of stage 1 computes all positions.
        onednn: see :func:`idc.training.engines.make_engine`.
        loop: the optimizer goes through the parameters in a loop over torch's operations.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        folder: str,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
        everywhere: bool = False,
        compiled: bool = False,
        stage: Literal[1, 2] = 1,
        onednn: bool | None = None,
        loop: bool = False,
    ):
        import torch

        from idc.training.config import TrainConfig
        from idc.training.context import LocalContext
        from idc.training.data import to_device
        from idc.training.engines import TorchEngine, make_engine, param_groups

        torch.manual_seed(0)
        task: Task = make_task(config) if stage == 1 else make_captioning_task(config)
        if everywhere:
            task.get_submodule("encoder").__class__ = everywhere_encoder()
        context = LocalContext(folder, use_gpu=config.device.startswith("cuda"))
        groups, schedules = param_groups(task)
        train = TrainConfig(steps=1, batch_size=config.batch_size, precision=precision, compile=compiled)
        self.engine = make_engine(task.to(context.device).train(), groups, context, train, onednn)
        if loop:
            assert isinstance(self.engine, TorchEngine)
            for group in self.engine.optimizer.param_groups:
                group.update(fused=False, foreach=False)
        make = random_batch if stage == 1 else random_captions
        self.batch = to_device(make(config), context.device)
        self.rates = [1e-4 for _ in schedules]

    def __call__(self) -> float:
        loss, _ = self.engine.accumulate(self.batch)
        self.engine.step(self.rates)
        return float(loss)


def no_pixels(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the samples hold features")


def make_task(config: PretrainingConfig) -> PretrainTask:
    from idc.data.text import PAD
    from idc.systems.procap.config import PretrainJob
    from idc.systems.procap.task import PretrainTask

    return PretrainTask(PretrainJob(procedures="random", encoder=config.encoder), make_shapes(config), PAD, no_pixels)


def make_captioning_task(config: PretrainingConfig) -> FinetuneTask:
    from idc.data.text import SPECIALS, Vocabulary
    from idc.systems.procap.config import FinetuneJob
    from idc.systems.procap.task import FinetuneTask

    job = FinetuneJob(procedures="random", encoder=config.encoder, decoder=config.decoder)
    vocabulary = Vocabulary([f"word{n}" for n in range(config.vocabulary_size - len(SPECIALS))])
    return FinetuneTask(job, config.encoder, make_shapes(config), vocabulary, no_pixels)


def make_shapes(config: PretrainingConfig) -> Shapes:
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


def random_batch(config: PretrainingConfig) -> dict[str, torch.Tensor]:
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


def random_captions(config: PretrainingConfig) -> dict[str, torch.Tensor]:
    """A batch of stage 2 in the format of :func:`idc.systems.procap.data.collate`, with captions of full length."""
    import torch

    from idc.data.text import SPECIALS

    generator, shapes = torch.Generator().manual_seed(0), make_shapes(config)
    size = (config.batch_size, config.decoder.max_length)
    ids = torch.randint(len(SPECIALS), shapes.vocabulary_size, size, generator=generator)
    ends = torch.randn(config.batch_size, 2, shapes.patches, shapes.feature_dim, generator=generator)
    return {"ends": ends.half(), "ids": ids[:, :-1], "targets": ids[:, 1:]}


def measure_pretraining(config: PretrainingConfig) -> Iterator[Measurement]:
    """Last block only at positions that a loss reads over all positions; bf16 over fp32; compiled over uncompiled;
    utilisation of the hardware.

    Raises:
        ValueError: the two kinds of last block have different losses in float32.
    """
    import torch

    from idc.training.linears import onednn_is_exact, onednn_pays

    torch.set_num_threads(config.threads)
    where = this_environment(config.threads, config.device)
    cuda = config.device.startswith("cuda")
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder:
        steps = {"everywhere": TrainingStep(config, folder, everywhere=True), "read": TrainingStep(config, folder)}
        if not cuda:
            steps["loop"] = TrainingStep(config, folder, loop=True)
            if onednn_is_exact():
                steps |= {
                    "mkl": TrainingStep(config, folder, onednn=False),
                    "onednn": TrainingStep(config, folder, onednn=True),
                }
        if config.precision == "bf16":
            steps["bf16"] = TrainingStep(config, folder, precision="bf16")
        if config.compile:
            steps["compiled"] = TrainingStep(config, folder, precision=config.precision, compiled=True)
        actions: dict[str, Callable[[], Any]] = dict(steps)
        first = {name: action() for name, action in actions.items()}  # also the warm-up
        for name in first.keys() & {"read", "loop", "mkl", "onednn"}:
            if abs(first[name] - first["everywhere"]) > 1e-4 * abs(first["everywhere"]):
                raise ValueError(
                    f"pretraining: the loss is {first[name]} in the step {name!r} and {first['everywhere']} in "
                    "'everywhere'; only equal losses can be compared"
                )
        seconds = by_turns(actions, config.repeats, sync)
        fastest = "compiled" if config.compile else "bf16" if config.precision == "bf16" else "read"
        plain = "bf16" if config.precision == "bf16" else "read"
        work = count_flops(steps[plain])  # the counter cannot see compiled kernels, which do the same work
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
    if "loop" in rates:
        yield measured("stage 1, optimizer in one pass over a loop of operations", "samples/s", "", rates["read"],
                       rates["loop"])  # fmt: skip
    if "onednn" in rates:
        yield measured("stage 1, linear layers by oneDNN over MKL", "samples/s", "", rates["onednn"], rates["mkl"],
                       chosen_here=onednn_pays())  # fmt: skip
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


def matrix_tflops(config: PretrainingConfig) -> float:
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
