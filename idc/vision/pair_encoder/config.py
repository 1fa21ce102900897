"""Settings of the pair encoder and its training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.training.config import GroupConfig, KeepBest, TrainConfig


class PairEncoderConfig(ConfigModel):
    """Shape of the pair encoder (CLIP4IDC); the defaults are CLIP's ViT-B/32 with 9 separate and 3 joint blocks."""

    image_size: int = Field(224, ge=8)
    """Images are resized to this many pixels on both sides, whatever their aspect (CLIP4IDC's plain bicubic resize)."""
    patch_size: int = Field(32, ge=1)
    """Pixels a side of a patch."""
    width: int = Field(768, ge=8)
    """Width of the image blocks."""
    heads: int = Field(12, ge=1)
    """Attention heads of an image block. CLIP: width / 64."""
    separate_layers: int = Field(9, ge=1)
    """Blocks that see before and after each for itself (official intra_num_hidden_layers)."""
    joint_layers: int = Field(3, ge=1)
    """Blocks after them that see both at once."""
    text_width: int = Field(512, ge=8)
    """Width of the text blocks."""
    text_heads: int = Field(8, ge=1)
    """Attention heads of a text block. CLIP: text_width / 64."""
    text_layers: int = Field(12, ge=1)
    """Text blocks."""
    text_positions: int = Field(77, ge=2)
    """Tokens that a text may have at most, begin and end token included."""
    embedding: int = Field(512, ge=1)
    """Width of the vectors of pairs and texts."""

    def faults(self) -> Iterator[str]:
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


class TrainPairEncoderJob(ConfigModel):
    """Train a pair encoder on a folder of pairs with captions: pairs and their captions get like vectors.

    As CLIP4IDC's adaptation on retrieval, but for: a linear decay of the learning rate instead of a cosine; a sample is
    a pair with one of its captions drawn anew each epoch, not each caption of a pair; CLEVR-Change's distractor image
    is not put in the place of the image before in half of the samples; the best validation is selected, not the best
    test.
    """

    name: str = Field("pair-encoder", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`, and what a restart is recognised by."""
    runs: str = "runs"
    """Folder of all runs."""
    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    max_pairs: int | None = Field(None, ge=1)
    """Train on the first this many pairs of the training split; all of them if not given."""
    validation_pairs: int | None = Field(None, ge=1)
    """Retrieve among this many pairs of the validation split, evenly spread; all of them if not given."""
    changed_only: bool = True
    """Leave out pairs in which nothing changed (official): their captions fit all of them."""
    clip: str | None = None
    """CLIP to begin with: a local folder or a hub id, by transformers (official: openai/clip-vit-base-patch32). Its
    tokenizer is taken too. Empty: random weights, and the words of the training captions."""
    encoder: PairEncoderConfig = PairEncoderConfig()
    """Shape; with `clip`, that CLIP's."""
    init: Literal["normal", "comparing"] = "normal"
    """Random weights to begin with. normal: as CLIP4IDC draws them. comparing: a patch has the same position in both
    images, and attention begins as one that takes from each token what stands at like tokens; for small encoders
    without CLIP's weights."""
    max_words: int = Field(32, ge=3)
    """Tokens of a caption at most, begin and end token included; the rest is cut off."""
    min_word_count: int = Field(1, ge=1)
    """Without `clip`: words of training captions that occur less often become unknown."""
    optim: GroupConfig = GroupConfig(lr=1e-4, weight_decay=0.2, schedule="linear_warmup_decay", warmup_share=0.1)
    """Learning rate of what CLIP does not have (the joint positions and norm, the embeddings of before and after);
    without `clip` of everything. Norms, biases and single vectors do not decay (official: norms do)."""
    clip_lr_share: float = Field(1e-3, ge=0, le=1)
    """Learning rate of CLIP's own weights over optim.lr (official coef_lr)."""
    train: TrainConfig = TrainConfig(
        epochs=12, batch_size=128, betas=(0.9, 0.98), eps=1e-6, keep_best=KeepBest(metric="text_to_pair_R1")
    )
    """The loop."""

    def faults(self) -> Iterator[str]:
        if self.max_words > self.encoder.text_positions:
            yield f"max_words: {self.max_words} is more than encoder.text_positions = {self.encoder.text_positions}"
        if self.train.grad_accumulation > 1:
            yield (
                f"train.grad_accumulation: {self.train.grad_accumulation}, but the loss compares all pairs of a step "
                "with each other; take 1, and more workers"
            )
        if self.clip is not None and self.init != "normal":
            yield f"init: {self.init!r} would be undone by the weights of clip = {self.clip!r}; take 'normal'"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
