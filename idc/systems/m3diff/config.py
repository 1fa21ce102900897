"""Settings of M3Diff: those of supervised tuning, and the module that perceives differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.systems.m3diff.mixture import MixtureConfig
from idc.vlm.config import PartConfig, PromptConfig, TuningJob


class MdpConfig(ConfigModel):
    """The multi-scale differential perception module (MDP) between vision tower and projector. Where the paper leaves
    something open, the field says what was chosen and why. Also chosen:

    - The levels share all weights but the bias of their score: no symbol of a weight has a level's index in the paper,
      and four sets of LLaVA-OneVision's width would be 287 million parameters.
    - Attentions and the two MLPs normalise what they read, and those of (4) to (6) are added to it, as transformer
      layers do; the equations are written without both.
    - The weight of a level in (8) is one number for each channel: the equation's product is one of elements.
    - No positions are added: none are in the text.
    """

    levels: tuple[int, ...] | None = None
    """Layers of the vision tower that are read, in ascending order; 0 is the input of its first layer, n the output of
    layer n. Empty: four that end at the one the projector reads, an eighth of the tower apart: 17, 20, 23, 26 of
    LLaVA-OneVision-7B, as in the paper (5.2); 20, 24, 28, 32 of Qwen2.5-VL and 15, 18, 21, 24 of InternVL3, for which
    the paper names none (20, 24 and 32 of Qwen follow or are layers that see the whole image). Towers of fewer than
    four layers have all of them read."""
    stacks: int = Field(2, ge=1)
    """How often (1) to (6) are applied, each time with weights of their own: the paper's "two stacked transformer
    layers". The outputs of (6) are the features of the next; (7) and (8) read the last."""
    heads: int = Field(16, ge=1)
    """Attention heads; must divide the tower's width. Not stated; that of the three towers have 64 to 80 channels a
    head with it."""
    start: Literal["near_base", "random"] = "near_base"
    """near_base: the output layers of (6) start at 0 and the scores near 1 for the last level, near 0 for the others,
    so that the model starts near its base; gradients reach all weights from the second step on. random: scores of some
    0.5, which moves the input of the pretrained projector far away. Not stated."""
    compares: Literal["pair", "itself"] = "pair"
    """itself: each image is compared with itself, a control of what the module gives besides the other image: the same
    weights and more operations, while no feature knows the other image."""
    optim: PartConfig = PartConfig(lr=1e-5)
    """Learning rate and schedule; 1e-5 is the paper's."""


class M3DiffJob(TuningJob):
    """Tune a vision-language model with the module that perceives differences, on folders of pairs."""

    name: str = Field("m3diff", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""
    pairs: str = ""
    """Folder of pairs: training and validation split. This or `mixture`."""
    mixture: MixtureConfig | None = None
    """Several data sets with a question for each, instead of `pairs` and `more_pairs`. The captioner then asks `prompt`
    if that is set, else the question of the set that is validated (without validation, of the first)."""
    mdp: MdpConfig | None = MdpConfig()
    """The module. Every dialogue is about two images; one after of another size than the one before is resized to that,
    in training and in captioning, so that both have the same tokens. Null: the model is tuned without the module, on
    the same samples (tables 6 and 12, "w/o MDP"). A model with the module cannot be merged into a hub folder, nor run
    by vLLM: both have no place for it."""

    @property
    def question(self) -> PromptConfig:
        """The captioner's question about a pair."""
        if self.mixture is None or self.prompt != PromptConfig():
            return self.prompt
        return self.mixture.prompt_of(self.mixture.validated or next(iter(self.mixture.used)))

    @property
    def trains_own_module(self) -> bool:
        return self.mdp is not None

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if bool(self.pairs) == (self.mixture is not None):
            yield "pairs, mixture: give one of the two"
        if self.mixture is None:
            return
        if self.more_pairs:
            yield "more_pairs: a mixture names all of its sets; add them to mixture.sets"
        if "captions" in self.model_fields_set and self.captions != "each":
            yield "captions: each set of a mixture has its own, mixture.sets.NAME.captions; leave this at its default"
        if self.mixture.train_on_val and self.train.keep_best is not None:
            yield (
                "mixture.train_on_val: there are no validation pairs left by which train.keep_best could choose; set "
                "train.keep_best=null"
            )


def is_captioner(saved: dict[str, Any]) -> bool:
    """Every artifact answers the question about a pair."""
    return True


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by."""
    return "captions, on a base taught before"
