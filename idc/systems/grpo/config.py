"""Settings of both trainings by rewards: of a vision-language model, and of a captioner with a decoder of its own."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import missing
from idc.data.manifest import missing_pairs
from idc.rewards.config import RewardSettings
from idc.training.config import GroupConfig, RunName, TrainConfig, TrainingJob
from idc.vlm.config import PolicyJob, TuneConfig


class GrpoJob(RewardSettings, PolicyJob):
    """Tune a vision-language model by rewards of its own captions. Best after a tuning by captions
    (jobs/finetune_sft.py): `base.source` is the folder into which jobs/merge_vlm.py has merged that artifact."""

    ENTRY = "idc.systems.grpo.task:train"
    name: RunName = "grpo"
    tune: TuneConfig = TuneConfig()
    """The trained parts; tune.lora.dropout must be 0. The reference, with kl, is the model at the start: its adapters
    switched off, or, if more than adapters is trained, a frozen copy."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if self.captions != "each":
            yield "captions: unused, a pair is a sample with all of its captions; leave it out"
        if self.generation.beams > 1:
            yield f"generation.beams={self.generation.beams}: captions are drawn, not searched; leave it out"
        if self.train.zero_stage == 3:
            yield "train.zero_stage=3 shards the weights that every drawn token reads; take train.zero_stage=2"


class WordsJob(RewardSettings, TrainingJob):
    """Tune a captioner with a text decoder of its own by rewards, on folders of captioned pairs."""

    ENTRY = "idc.systems.grpo.words:train"
    name: RunName = "rewarded"
    artifact: str = Field(min_length=1)
    """The trained artifact to start from: TwinCap, ProCap (stage 2) or NAMC (fine-tuned). The new one is of the same
    system; it has no calibration."""
    pairs: str = Field(min_length=1)
    """Folder of pairs: training and validation split."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of which only the training split is used."""
    validation_pairs: int | None = Field(None, ge=1)
    """Number of validation pairs, of each change type in proportion; default all."""
    cache_mb: int = Field(1024, ge=0)
    """Keep decoded training images in memory, at the model's size, up to this many MiB per folder."""
    optim: GroupConfig = GroupConfig(lr=1e-4, schedule="linear_warmup_decay", warmup_share=0.04, final_lr=1e-5)
    """Learning rate and schedule of all weights."""
    train: TrainConfig = TrainConfig(steps=250, batch_size=16, betas=(0.9, 0.99))
    """The loop; a sample is a pair with its group of captions."""

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.artifact, "artifact")
        yield from missing_pairs(self.pairs, "pairs", captions=True)
        for path in self.more_pairs:
            yield from missing_pairs(path, "more_pairs", captions=True)
