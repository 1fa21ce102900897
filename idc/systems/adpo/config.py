"""Settings of ADPO: those of every tuning, the preference loss, its negatives, its reference and the retriever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field
from pydantic_core import to_jsonable_python

from idc.config import ConfigModel, missing
from idc.training.config import GroupConfig, TrainConfig
from idc.vlm.config import TuneConfig, TuningJob


class RetrieverConfig(ConfigModel):
    """The retriever q_phi (equation 3): softmax(scale x cosine / tau) of a pair's vector with those of the candidates,
    by the pair encoder (CLIP4IDC). Its text side is frozen, and the vectors of the bank are computed once: the paper
    does not say which sides learn; with both, a step would encode batch x |N| texts."""

    encoder: str = Field(min_length=1)
    """Artifact of jobs/train_pair_encoder.py, trained on the same pairs. The paper publishes no retriever and names
    "CLIP2IDC", by which CLIP4IDC must be meant."""
    tau: float = Field(2.0, gt=0)
    """Temperature. The paper's text has tau near 2, the axis of its figure 4 is 1/tau."""
    similarity_scale: float | None = Field(None, gt=0)
    """Factor of the cosines. Not stated, and tau means nothing without it: of 128 plain cosines at tau 2 the
    distribution is flat. Default: the scale that the encoder has learned (CLIP: up to 100)."""
    learns: bool = True
    """False: the encoder as it is draws negatives that are hard from the start and stay so ("static hard")."""
    optim: GroupConfig = GroupConfig(lr=1e-4, clip_norm=0)
    """Learning rate of the encoder's image side; 1e-4 is the paper's. Schedule and clipping are not stated: under one
    norm with the policy, whose gradients have another size, each would slow the other down; 0 does not clip."""
    baseline: float | None = Field(None, ge=0, lt=1)
    """Subtract the running mean of the reward from it, with this decay a step, from ln 2 on: less variance, the same
    expected gradient. The paper: "optionally"; empty: none."""


class ReferenceConfig(ConfigModel):
    """The reference policy pi_ref: the model as the training starts."""

    by: Literal["adapters", "copy"] = "adapters"
    """adapters: the model with its adapters switched off, for free but for a second vision pass where tower and
    projector have adapters too (`tune.lora.targets=all`). copy: a frozen copy of all weights in memory, where more than
    adapters is trained."""


class AdpoJob(TuningJob):
    """Tune a vision-language model by captions (sft), by preferences over drawn negatives (dpo), or over negatives that
    a learned retriever draws (adpo). dpo and adpo start from a tuned model: `base.source` is the folder into which
    jobs/merge_vlm.py has merged the artifact of sft."""

    name: str = Field("adpo", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""
    objective: Literal["sft", "dpo", "adpo"] = "adpo"
    """sft: cross-entropy of the captions. dpo: equation 2, the negative drawn from the bank with equal chances (tables
    1 to 3, "w/o Retrieval Adversarial"). adpo: equations 3 to 7."""
    beta: float = Field(0.1, gt=0)
    """Sharpness of the preference. Not stated; 0.1 is DPO's own default."""
    candidates: int = Field(128, ge=2)
    """|N|, captions of the bank among which the retriever draws, drawn anew for every visit of a sample (figure 4: 16,
    64, 128, 256; which one the tables have is not stated). The bank: the different training captions, each with the
    same chance. The paper draws "from the dataset", where a caption has as many chances as pairs that have it: on
    CLEVR-Change half of all would say that nothing changed. Never candidates: the pair's captions, and for a pair that
    is unchanged every sentence that says so."""
    retriever: RetrieverConfig | None = None
    """The retriever, with objective=adpo."""
    reference: ReferenceConfig = ReferenceConfig()
    """The reference policy."""
    tune: TuneConfig = TuneConfig()
    """The trained parts. The paper states no adapters, and its memory (table 4) is that of a model that is tuned whole.
    tune.lora.dropout must be 0 with dpo and adpo: the policy would be noisy, and its reference not."""
    train: TrainConfig = TuningJob.model_fields["train"].get_default()
    """The loop. Where the presets of the paper's two stages differ from it, or read it: its "FSDPTrainer" is ZeRO-3 of
    DeepSpeed, which shards the same weights, gradients and averages. "Batch size 16, with a gradient accumulation step
    of 8" are 16 samples of both GPUs together in each of 8 micro-batches, `batch_size=128`; the batches of 24 to 32 of
    the second stage are whole steps. Which weights are scored is not stated; here the best CIDEr on the validation
    split selects them (`keep_best`)."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.tune.language == "frozen" and not (self.tune.tower or self.tune.projector):
            yield "tune.language: 'frozen', with tower and projector empty, trains nothing"
        if self.objective == "sft":
            fields = type(self).model_fields
            defaults = {name: fields[name].get_default() for name in _PREFERENCE_FIELDS}
            unused = [name for name, default in defaults.items() if getattr(self, name) != default]
            if unused:
                plain = " ".join(f"{name}={json.dumps(to_jsonable_python(defaults[name]))}" for name in unused)
                yield f"objective: 'sft' has no use for {', '.join(unused)}; take dpo or adpo, or set {plain}"
            return
        if (self.retriever is None) == (self.objective == "adpo"):
            yield (
                f"objective: {self.objective!r} "
                + ("needs retriever.encoder" if self.objective == "adpo" else "has no retriever; set retriever=null")
            )
        if self.retriever is not None and not self.retriever.learns and self.retriever.baseline is not None:
            yield "retriever.baseline: retriever.learns=false leaves nothing for it to do; leave it out"
        if self.tune.language == "lora" and self.tune.lora.dropout:
            yield f"tune.lora.dropout: {self.tune.lora.dropout} makes log-probabilities noisy; set it to 0"
        whole = self.tune.language != "lora" or self.tune.tower or self.tune.projector
        if self.reference.by == "adapters" and whole:
            yield (
                "reference.by: 'adapters' switched off are the reference only if nothing else is trained; take 'copy', "
                "or train adapters alone"
            )

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if self.retriever is not None:
            yield from missing(self.retriever.encoder, "retriever.encoder")


_PREFERENCE_FIELDS = ("beta", "candidates", "retriever", "reference")


def is_captioner(saved: dict[str, Any]) -> bool:
    """Every artifact answers the question about a pair."""
    return True
