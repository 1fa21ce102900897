"""NAMC's settings. The defaults are the paper's ("Learning to Describe Implicit Changes: Noise-robust Pre-training for
Image Difference Captioning"; section 3, appendices E and F). No official code exists: what the paper leaves open, and
how it is filled, is documented at the field it concerns, and listed in this folder's README.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.nn.config import WordCaptionerSettings, WordDecoderConfig
from idc.training.config import GroupConfig, KeepBest, RunName, TrainConfig, TrainingJob

Cnn = Literal["resnet", "efficientnet_lite0", "stem"]
CNN_STRIDE = 16
"""Pixels per position of the grid features of every `Cnn`."""


class ImageConfig(ConfigModel):
    """How an image becomes n_I positions, for all parts: patches of CLIP, grid features of the CNN, image tokens."""

    grid: int = Field(14, ge=2)
    """Positions per side; n_I = grid * grid. Images are resized to 16 * grid pixels per side."""
    cnn: Cnn = "resnet"
    """The pre-trained CNN of section 3.2.2, frozen: resnet: ResNet's third stage (paper: ResNet-101, 1024 channels);
    efficientnet_lite0: the blocks of EfficientNet-Lite0 at the same stride (112 channels), whose ImageNet weights are
    in a Python package. stem (not in the paper): convolutions trained with the captioner, for images that resemble no
    photograph; it cannot be the target of `MirConfig.target` l1 or l2."""
    resnet: str = "microsoft/resnet-101"
    """ResNet of transformers for `cnn: resnet`, a local folder or hub id. The paper states ResNet-101 and 1024
    channels, not whose weights."""
    stem_channels: tuple[int, ...] = (32, 64, 128, 128)
    """Channels of the four levels of `cnn: stem`, each of which halves the resolution."""

    def errors(self) -> Iterator[str]:
        if self.cnn == "stem" and len(self.stem_channels) != 4:
            yield f"stem_channels: {len(self.stem_channels)} levels; a stride of {CNN_STRIDE} pixels needs 4"
        if any(channels < 8 or channels % 8 for channels in self.stem_channels):
            yield "stem_channels: every level needs a multiple of 8 channels, the groups of its norm"

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return CNN_STRIDE * self.grid


class ClipConfig(ConfigModel):
    """Sizes of a dual encoder that is trained from scratch; with `NimConfig.clip` they are those of that CLIP."""

    width: int = Field(128, ge=8)
    """Width of both Transformers, and of the shared space."""
    layers: int = Field(3, ge=1)
    """Layers of both Transformers. Paper (CLIP-B/16): 12."""
    heads: int = Field(4, ge=1)
    """Attention heads. Paper: 12 (images), 8 (texts)."""

    def errors(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"


class NimConfig(ConfigModel):
    """Noise Identification and Masking (section 3.2.1). Its text encoder learns from L_MIR too, whose cross-attention
    reads E_T(T^msk) (sections 3.2.2, 3.3): the paper stops no gradient there, and neither does this. Masks are drawn,
    so neither L_MIR nor L_FDG reaches the dual encoder through them; the relevance is computed without gradient."""

    enabled: bool = True
    """Whether there is a dual encoder, its loss, and masks. Off (table 6, second ablation): images and descriptions
    are used as they are, so MIR has nothing to reconstruct and must be off too."""
    clip: str | None = None
    """CLIP of transformers that the dual encoder starts from, a local folder or hub id, with patches of 16 pixels; its
    tokenizer splits words into pieces. Paper: openai/clip-vit-base-patch16. Empty: `encoder`, from scratch, on
    words."""
    encoder: ClipConfig = ClipConfig()
    """The dual encoder without `clip`."""
    image_ratio: float = Field(0.2, ge=0, le=1)  # p_I
    """Masking probability ratio p_I of image tokens."""
    text_ratio: float = Field(0.15, ge=0, le=1)  # p_T
    """Masking probability ratio p_T of words."""
    masking: Literal["noise", "random"] = "noise"
    """noise: a token's probability is p + IR - mean(IR), with its irrelevance IR, one minus its highest cosine
    similarity with a token of the other modality (section 3.2.1); the paper leaves open how a probability outside
    [0, 1] is treated and how masks are drawn: it is clipped, and each token is drawn for itself. random: p for every
    token (figure 3). The similarities are those in CLIP's shared space, i.e. after its projections; begin, end and
    padding tokens neither count as partners nor are masked; a word of several pieces has the mean of their
    probabilities and is masked as a whole; an image keeps at least one position."""
    loss: Literal["sdm", "infonce"] = "sdm"
    """The contrastive loss: sdm is similarity distribution matching (eq. 13 to 16), infonce that of table 7. Negatives
    are the other pairs of a micro-batch, of all workers together, so that their number does not count; appendix E has
    those of a "mini-batch" and does not say whether it is a GPU's. With `train.grad_accumulation` a pair has fewer of
    them, as the micro-batches of a step are computed one after another: 8 times 1 is another loss than once 8. In
    validation they are those of a worker's batch."""
    temperature: float = Field(0.02, gt=0)  # tau
    """Temperature tau of eq. 14; not stated in the paper. 0.02 is that of the loss's authors (IRRA)."""
    token_weight: float = Field(0.0, ge=0)
    """Weight of a loss of single tokens, added to L_NIM: whether a word, by its most similar patch, belongs to an
    image, and a patch, by its most similar word, to a description, among those of a subset: the similarities of eq. 1.
    Not in the paper: its loss reads [CLS] and [EOS], so no gradient reaches the patch tokens that eq. 1 compares, and
    their relevance is that of CLIP, which a dual encoder from scratch does not have."""
    token_temperature: float = Field(0.07, gt=0)
    """Temperature of the loss of single tokens."""
    masks_from: int = Field(0, ge=0)
    """Optimizer step from which tokens are masked; before it all losses read whole images and descriptions, and MIR,
    which has nothing to reconstruct, rests. Not in the paper, whose relevance is CLIP's from the first step on."""
    align_images: Literal["denoised", "raw"] = "denoised"
    """Which images the contrastive loss aligns (table 8)."""
    align_texts: Literal["denoised", "raw"] = "denoised"
    """Which descriptions the contrastive loss aligns (table 8)."""


class MirConfig(ConfigModel):
    """Masked Image Reconstruction (section 3.2.2)."""

    enabled: bool = True
    """Whether masked positions are reconstructed. Off (table 6, first ablation): the masked image encoder is trained
    by the generation of descriptions alone."""
    target: Literal["discrete", "l1", "l2"] = "discrete"
    """Prediction at masked positions: image tokens (eq. 18), or the raw features X_i by an L1 or L2 loss
    (table 7). Eq. 18 sums over positions, as BEiT's, which the paper follows; here, as in BEiT's code, it is the mean
    over the masked positions of an image, summed over a pair's two images, mean over the pairs."""


class EncoderConfig(ConfigModel):
    """The masked image encoder of MIR (appendix F). The paper says "standard Transformer layers" and gives the order
    self-attention, cross-attention; norms come before each part here, and the feed-forward part is four times as
    wide."""

    width: int = Field(768, ge=8)  # d
    """Hidden size d."""
    layers: int = Field(2, ge=1)
    """Layers; figure 9 varies them."""
    heads: int = Field(12, ge=1)
    """Attention heads."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the residual branches; not stated in the paper."""
    comparing: bool = False
    """Start the co-attention so that each position attends to its own place in the other image and subtracts what it
    finds there. Not in the paper, whose pre-training has 770,000 pairs; on a few thousand an encoder from scratch
    hardly learns to compare."""

    memory_norm: Literal["none", "batch"] = "none"
    """Norm of what the decoder attends to; the paper has none. `batch` normalises each position and channel over the
    batch, so that what all pairs have in common, above all the positions, does not hide their differences: with a few
    thousand pairs the decoder then learns to attend within hundreds of steps. It is computed over a worker's
    micro-batch, so accumulation and the number of workers change its numbers; captioning uses running averages."""

    def errors(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"


class DecoderConfig(WordDecoderConfig):
    """FDG's multi-modal decoder (appendix F). Input and output embedding are one tensor: with that, with the 30,522
    word pieces of BERT, whose vocabulary has the paper's word [MASK], and with the 1024 image tokens of MIR's
    classifier the model has 64.27 million parameters at the default `max_length` and 64.21 million with 24 positions;
    table 5 has 64.2. Here the vocabulary is words of the training texts instead of word pieces.

    L_FDG is the mean over the words of a description, then over the pairs; section 3.3 maximises their log-likelihood
    and states no scale. Fine-tuning likewise, over the words of a caption."""

    width: int = Field(768, ge=8)
    """Hidden size, that of the encoder."""
    heads: int = Field(12, ge=1)
    """Attention heads."""
    feedforward: int = Field(3072, ge=8)
    """Width of the feed-forward parts; not stated in the paper."""
    max_length: int = Field(96, ge=2)
    """Maximum tokens of a description, begin and end token included; longer ones are cut. Not stated in the paper."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the residual branches; not stated in the paper."""


class ModelConfig(ConfigModel):
    """Settings that pre-training and fine-tuning share."""

    image: ImageConfig = ImageConfig()
    """Images and the CNN's grid features."""
    encoder: EncoderConfig = EncoderConfig()
    """MIR's masked image encoder."""
    decoder: DecoderConfig = DecoderConfig()
    """FDG's multi-modal decoder."""

    def errors(self) -> Iterator[str]:
        if self.decoder.width != self.encoder.width:
            yield (
                f"decoder.width: {self.decoder.width}, but it attends to the encoder, whose width is "
                f"{self.encoder.width}; give both the same"
            )


class _RunConfig(TrainingJob):
    """Settings of both stages."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: training and validation split."""
    cache_mb: int = Field(2048, ge=0)
    """Keep decoded images, and what the frozen parts compute of them, in memory, up to this many MiB per worker."""
    train: TrainConfig
    """The loop."""

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs", captions=True)


class PretrainJob(_RunConfig):
    """Noise-robust pre-training: L = L_NIM + L_MIR + L_FDG (eq. 2) on described pairs."""

    ENTRY = "idc.systems.namc.task:pretrain"
    name: RunName = "namc-pretrain"
    pairs: str = Field(min_length=1)
    """Folder of described pairs (jobs/describe_pairs.py): each has a caption that follows the structured template.
    Pairs with other captions are left out, and counted; without NIM, which alone needs a description of each image,
    they are used as they are (table 11)."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of described pairs, of which only the training split is used (figure 4 mixes three)."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the training pairs that is used, the first of each folder in a fixed random order (figure 4)."""
    exchange: bool = False
    """Order exchange (table 12): every other sample has its images exchanged, and its description; not those with
    other captions."""
    tokenizer: str | None = None
    """Artifact of an image tokenizer with the same grid: its tokens are what MIR reconstructs. Required unless MIR is
    off or reconstructs features."""
    caption_pairs: str | None = None
    """Folder of pairs whose training captions add their words to the vocabulary, so that fine-tuning finds them.
    Empty: words that only captions have start untrained in fine-tuning, and the pre-training serves any data set; the
    full-size sweeps leave it empty and pre-train once for all of them."""
    model: ModelConfig = ModelConfig()
    """Encoder and decoder."""
    nim: NimConfig = NimConfig()
    """Noise identification and masking."""
    mir: MirConfig = MirConfig()
    """Masked image reconstruction."""
    masked_words: Literal["predict", "skip"] = "predict"
    """Targets of the generation loss for words that the denoised description has lost; in the decoder's input they
    are [MASK] in either case. predict: they are the target [MASK], which section 3.2.1 puts in their place: "leveraging
    the denoised implicit-change descriptions as textual ground truth" (3.3), "to predict the ground-truth of denoised
    implicit-change descriptions" (3.2.3). skip: they are no target, another reading of "the log-likelihood of the
    observed word sequences" (3.3). Captions never contain [MASK]."""
    nim_optim: GroupConfig = GroupConfig(lr=1e-4, schedule="linear_warmup_cosine", final_lr=1e-5)
    """Learning rate of the dual encoder: from 1e-4 to 1e-5; the paper does not state the shape of the schedule."""
    optim: GroupConfig = GroupConfig(lr=3e-4, schedule="linear_warmup_cosine", final_lr=1e-4)
    """Learning rate of the masked image encoder and the decoder: from 3e-4 to 1e-4."""
    train: TrainConfig = TrainConfig(epochs=20, batch_size=512, optimizer="adam")
    """The loop. Paper: 20 epochs of 512 pairs, Adam. An epoch has every pair once. `clip_norm` bounds the gradient of
    all three modules together; the paper states no clipping, 0 is without."""

    def errors(self) -> Iterator[str]:
        reconstructs = self.nim.enabled and self.mir.enabled
        if self.mir.enabled and not self.nim.enabled:
            yield "mir.enabled: without NIM no position is masked, so there is nothing to reconstruct; set it to false"
        if reconstructs and self.mir.target == "discrete" and self.tokenizer is None:
            yield "tokenizer: required; MIR reconstructs the tokens of an image tokenizer (jobs/train_tokenizer.py)"
        if self.tokenizer is not None and not (reconstructs and self.mir.target == "discrete"):
            yield "tokenizer: not used without MIR's discrete reconstruction; remove it"
        if reconstructs and self.mir.target != "discrete" and self.model.image.cnn == "stem":
            yield f"mir.target: {self.mir.target} needs the features of a frozen CNN, not of a stem that is trained"
        if self.nim.enabled and self.train.micro_batch_size < 2:
            yield "train.batch_size: 1 pair per micro-batch; the contrastive loss needs at least 2"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for path in self.more_pairs:
            yield from missing_pairs(path, "more_pairs", captions=True)
        yield from missing(self.tokenizer, "tokenizer")
        yield from missing(self.caption_pairs, "caption_pairs")


class FinetuneJob(WordCaptionerSettings, _RunConfig):
    """Fine-tuning on captions of changes, without NIM (section 4, appendix F)."""

    ENTRY = "idc.systems.namc.task:finetune"
    name: RunName = "namc-finetune"
    pretrained: str | None = None
    """Artifact of the pre-training. Empty: train from scratch."""
    model: ModelConfig | None = None
    """Encoder and decoder, if trained from scratch; with `pretrained` those of the artifact."""
    max_length: int = Field(24, ge=2)
    """Maximum tokens of a caption, begin and end token included. Paper: 23 tokens."""
    optim: GroupConfig = GroupConfig(lr=2e-4)
    """Learning rate; the paper states 2e-4 and no schedule."""
    references: Literal["drawn", "all"] = "drawn"
    """Captions of a pair that a step learns: drawn: one, drawn at each visit; all: every one, the mean over a pair's
    captions, for a quarter more time with six, as the encoder reads the pair once. The paper counts pairs and does not
    say."""
    train: TrainConfig = TrainConfig(epochs=40, batch_size=128, optimizer="adam", keep_best=KeepBest(metric="CIDEr"))
    """The loop. Paper: batches of 128; 40 epochs on CLEVR-Change and CLEVR-DC, 10 on Spot-the-Diff, 20 on
    Image-Editing-Request. An epoch has every pair once, with a caption drawn at each visit; the paper does not state
    whether its epochs count pairs or captions (of CLEVR-Change 6.2 a pair). The best validation CIDEr is selected, so
    `eval_every` must lie below the steps of the run (Image-Editing-Request: 479); how the paper selects is not stated.
    `clip_norm` as in pre-training."""

    def errors(self) -> Iterator[str]:
        if (self.pretrained is None) == (self.model is None):
            yield "pretrained, model: give one of the two; a pre-trained artifact has its own model"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.pretrained, "pretrained")


def is_captioner(saved: dict[str, Any]) -> bool:
    """Whether the config of a NAMC artifact is that of a fine-tuned one."""
    return saved.get("stage") == "finetune"


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by: generated descriptions in pre-training, if it had one."""
    return "captions and generated descriptions" if saved["job"]["pretrained"] else "captions"
