"""Settings of ChangeVG. Deviations from the paper, and the quirks of Change-Agent's MCI that are kept, are documented
at their fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.changeimti.config import CAPTION_QUESTION, TASKS, ImtiTask, RegionConfig
from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.nn.config import PairsTraining, WordCaptionerSettings, WordDecoderConfig
from idc.training.config import GroupConfig, KeepBest, RunName, TrainConfig, missing_device
from idc.util.option_values import DiskPath
from idc.vlm.config import PromptConfig, TuningJob

FOUR = tuple[int, int, int, int]


class BackboneConfig(ConfigModel):
    """The image encoder, SegFormer's of transformers; the defaults are MiT-B1 (paper, IV-A-1)."""

    weights: str | None = Field(None, min_length=1)
    """Initial weights: a hub id, such as nvidia/mit-b1, or a local folder, of the sizes below; default: random. The
    artifact does not need them."""
    widths: FOUR = (64, 128, 320, 512)
    """Channels of the four levels."""
    depths: FOUR = (2, 2, 2, 2)
    """Blocks of each level."""
    heads: FOUR = (1, 2, 5, 8)
    """Attention heads of each level."""
    reductions: FOUR = (8, 4, 2, 1)
    """Factor per axis by which keys and values of each level are downsampled."""
    first_stride: Literal[2, 4] = 4
    """Pixels of the image per position of the first level; each further level halves the resolution. 2, for small
    images, is not in the paper."""
    drop_path: float = Field(0.1, ge=0, lt=1)
    """Probability of dropping the last block in training; decreases linearly to 0 for the first."""

    def errors(self) -> Iterator[str]:
        for level, (width, heads) in enumerate(zip(self.widths, self.heads, strict=True)):
            if width < 1 or heads < 1 or width % heads:
                yield f"widths: {width} of level {level + 1} is not divisible by its heads, {heads}"
        for name in ("depths", "reductions"):
            if min(getattr(self, name)) < 1:
                yield f"{name}: {getattr(self, name)}: each is at least 1"


class GuideDecoderConfig(WordDecoderConfig):
    """MCI's word decoder: one post-norm layer with a residual connection around it."""

    width: int = Field(512, ge=8, multiple_of=2)
    """Width of the layers."""
    layers: int = Field(1, ge=1)
    """Number of layers."""
    heads: int = Field(8, ge=1)
    """Attention heads."""
    feedforward: int = Field(2048, ge=8)
    """Width of the feed-forward parts."""
    max_length: int = Field(42, ge=2)
    """Maximum tokens of a caption, begin and end token included. MCI generates up to 41 after the begin token."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of word embeddings, attention, residual branches and the output layer's input."""
    special_words: bool = False
    """Allow the search to generate the unknown word, padding and the begin mark, as MCI's does; set by converted
    weights."""


class GuideConfig(ConfigModel):
    """The guide's network."""

    image_size: int = Field(256, ge=32)
    """Side to which images and masks are resized, in pixels: a multiple of eight times `backbone.first_stride`."""
    backbone: BackboneConfig = BackboneConfig()
    """Image encoder, shared by both images."""
    heads: int = Field(8, ge=1)
    """Attention heads of the BI3 layers."""
    map_layers: int = Field(3, ge=1)
    """BI3 layers of the map's branch. MCI: 3; equation (8): 2."""
    summary_layers: int = Field(3, ge=1)
    """BI3 layers of the summary's branch. MCI: 3; not stated in the paper."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the BI3 layers. MCI's training: 0.1."""
    positions: int = Field(16, ge=1)
    """Rows of the tables of learned positions, at least the last level's side. MCI has 16 and uses 8 of them."""
    map: Literal["mci", "paper"] = "mci"
    """mci: BI3 layers on both images' last feature maps before the fusion, sums in the decoder, softmax over
    background, road and building. paper: equations (5) to (11): the layers follow on the fused map (and so are
    self-attention: BI3 needs two inputs), concatenation in the decoder, sigmoids. Equation (11) has one, for "changed";
    here there is one for roads and one for buildings, which are counted separately. Left open by the paper: a level
    keeps its width through the fusion; (9) and (10) end at half the image's size, from which the map is resized."""
    summary: Literal["mci", "paper"] = "mci"
    """How both images' feature maps become the summary's memory. mci: a residual block of three convolutions, each with
    batch norm, and ReLU of the sum. paper: equations (12) to (14), one batch norm and no ReLU of the sum; the width
    between the convolutions, not stated, is half the decoder's, as in MCI."""
    decoder: GuideDecoderConfig = GuideDecoderConfig()
    """Word decoder. Its attention is initialised like torch's linear layers; MCI's like torch's MultiheadAttention:
    one Xavier-initialised projection of queries, keys and values, without biases."""

    def errors(self) -> Iterator[str]:
        stride = 8 * self.backbone.first_stride
        if self.image_size % stride:
            yield f"image_size: {self.image_size} is not a multiple of {stride}, the stride of the last level"
        if self.image_size // stride > self.positions:
            yield f"positions: {self.positions} rows for a last level of {self.image_size // stride} positions a side"
        if self.backbone.widths[3] % self.heads or self.backbone.widths[3] % 2:
            yield f"heads: {self.heads} and 2 must divide the last of backbone.widths, {self.backbone.widths[3]}"


class GuideJob(WordCaptionerSettings, PairsTraining):
    """Train the guide on pairs with masks of roads and buildings, and captions. A pair without a mask must be of change
    type none."""

    ENTRY = "idc.systems.changevg.task:train"
    name: RunName = "guide"
    model: GuideConfig = GuideConfig()
    """The network."""
    goal: Literal["both", "summary", "map"] = "both"
    """What is trained. MCI trains both, then the summary's own modules, then the map's, each from the best weights of
    the previous training (`start`); the paper does not mention it. With summary or map the image encoder and the other
    branch are frozen."""
    balance: bool = True
    """With both: the loss is L_map / |L_map| + L_summary / |L_summary|, where the denominators are constants, as in
    MCI; the paper states no loss. Each micro-batch and worker divides by its own values, so that this loss depends on
    how a batch is cut. A denominator is at least 1e-6. false: the plain sum."""
    no_change_caption: str | None = "the scene is the same as before"
    """If a training pair has this caption, it is the one that is learned, as in MCI; of other pairs a caption is drawn
    at every visit. Null: always drawn."""
    min_count: int = Field(6, ge=1)
    """Words that occur less often in the training captions become the unknown word. MCI keeps words that occur more
    than five times in train, val and test together: 464 words of LEVIR-CC, where the training captions have 400."""
    optim: GroupConfig = GroupConfig(lr=1e-4)
    """Learning rate and schedule. MCI: Adam, 1e-4, constant."""
    train: TrainConfig = TrainConfig(
        epochs=250, batch_size=64, clip_norm=0.0, keep_best=KeepBest(metric="mIoU_plus_BLEU-4")
    )
    """The loop, with MCI's numbers. The weights with the best sum of mIoU and BLEU-4 on validation are exported. MCI
    also stops after 50 epochs without improvement; here all epochs are run."""


class ConvertMciJob(ConfigModel):
    """Convert the weights of Change-Agent's MCI to an artifact of the guide."""

    kind: Literal["mci"]
    """mci: the guide of ChangeVG. Others: other settings, see `kind=stage1 --help`."""
    weights: str = Field(min_length=1)
    """File to convert: `MCI_model.pth`."""
    vocabulary: str = Field(min_length=1)
    """The authors' word list, `vocab.json` of their repository."""
    out: DiskPath = Field(min_length=1)
    """Folder to write: an artifact with `conversion.json` in it."""
    image_size: int = Field(256, ge=32)
    """Side of the images; in no tensor. Official: 256."""
    heads: int = Field(8, ge=1)
    """Attention heads of BI3 layers and word decoder; in no tensor. Official: 8."""
    backbone_heads: FOUR = (1, 2, 5, 8)
    """Attention heads of the image encoder's levels; in no tensor. Official: 1, 2, 5, 8."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.weights, "weights")
        yield from missing(self.vocabulary, "vocabulary")


class ScoreGuideJob(ConfigModel):
    """Score a guide: its class maps and notes against the masks and flags of a folder of pairs."""

    pairs: str = Field(min_length=1)
    """Folder of pairs. Path or URI."""
    guide: str = Field(min_length=1)
    """Artifact of the guide."""
    out: DiskPath = Field(min_length=1)
    """Folder to write: guide.json with the scores of each split."""
    regions: RegionConfig = RegionConfig()
    """Which regions of a class map are counted, and where they are."""
    device: str = "cpu"
    """Torch device of the guide."""
    max_pairs: int | None = Field(None, ge=1)
    """Use only the first pairs of the folder."""
    batch_size: int = Field(16, ge=1)
    """Pairs that the guide sees at once."""

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")
        yield from missing(self.guide, "guide")
        yield from missing_device(self.device)


class GuidedPromptConfig(ConfigModel):
    """Which of the guide's notes are before a dialogue's first question, as in figure 3 of the paper. The released
    notebook quotes only the caption, without full stops, and only before requests for a caption; it learns only the
    reference nearest to the quoted caption, here all are learned."""

    summary: bool = True
    """Quote the caption (coarse branch)."""
    regions: bool = True
    """Quote counts and positions (fine branch)."""


class ChangeVgJob(TuningJob):
    """Tune a vision-language model on ChangeIMTI's questions, with a guide's notes before the first question of each
    dialogue. The artifact contains the guide, which the captioner runs before the language model."""

    ENTRY = "idc.systems.changevg.tuning:train"
    name: RunName = "changevg"
    pairs: str = Field(min_length=1)
    """Folder of instructions whose rows name their pairs (`jobs/build_changeimti.py`): training and validation
    split."""
    more_pairs: tuple[str, ...] = ()
    """Further such folders, of which only the training split is used."""
    guide: str | None = Field(None, min_length=1)
    """Artifact of the guide (`jobs/train_guide.py`), which runs once on every pair when the training starts or is
    resumed. Default: no guide (tables X to XIV, "w/o vision-guided"), and questions as they are stored."""
    quote: GuidedPromptConfig = GuidedPromptConfig()
    """How a dialogue's questions quote the notes, in training and by the captioner."""
    regions: RegionConfig | None = None
    """Which regions of the guide's class map are counted, and where they are, in training and by the captioner.
    Default: those of the answers that are learned, as `pairs` records how it was built."""
    tasks: tuple[ImtiTask, ...] = Field(default=TASKS, min_length=1)
    """Tasks that are learned (table VIII); rows of other tasks are left out. Validation scores captions against all
    captions of the pair, unless captions are left out."""
    prompt: PromptConfig = PromptConfig(text=CAPTION_QUESTION)
    """The captioner's request for a caption: ChangeIMTI's, which is learned."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if len(set(self.tasks)) < len(self.tasks):
            yield f"tasks: {', '.join(self.tasks)} names one twice"
        if self.captions != "each":
            yield "captions: every caption is a row of the instructions; leave it out"
        if self.guide is None:
            fields = type(self).model_fields
            for name in ("quote", "regions"):
                if getattr(self, name) != fields[name].get_default():
                    yield f"{name}: not used without a guide; give guide=, or leave it out"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs", kind="instructions")
        for path in self.more_pairs:
            yield from missing_pairs(path, "more_pairs", kind="instructions")
        yield from missing(self.guide, "guide")


GUIDE = "guide"
"""Value of ``part`` in the config of a guide's artifact; in a tuned model's artifact the folder of its guide."""


def is_guide(saved: dict[str, Any]) -> bool:
    """Whether an artifact is a guide, and no tuned model, whose job says what of it was tuned."""
    return "tune" not in saved.get("job", {})


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by."""
    if is_guide(saved):
        return "captions and masks of roads and buildings"
    return "captions, and answers from masks of roads and buildings, on a base taught before"
