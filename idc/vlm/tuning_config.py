"""Settings that every tuning of a vision-language model has. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel
from idc.data.manifest import missing_pairs
from idc.data.store import fingerprint
from idc.training import base as base_models
from idc.training.config import KeepBest, TrainConfig
from idc.vlm.config import BaseConfig, Captions, GenerateConfig, PromptConfig, TuneConfig


class TuningJob(ConfigModel):
    """Tune a vision-language model on folders of pairs or of instructions."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""
    runs: str = "runs"
    """Folder of all runs."""
    pairs: str = Field(min_length=1)
    """Folder of pairs, or of instructions: training and validation split."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of either kind, of which only the training split is used."""
    base: BaseConfig
    """The model that is tuned."""
    prompt: PromptConfig = PromptConfig()
    """The question whose answer is a pair's caption; instructions have their own."""
    captions: Captions = "each"
    """each: every caption of a pair is a sample of an epoch. one: every pair is, with a caption drawn at each visit."""
    cutoff: int | None = Field(None, ge=16)
    """Largest number of tokens of a dialogue, those of its images included. Nothing is cut: a longer one is an error
    before the training starts."""
    tune: TuneConfig = TuneConfig()
    """The trained parts."""
    generation: GenerateConfig = GenerateConfig()
    """How answers are generated, in validation and by the captioner."""
    validation_samples: int | None = Field(None, ge=1)
    """Number of validation samples, those of pairs of each change type in proportion; default all."""
    trained_on: str | None = Field(None, min_length=1, max_length=200)
    """Description of the training images, to complete "This model has only seen ...". By default derived from the
    manifest of `pairs`."""
    train: TrainConfig = TrainConfig(
        epochs=1, batch_size=32, precision="bf16", group_by_length=64, keep_best=KeepBest(metric="CIDEr")
    )
    """The loop; the best validation CIDEr is selected."""

    def faults(self) -> Iterator[str]:
        if self.train.precision == "fp32" and self.base.dtype != "float32" and self.train.gpus_per_worker:
            yield f"base.dtype={self.base.dtype} needs train.precision=bf16; take that, or base.dtype=float32"
        if self.train.precision == "fp32" and self.base.dtype == "bfloat16":
            yield "base.dtype=bfloat16 needs train.precision=bf16; take that, or base.dtype=float32"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs", kind=None)
        for path in self.more_pairs:
            yield from missing_pairs(path, "more_pairs", kind=None)


def base_content(base: BaseConfig) -> list[str]:
    """Fingerprints of a base model, as a training depends on it: the weights and how they are used, not where they are.

    Raises:
        ValueError: the base model cannot be read.
    """
    folder = base_models.locate_base(base.source, base.revision, download=base.download)
    used = base.model_dump(mode="json", exclude={"source", "revision", "download"})
    return [base_models.base_fingerprint(folder), fingerprint(used)]
