"""Settings of the pair encoder and its training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.data.manifest import missing_pairs
from idc.training.config import GroupConfig, KeepBest, RunName, TrainConfig, TrainingJob


class PairEncoderConfig(ConfigModel):
    """Shape of the pair encoder (CLIP4IDC); the defaults are CLIP's ViT-B/32 with 9 separate and 3 joint blocks."""

    image_size: int = Field(224, ge=8)
    """Images are resized to this many pixels on both sides, whatever their aspect ratio (bicubic, as CLIP4IDC)."""
    patch_size: int = Field(32, ge=1)
    """Pixels per side of a patch."""
    width: int = Field(768, ge=8)
    """Width of the image blocks."""
    heads: int = Field(12, ge=1)
    """Attention heads of an image block. CLIP: width / 64."""
    separate_layers: int = Field(9, ge=1)
    """Blocks that see each image by itself (official intra_num_hidden_layers)."""
    joint_layers: int = Field(3, ge=1)
    """Blocks after them that see both images."""
    text_width: int = Field(512, ge=8)
    """Width of the text blocks."""
    text_heads: int = Field(8, ge=1)
    """Attention heads of a text block. CLIP: text_width / 64."""
    text_layers: int = Field(12, ge=1)
    """Text blocks."""
    text_positions: int = Field(77, ge=2)
    """Maximum tokens of a text, begin and end token included."""
    embedding: int = Field(512, ge=1)
    """Width of the vectors of pairs and texts."""

    def errors(self) -> Iterator[str]:
        if self.image_size % self.patch_size:
            yield (
                f"image_size: {self.image_size} is not divisible by patch_size = {self.patch_size}; take "
                f"{max(1, round(self.image_size / self.patch_size)) * self.patch_size}"
            )
        for width, heads in (("width", "heads"), ("text_width", "text_heads")):
            if getattr(self, width) % getattr(self, heads):
                yield f"{width}: {getattr(self, width)} is not divisible by {heads} = {getattr(self, heads)}"

    @property
    def tokens(self) -> int:
        """Tokens of one image: its patches and the class token."""
        return int((self.image_size // self.patch_size) ** 2 + 1)


class TrainPairEncoderJob(TrainingJob):
    """Train a pair encoder on a folder of pairs with captions, so that pairs and their captions get similar vectors.

    As CLIP4IDC's adaptation on retrieval, except that: the learning rate decays linearly instead of by a cosine; a
    sample is a pair with one of its captions, drawn anew each epoch, not each caption of a pair; CLEVR-Change's
    distractor image does not replace the image before in half of the samples; the best validation is selected, not the
    best test.
    """

    ENTRY = "idc.vision.pair_encoder.task:train"
    name: RunName = "pair-encoder"
    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    max_pairs: int | None = Field(None, ge=1)
    """Number of training pairs, the first of the split; default all."""
    validation_pairs: int | None = Field(None, ge=1)
    """Number of validation pairs to retrieve among, of each change type in proportion; default all."""
    changed_only: bool = True
    """Skip pairs in which nothing changed (official), because their captions fit all of them."""
    clip: str | None = None
    """CLIP to start from, with its tokenizer: a local folder or a hub id (official: openai/clip-vit-base-patch32).
    Empty: random weights, and the words of the training captions."""
    encoder: PairEncoderConfig = PairEncoderConfig()
    """Shape; with `clip`, that CLIP's."""
    init: Literal["normal", "comparing"] = "normal"
    """Initial random weights. normal: as CLIP4IDC draws them. comparing: a patch has the same position embedding in
    both images, and attention initially subtracts from each token the content of similar tokens; for small encoders
    without CLIP's weights."""
    max_words: int = Field(32, ge=3)
    """Maximum tokens of a caption, begin and end token included; longer ones are truncated."""
    min_word_count: int = Field(1, ge=1)
    """Without `clip`: rarer words of the training captions become the unknown word."""
    optim: GroupConfig = GroupConfig(lr=1e-4, weight_decay=0.2, schedule="linear_warmup_decay", warmup_share=0.1)
    """Learning rate of the parameters that CLIP lacks (the joint positions and norm, the embeddings of before and
    after), without `clip` of all. Norms, biases and single vectors have no weight decay (official: norms have)."""
    clip_lr_share: float = Field(1e-3, ge=0, le=1)
    """Learning rate of CLIP's own weights as a share of optim.lr (official coef_lr)."""
    train: TrainConfig = TrainConfig(
        epochs=12, batch_size=128, betas=(0.9, 0.98), eps=1e-6, keep_best=KeepBest(metric="text_to_pair_R1")
    )
    """The loop."""

    def errors(self) -> Iterator[str]:
        if self.max_words > self.encoder.text_positions:
            yield f"max_words: {self.max_words} is more than encoder.text_positions = {self.encoder.text_positions}"
        if self.train.grad_accumulation > 1:
            yield (
                f"train.grad_accumulation: {self.train.grad_accumulation}, but the loss compares all pairs of a step "
                "with each other; set it to 1 and use more workers"
            )
        if self.clip is not None and self.init != "normal":
            yield f"init: {self.init!r} would be overwritten by the weights of clip = {self.clip!r}; take 'normal'"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs", captions=True)
