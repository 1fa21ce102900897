"""Settings of the vision-language stack: base model, prompt, answer, tuning. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.data.schema import IMAGE
from idc.data.store import fingerprint
from idc.training import base as base_models
from idc.training.config import GroupConfig, KeepBest, ScheduleName, TrainConfig, TrainingJob

FAMILIES = ("qwen2_5_vl", "llava_onevision", "internvl", "qwen3_vl")
"""Families of base models by the ``model_type`` of their config.json; a class each in :mod:`idc.vlm.families`."""

Captions = Literal["each", "one"]
"""How the captions of a pair are learned (:class:`TuningJob`)."""

PAIR_PROMPT = (
    f"First image (before): {IMAGE}\nSecond image (after): {IMAGE}\n"
    "What changed between the two images? Answer in one sentence."
)
"""Prompt for models that were not tuned on pairs."""


class BaseConfig(ConfigModel):
    """A base model: which one, and how it is loaded."""

    source: str = Field(min_length=1)
    """Hub id (`Qwen/Qwen2.5-VL-3B-Instruct`), the folder of a model, or a small one that comes with the program
    (their cards: idc/weights): `shipped`, or `shipped-single`, which was never taught to compare a pair."""
    revision: str | None = Field(None, min_length=1)
    """Commit, branch or tag of a hub id. Default: what is on this machine, else the newest."""
    download: bool = False
    """Ask the hub for what is not on this machine."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights that are not trained. auto: bfloat16 on a GPU, float32 on a CPU. In training bfloat16 needs
    `train.precision=bf16`."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Implementation of attention; flash_attention_2 needs its package and a GPU."""
    max_pixels: int | None = Field(262_144, ge=3136)
    """Largest number of pixels at which a model of the Qwen families sees an image (512 x 512); larger images are made
    smaller with their aspect ratio, and every answer says so. Empty: the model's own limit (12.8 million in the hub's
    configs). Models of the other families see every image at one size."""

    def preflight(self) -> Iterator[str]:
        if self.source.startswith(("/", ".", "~")):
            yield from missing(str(Path(self.source).expanduser()), "source")


class PromptConfig(ConfigModel):
    """The question about a pair, and the system turn before it."""

    text: str = Field(PAIR_PROMPT, min_length=1)
    """The question, with `<image>` in the place of the image before and of the image after."""
    system: str | None = Field(None, min_length=1)
    """System turn. Default: the one that the model's chat template adds, if any."""

    def errors(self) -> Iterator[str]:
        if (marks := self.text.count(IMAGE)) != 2:
            yield f"text: {IMAGE} is in it {marks} times; it must stand for the image before and the image after"
        if self.system is not None and IMAGE in self.system:
            yield f"system: {IMAGE} belongs in text"


class GenerateConfig(ConfigModel):
    """How an answer is generated. A model's own generation_config.json is not used: it may sample, or punish repeated
    words, and then confidences would be those of another distribution."""

    max_new_tokens: int = Field(64, ge=1)
    """Longest answer in tokens."""
    beams: int = Field(1, ge=1)
    """Number of beams; 1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length in the score of a beam."""


class LoraConfig(ConfigModel):
    """Low-rank adapters (LoRA) by PEFT."""

    rank: int = Field(64, ge=1)
    """Rank."""
    alpha: int = Field(128, ge=1)
    """Scale of an adapter's output: it is multiplied by alpha / rank."""
    dropout: float = Field(0.05, ge=0, lt=1)
    """Dropout of an adapter's input."""
    targets: Literal["language", "all"] = "language"
    """language: the seven linear layers of each layer of the language model. all: every linear layer but the output
    layer, also those of tower and projector."""
    plus: float = Field(1.0, gt=0)
    """LoRA+: the learning rate of the matrices B over that of the matrices A."""


class PartConfig(GroupConfig):
    """Learning rate and schedule of a part of the model."""

    lr: float = Field(1e-5, ge=0)
    """Peak learning rate."""
    schedule: ScheduleName = "linear_warmup_cosine"
    """As in GroupConfig; `constant` also needs warmup_share=0."""
    warmup_share: float = Field(0.03, ge=0, lt=1)
    """Warm-up as a share of all steps."""


class TuneConfig(ConfigModel):
    """Which parts of a model are trained, each with its own learning rate and schedule."""

    language: Literal["lora", "full", "frozen"] = "lora"
    """The language model: lora trains adapters, full all of its weights."""
    lora: LoraConfig = LoraConfig()
    """Adapters, with language=lora."""
    language_optim: PartConfig = PartConfig(lr=1e-4)
    """Learning rate and schedule of the language model, or of its adapters."""
    tower: PartConfig | None = None
    """Learning rate and schedule of the vision tower (`tower.lr=2e-6`). Empty: it is not trained."""
    projector: PartConfig | None = None
    """Learning rate and schedule of the projector between tower and language model. Empty: it is not trained."""

    def errors(self) -> Iterator[str]:
        if self.language != "lora" and self.lora != LoraConfig():
            yield f"lora: is set, and language={self.language} has no adapters; take language=lora"
        if self.language == "lora" and self.lora.targets == "all" and (self.tower or self.projector):
            yield (
                "lora.targets: 'all' puts adapters into tower and projector, which are also trained whole; take "
                "'language', or leave tower and projector empty"
            )


class TuningJob(TrainingJob):
    """Tune a vision-language model on folders of pairs or of instructions."""

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

    @property
    def trains_own_module(self) -> bool:
        """Whether a module of the system's own is trained too."""
        return False

    def errors(self) -> Iterator[str]:
        if self.train.precision == "fp32" and self.base.dtype != "float32" and self.train.gpus_per_worker:
            yield f"base.dtype={self.base.dtype} needs train.precision=bf16; take that, or base.dtype=float32"
        if self.train.precision == "fp32" and self.base.dtype == "bfloat16":
            yield "base.dtype=bfloat16 needs train.precision=bf16; take that, or base.dtype=float32"
        if self.tune.language == "frozen" and not (self.tune.tower or self.tune.projector or self.trains_own_module):
            yield "tune.language: 'frozen', with tower and projector empty, trains nothing"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs", kind=None, captions=True)
        for path in self.more_pairs:
            yield from missing_pairs(path, "more_pairs", kind=None, captions=True)


class PolicyJob(TuningJob):
    """Tune a model that is compared with its reference pi_ref, the model at the start of the training: the model with
    its adapters switched off, at no extra memory (a second vision pass if tower and projector have adapters too), or,
    if more than adapters is trained, a frozen copy of all weights."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if self.tune.language == "lora" and self.tune.lora.dropout:
            yield f"tune.lora.dropout: {self.tune.lora.dropout} makes log-probabilities noisy; set it to 0"

    @property
    def trains_adapters_alone(self) -> bool:
        return self.tune.language == "lora" and not (self.tune.tower or self.tune.projector)


def base_content(base: BaseConfig) -> list[str]:
    """Fingerprints of a base model, as a training depends on it: the weights and how they are used, not where they are.
    ValueError: the base model cannot be read."""
    folder = base_models.locate_base(base.source, base.revision, download=base.download)
    used = base.model_dump(mode="json", exclude={"source", "revision", "download"})
    return [base_models.base_fingerprint(folder), fingerprint(used)]
