"""Settings of ADPO: those of every tuning, the preference loss, its negatives and the retriever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.training.config import GroupConfig, RunName, TrainConfig
from idc.vlm.config import PolicyJob, TuneConfig, TuningJob


class RetrieverConfig(ConfigModel):
    """The retriever q_phi (equation 3): softmax(scale x cosine / tau) between a pair's vector and those of the
    candidates, by the pair encoder (CLIP4IDC). The text side is frozen, so that the vectors of the bank are computed
    once. The paper does not say which sides are trained; with both, a step would encode batch x |N| texts."""

    encoder: str = Field(min_length=1)
    """Artifact of jobs/train_pair_encoder.py, trained on the same pairs. The paper publishes no retriever; its
    "CLIP2IDC" must mean CLIP4IDC."""
    tau: float = Field(2.0, gt=0)
    """Temperature. The paper's text has tau near 2; the axis of its figure 4 is 1/tau."""
    similarity_scale: float | None = Field(None, gt=0)
    """Factor of the cosines. Not stated, though tau means nothing without it: over 128 plain cosines at tau 2 the
    distribution is flat. Default: the encoder's learned scale (CLIP: up to 100)."""
    learns: bool = True
    """False: the encoder is not trained and draws negatives of constant difficulty ("static hard")."""
    optim: GroupConfig = GroupConfig(lr=1e-4, clip_norm=0)
    """Learning rate of the encoder's image side; 1e-4 is the paper's. Schedule and clipping are not stated. Clipped by
    one norm with the policy, whose gradients have another size, each would slow the other down; 0 does not clip."""
    baseline: float | None = Field(None, ge=0, lt=1)
    """Decay of the running mean of the reward, which is subtracted from the reward and starts at ln 2: less variance,
    the same expected gradient. The paper: "optionally"; empty: no baseline."""


class AdpoJob(PolicyJob):
    """Tune a vision-language model by preferences over drawn negatives (dpo), or over negatives that a learned
    retriever draws (adpo). It was tuned by captions before (jobs/finetune_sft.py): `base.source` is the folder into
    which jobs/merge_vlm.py has merged that artifact."""

    ENTRY = "idc.systems.adpo.task:train"
    name: RunName = "adpo"
    objective: Literal["dpo", "adpo"] = "adpo"
    """dpo: equation 2 with negatives drawn uniformly from the bank (tables 1 to 3, "w/o Retrieval Adversarial"). adpo:
    equations 3 to 7."""
    beta: float = Field(0.1, gt=0)
    """Sharpness of the preference. Not stated; 0.1 is DPO's own default."""
    candidates: int = Field(128, ge=2)
    """|N|, the number of captions among which the retriever draws, sampled anew at every visit of a pair (figure 4: 16,
    64, 128, 256; the tables do not say). They come from the bank, in which each distinct training caption counts once.
    The paper draws "from the dataset", where a caption counts as often as it occurs: on CLEVR-Change half of the
    negatives would state that nothing changed. Excluded are the pair's own captions, and for an unchanged pair all that
    state no change."""
    retriever: RetrieverConfig | None = None
    """The retriever, with objective=adpo."""
    tune: TuneConfig = TuneConfig()
    """The trained parts. The paper mentions no adapters, and its memory (table 4) is that of full tuning.
    tune.lora.dropout must be 0: the policy would be noisy and its reference not."""
    train: TrainConfig = TuningJob.model_fields["train"].get_default()
    """The loop. In the presets of the paper's two stages its "FSDPTrainer" is DeepSpeed's ZeRO-3, which shards the same
    weights, gradients and moments. "Batch size 16, with a gradient accumulation step of 8" is read as 16 samples on
    both GPUs together in each of 8 micro-batches, `batch_size=128`; the batches of 24 to 32 of the second stage as
    whole steps. The paper does not say which weights are scored: here those of the best validation CIDEr
    (`keep_best`)."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if (self.retriever is None) == (self.objective == "adpo"):
            yield (
                f"objective: {self.objective!r} "
                + ("needs retriever.encoder" if self.objective == "adpo" else "has no retriever; set retriever=null")
            )
        if self.retriever is not None and not self.retriever.learns and self.retriever.baseline is not None:
            yield "retriever.baseline: unused with retriever.learns=false; leave it out"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if self.retriever is not None:
            yield from missing(self.retriever.encoder, "retriever.encoder")
