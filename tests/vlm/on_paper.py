"""Tuning of real vision-language models on paper: the presets in jobs/configs/sft, and what they take.

None of these runs was made. Parameters are exact; operations are counted; memory and hours are estimates of
:mod:`idc.vlm.estimate`, from the settings in the files, so that the tables change with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import markdown_table
from idc.config import load
from idc.systems.sft.config import SftJob
from idc.vlm.estimate import (
    GIB,
    ModelSize,
    SampleSize,
    Tuning,
    generation_operations,
    hours,
    memory,
    step_operations,
    trained_parameters,
)
from tests.vlm.published_models import PUBLISHED

CONFIGS = Path(__file__).resolve().parents[2] / "jobs" / "configs" / "sft"
UTILISATION = 0.4
"""Share of a GPU's peak that is assumed, as for the other estimates (ARCHITECTURE.md, "Scale on paper")."""
TEXT, CAPTION = 70, 20
"""Tokens of the default prompt with the template around it, and of a caption."""


@dataclass(frozen=True)
class Preset:
    """A file of settings, the GPU it is meant for, and what it is run on.

    Attributes:
        file: in jobs/configs/sft.
        gpu: its name.
        gib: its memory.
        peak: its operations a second, bfloat16 without sparsity.
        image_tokens: of an image of the data set.
        samples: of an epoch.
        data: the data set.
    """

    file: str
    gpu: str
    gib: int
    peak: float
    image_tokens: int
    samples: int
    data: str


PRESETS = (
    Preset("finetune_24gb.yaml", "RTX 4090", 24, 165e12, 81, 5 * 6815, "LEVIR-CC, 34,075 captions"),
    Preset("finetune_80gb.yaml", "A100", 80, 312e12, 187, 67_660, "CLEVR-Change, 67,660 pairs"),
    Preset("finetune_8gpus.yaml", "A100", 80, 312e12, 187, 67_660, "CLEVR-Change, 67,660 pairs"),
)


def tuning(job: SftJob) -> Tuning:
    """Settings of a job that an estimate needs."""
    train = job.train
    return Tuning(
        language=job.tune.language,
        rank=job.tune.lora.rank,
        tower=job.tune.tower is not None,
        projector=job.tune.projector is not None,
        checkpointing=train.activation_checkpointing,
        micro_batch=train.micro_batch_size // train.num_workers,
        gpus=train.num_workers,
        zero_stage=train.zero_stage,
    )


def needs(preset: Preset) -> tuple[SftJob, ModelSize, Tuning, SampleSize]:
    """A preset's settings, its model, how it is tuned, and a sample of its data."""
    job = load(SftJob, str(CONFIGS / preset.file), {})
    model = ModelSize.of(PUBLISHED[job.base.source].config)
    return job, model, tuning(job), SampleSize(preset.image_tokens, text=TEXT + CAPTION, learned=CAPTION)


def presets_table() -> str:
    """Markdown: what each preset takes."""
    rows = []
    for preset in PRESETS:
        job, model, how, sample = needs(preset)
        taken, operations = memory(model, how, sample), step_operations(model, how, sample)
        epochs = job.train.epochs or 1
        time = hours(operations, epochs * preset.samples, preset.peak, how.gpus, UTILISATION)
        rows.append([
            f"`{preset.file}`",
            f"{how.gpus} x {preset.gpu}, {preset.gib} GB",
            job.base.source.partition("/")[2],
            f"{trained_parameters(model, how) / 1e6:,.0f} of {model.parameters / 1e6:,.0f} M",
            f"{sample.tokens} ({2 * sample.image_tokens})",
            f"{taken.total / GIB:.0f}: {(taken.weights) / GIB:.1f}, {(taken.gradients + taken.optimizer) / GIB:.1f}, "
            f"{taken.activations / GIB:.1f}",
            f"{operations / 1e12:.1f}",
            f"{time:.1f} ({preset.data})",
        ])  # fmt: skip
    header = (
        "preset", "GPUs", "model", "trained", "tokens of a sample (of images)",
        "GiB on a GPU: weights, gradients and optimizer, activations", "TFLOP a sample", "hours of an epoch",
    )  # fmt: skip
    return markdown_table(header, rows)


def models_table() -> str:
    """Markdown: sizes of the published models, and what a pair of 640x480 costs."""
    tokens = {"qwen2_5_vl": 315, "qwen3_vl": 234, "llava_onevision": 730, "internvl": 256}
    rows = []
    for name, published in PUBLISHED.items():
        model = ModelSize.of(published.config)
        sample = SampleSize(tokens[published.config["model_type"]], text=TEXT + CAPTION, learned=CAPTION)
        parts = model.parts()
        lora = memory(model, Tuning(rank=64, micro_batch=4), sample)
        full = memory(model, Tuning("full", tower=True, projector=True, gpus=8, zero_stage=3), sample)
        rows.append([
            name,
            " + ".join(f"{parts[part] / 1e6:,.0f}" for part in ("tower", "projector", "language")),
            f"{model.lora(64) / 1e6:.0f} M",
            f"{sample.image_tokens}",
            f"{generation_operations(model, sample) / 1e12:.1f}",
            f"{step_operations(model, Tuning(rank=64), sample) / 1e12:.1f}",
            f"{model.parameters * 2 / GIB:.1f}",
            f"{lora.total / GIB:.0f}",
            f"{full.total / GIB:.0f}",
        ])  # fmt: skip
    header = (
        "model", "M parameters: tower + projector + language", "adapters, rank 64", "tokens of an image of 640x480",
        "TFLOP to caption a pair", "TFLOP to train on it (adapters)", "GiB of the weights",
        "GiB to train adapters, 4 pairs", "GiB on each of 8 GPUs to train all (ZeRO-3)",
    )  # fmt: skip
    return markdown_table(header, rows)
