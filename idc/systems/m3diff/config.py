"""Settings of M3Diff: those of supervised tuning, and the differential perception module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.systems.m3diff.mixture import MixtureConfig
from idc.training.config import RunName
from idc.vlm.config import PartConfig, PromptConfig, TuningJob


class MdpConfig(ConfigModel):
    """The multi-scale differential perception module (MDP) between vision tower and projector. Choices where the paper
    is silent are stated at the fields. Others:

    - The levels share all weights except the bias of their score: the paper's weights have no level index, and four
      sets at LLaVA-OneVision's width would be 287 million parameters.
    - Attentions and MLPs have pre-norm, and those of (4) to (6) residual connections, as in transformer layers; the
      equations show neither.
    - The weight of a level in (8) is a vector over channels: the equation's product is elementwise.
    - There are no position embeddings: the paper mentions none.
    """

    levels: tuple[int, ...] | None = None
    """Layers of the vision tower that are read, in ascending order; 0 is the input of its first layer, n the output of
    layer n. Empty: four layers an eighth of the tower apart, of which the last is the projector's input: 17, 20, 23, 26
    of LLaVA-OneVision-7B as in the paper (5.2); 20, 24, 28, 32 of Qwen2.5-VL and 15, 18, 21, 24 of InternVL3, for which
    the paper names none. All layers of a tower with fewer than four."""
    stacks: int = Field(2, ge=1)
    """Number of applications of (1) to (6), each with its own weights: the paper's "two stacked transformer layers".
    The outputs of (6) are the input of the next; (7) and (8) read the last."""
    heads: int = Field(16, ge=1)
    """Attention heads; must divide the tower's width. Not stated; with 16 the three towers have 64 to 80 channels per
    head."""
    start: Literal["near_base", "random"] = "near_base"
    """near_base: the output layers of (6) start at 0, and the scores near 1 for the last level and near 0 for the
    others, so that the model starts close to its base; gradients reach all weights from the second step on. random:
    scores around 0.5, far from the input that the pretrained projector expects. Not stated."""
    compares: Literal["pair", "itself"] = "pair"
    """itself: a control in which each image is compared with itself: the same weights and operations, without access to
    the other image."""
    optim: PartConfig = PartConfig(lr=1e-5)
    """Learning rate and schedule; 1e-5 is the paper's."""


class M3DiffJob(TuningJob):
    """Tune a vision-language model with the differential perception module, on folders of pairs."""

    ENTRY = "idc.systems.m3diff.task:train"
    name: RunName = "m3diff"
    pairs: str = ""
    """Folder of pairs: training and validation split. This or `mixture`."""
    mixture: MixtureConfig | None = None
    """Several data sets with a question for each, instead of `pairs` and `more_pairs`. The captioner then asks `prompt`
    if that is set, else the question of the set that is validated (without validation, of the first)."""
    mdp: MdpConfig | None = MdpConfig()
    """The module. Every dialogue is about two images; in training and captioning the image after is resized to the size
    of the image before, so that both have the same tokens. Null: tuning on the same samples without the module (tables
    6 and 12, "w/o MDP"). A model with the module can neither be merged into a hub folder nor run by vLLM."""

    @property
    def question(self) -> PromptConfig:
        """The captioner's question about a pair."""
        if self.mixture is None or self.prompt != PromptConfig():
            return self.prompt
        return self.mixture.prompt_of(self.mixture.validated or next(iter(self.mixture.used)))

    @property
    def trains_own_module(self) -> bool:
        return self.mdp is not None

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if bool(self.pairs) == (self.mixture is not None):
            yield "pairs, mixture: give one of the two"
        if self.mixture is None:
            return
        if self.more_pairs:
            yield "more_pairs: a mixture names all of its sets; add them to mixture.sets"
        if self.captions != "each":
            yield "captions: each set of a mixture has its own, mixture.sets.NAME.captions; leave this at its default"
        if self.mixture.train_on_val and self.train.keep_best is not None:
            yield (
                "mixture.train_on_val: leaves no validation pairs by which train.keep_best could choose; set "
                "train.keep_best=null"
            )


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by."""
    return "captions, on a base taught before"
