"""Settings of the image tokenizer, its training, and the procedures. No torch here.

The defaults are the paper's (ProCap, appendix H); small presets are YAML files in ``jobs/configs/vision``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.training.config import GroupConfig, KeepBest, TrainConfig


class TokenizerConfig(ConfigModel):
    """Shape of the VQGAN image tokenizer, a ``diffusers.VQModel``."""

    image_size: int = Field(224, ge=8)
    """Images are resized to this many pixels on both sides, whatever their aspect (ProCap's plain resize)."""
    patch_size: int = Field(1, ge=1)
    """Space-to-depth before the first convolution: blocks of this many pixels a side become channels. 1 is the VQGAN;
    2 makes a small tokenizer about four times faster, as its widest maps are those of the full resolution."""
    channels: int = Field(128, ge=1)
    """Width of the first level."""
    channel_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    """Width of each level over `channels`; every level but the last halves the resolution."""
    res_blocks: int = Field(2, ge=1)
    """Residual blocks of a level in the encoder (the decoder has one more)."""
    mid_attention: bool = True
    """Self-attention at the lowest resolution, between its residual blocks."""
    norm_groups: int = Field(32, ge=1)
    """Groups of the group normalisation."""
    codebook_size: int = Field(1024, ge=2)  # K
    """Codes K."""
    latent_dim: int = Field(256, ge=1)  # d_z
    """Width d_z of a code and of a patch's feature."""
    feature_range: Literal["signed", "unit"] = "signed"
    """Range of the pixels that features are computed from. The encoder is trained on [-1, 1] (signed); the official
    ProCap code computes features, not tokens, from images in [0, 1] (unit), which costs a second pass."""
    resize: Literal["bicubic", "bilinear"] = "bicubic"
    """Filter that brings images to `image_size`, antialiased. Official: bilinear, and not rounded to whole grey levels
    afterwards: the captioner does so too, while frames of stored procedures are rounded."""

    def faults(self) -> Iterator[str]:
        if self.image_size % self.stride:
            yield (
                f"image_size: {self.image_size} is not divisible by {self.stride} = patch_size * 2 ** "
                f"(len(channel_mult) - 1); take {max(1, round(self.image_size / self.stride)) * self.stride}"
            )
        if not self.channel_mult:
            yield "channel_mult: needs at least one level"
        for mult in self.channel_mult:
            if mult < 1 or self.channels * mult % self.norm_groups:
                yield (
                    f"channel_mult: {mult} * channels = {self.channels * mult} is not divisible by "
                    f"norm_groups = {self.norm_groups}"
                )

    @property
    def stride(self) -> int:
        """Pixels a side of one patch (f in VQGAN's papers)."""
        return int(self.patch_size * 2 ** max(0, len(self.channel_mult) - 1))

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        side = self.image_size // self.stride
        return side, side

    @property
    def patches_per_frame(self) -> int:  # n_I
        return self.grid[0] * self.grid[1]


class TokenizerLossConfig(ConfigModel):
    """How the tokenizer learns. Not stated in the paper beyond "an image reconstruction task"."""

    l1: float = Field(1.0, ge=0)
    """Weight of the mean absolute error of pixels in [-1, 1]."""
    l2: float = Field(1.0, ge=0)
    """Weight of the mean squared error of pixels in [-1, 1]."""
    commitment: float = Field(0.25, ge=0)  # beta
    """Weight beta of the distance of encoder outputs to their codes."""
    codebook_decay: float = Field(0.99, ge=0, lt=1)
    """Codes are moving averages of the encoder outputs they stand for; this is the decay a step."""
    linear_start: bool = False
    """Begin as the principal component analysis of the training images' patches instead of from random weights; needs a
    tokenizer of one level (channel_mult: [1], patch_size the whole stride). What makes a tokenizer that is trained for
    a minute on a laptop see colours and shapes."""
    codebook_start: int = Field(0, ge=0)
    """Optimizer steps without quantisation at first: the autoencoder learns faster then, and the codebook begins as
    k-means centres of its outputs. 0: the codebook begins after the first step."""
    continuous_share: float = Field(0.0, ge=0, lt=1)
    """Share of training images that are decoded without quantisation, all the time: keeps the encoder's features,
    which captioners read, from being trained through the codebook alone."""
    revive_after: int = Field(100, ge=1)
    """Steps after which a code that stood for no patch is placed anew among the patches that fit the codebook worst."""
    blend_share: float = Field(0.0, ge=0, le=1)
    """Share of training images that are a mixture of before and after, as the frames between them are (the official
    tokenizers are fine-tuned on random frames of procedures)."""
    flip: bool = True
    """Mirror half of the training images."""
    adversarial: float = Field(0.0, ge=0)
    """Weight of a patch discriminator's hinge loss (taming: 0.8, scaled adaptively there; not here). 0: none."""
    adversarial_start: int = Field(0, ge=0)
    """Optimizer step at which the discriminator begins to count."""
    optim: GroupConfig = GroupConfig(lr=1e-3, schedule="linear_warmup_decay", warmup_share=0.05)
    """Learning rate of encoder, decoder and discriminator."""

    def faults(self) -> Iterator[str]:
        if self.l1 == self.l2 == 0:
            yield "l1 and l2: at least one needs a weight above 0"


class TrainTokenizerJob(ConfigModel):
    """Train an image tokenizer on the images of a folder of pairs."""

    name: str = Field("tokenizer", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`, and what a restart is recognised by."""
    runs: str = "runs"
    """Folder of all runs."""
    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    max_pairs: int | None = Field(None, ge=1)
    """Train on the first this many pairs of the training split; all of them if not given."""
    validation_pairs: int | None = Field(64, ge=1)
    """Measure on this many pairs of the validation split, evenly spread; all of them if not given."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Shape."""
    loss: TokenizerLossConfig = TokenizerLossConfig()
    """Losses and codebook."""
    train: TrainConfig = TrainConfig(steps=100_000, batch_size=32)
    """The loop."""

    def faults(self) -> Iterator[str]:
        if self.loss.adversarial and self.train.zero_stage == 3:
            yield (
                "loss.adversarial: the discriminator is called with detached weights, which ZeRO stage 3 does not hold "
                "in one piece; take train.zero_stage=2 or loss.adversarial=0"
            )
        if self.loss.linear_start:
            shape = self.tokenizer
            width, needed = shape.channels * shape.channel_mult[0], 2 * (shape.latent_dim + shape.norm_groups)
            if len(shape.channel_mult) != 1:
                yield f"loss.linear_start: needs one level, and tokenizer.channel_mult is {list(shape.channel_mult)}"
            elif width < needed:
                yield (
                    f"loss.linear_start: needs tokenizer.channels of at least {needed} = "
                    f"2 * (latent_dim + norm_groups), got {width}"
                )
            elif width // shape.norm_groups % 2:
                yield "loss.linear_start: needs an even number of channels in every normalisation group"
        if self.train.steps is not None and self.loss.codebook_start >= self.train.steps:
            yield (
                f"loss.codebook_start: {self.loss.codebook_start} is not before train.steps = {self.train.steps}; "
                "the codebook would never be used"
            )

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")


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


class ProceduresConfig(ConfigModel):
    """How procedures are made of pairs (ProCap, sections 3.1.1 and 3.1.2)."""

    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    tokenizer: str = Field(min_length=1)
    """Folder of a trained image tokenizer."""
    depth: int = Field(3, ge=1, le=8)  # d
    """Recursion depth d of the interpolation: l = 2^d - 1 frames between before and after (paper: l = 7)."""
    interpolation: Literal["dis", "blend", "vfiformer"] = "dis"
    """What makes a frame half way between two: bidirectional DIS optical flow, their mean, or VFIformer, as in the
    paper (give gpus_per_actor: on a CPU the full one takes seconds a frame)."""
    interpolation_weights: str | None = None
    """Weights of vfiformer: the artefact of jobs/train_interpolator.py, or an official checkpoint (net_220.pth)."""
    videos: tuple[str, ...] = ()
    """HDF5 files of frames (9, 3, H, W) by pair, as the official code has them (`sc_videos.h5`, `nsc_videos.h5`), to be
    taken instead of interpolated ones; empty: interpolate. Their frames are before, 2^depth - 1 between, and after."""
    video_channels: Literal["rgb", "bgr"] = "rgb"
    """Order of the channels in `videos`. The official code reads them as rgb; VFIformer, which made them, works in bgr,
    and whether they were swapped before they were stored is not documented: look at the pictures in the tracker."""
    strategy: Literal["visual", "visual_text", "mixed", "random", "uniform"] = "visual"
    """How key frames are chosen (appendix C, figure 4). By the confidence of eq. 2, from `visual` similarity of the
    frames to both ends, or from `visual_text`: how well the change from before to a frame, and from the frame to after,
    agrees with the caption (the paper's choice; it needs pair_encoder or scores), or `mixed` of both. `random`: all
    frames equally likely. `uniform`: evenly spaced frames, nothing drawn (official use_fi_frames)."""
    similarity: Literal["tokenizer", "pixels", "dinov2"] = "tokenizer"
    """What `visual` compares: the tokenizer's patch features, pixels, or DINOv2's feature of the image (paper)."""
    dinov2: str = "facebook/dinov2-large"
    """DINOv2 for similarity=dinov2: a local folder or a hub id, by transformers. Paper: ViT-L/14. Which of its outputs
    is compared the paper does not say: here the class token after the last norm."""
    pair_encoder: str | None = None
    """Folder of a trained or converted pair encoder, for the strategies visual_text and mixed (eq. 12). A frame is
    compared as (before, frame) and (frame, after): in the order of time, as the official scores are named, for the
    pair encoder tells orders apart; eq. 12 read by the letter would give it (after, frame). With several captions the
    mean over them counts (official); the paper speaks of one. A pair without captions has equal confidence
    everywhere."""
    scores: str | None = None
    """The official code's similarities (its `*_similarity_scores.json`) instead of computed ones: visual_text takes the
    file's CLIP4IDC similarities, visual its DINOv2 ones. Pairs of CLEVR-Change are found by their names 000123c and
    000123nc, others by the file's own keys. A pair that is not in the file has equal confidence everywhere."""
    mix: float = Field(0.7, ge=0, le=1)
    """Share of visual_text in `mixed`, the rest is visual (official: 0.7; the paper does not describe it). Both squared
    differences are first brought to [0, 1]: with `scores` by the least and greatest of the whole file, changed and
    unchanged pairs apart (official), else by those of the pair's own frames, as a build sees one pair at a time."""
    temperature: float = Field(1.0, gt=0)
    """The squared differences of eq. 2 are divided by this before the softmax. Paper: 1. Cosines differ by a few
    hundredths between frames, so at 1 the softmax, and the confidence with it, is nearly the same for all frames;
    0.001 tells them apart."""
    num_keyframes: int = Field(2, ge=1)  # k
    """Key frames k drawn by confidence."""
    seed: int = Field(0, ge=0)
    """Seed of the draw; a pair's draw depends on it and on the pair's id alone."""
    stored_frames: Literal["all", "keyframes"] = "all"
    """all: every frame is stored, and key frames may be drawn anew each epoch; keyframes: only before, the key frames
    and after, (k + 2) / (l + 2) of the space."""
    store_features: bool = False
    """Store the encoder features of the stored frames as float16. It pays where an encoder pass costs more than reading
    them: on CPUs. At the paper's size they are 0.9 MB a pair with all frames."""
    min_word_count: int = Field(1, ge=1)
    """Words of training captions that occur less often become unknown. Official: 6."""
    vocabulary: str | None = None
    """Folder of procedures whose vocabulary is taken, where the pairs have no captions or are for another model's
    evaluation; empty: the words of the training captions."""
    max_pairs: int | None = Field(None, ge=1)
    """Take only the first this many pairs of the folder; all of them if not given."""
    pairs_per_chunk: int = Field(32, ge=1)
    """Pairs in one unit of work and one part file: what a kill can lose, and what bounds the memory."""
    frames_per_batch: int = Field(64, ge=1)
    """Frames in one pass through the tokenizer."""
    actors: int = Field(1, ge=1)
    """Processes that work at the same time."""
    cpus_per_actor: float = Field(1.0, gt=0)
    """Cores, and torch threads, of one of them."""
    gpus_per_actor: float = Field(0.0, ge=0)
    """GPUs of one of the processes that tokenise; above 0, interpolation runs in processes of its own, vfiformer in the
    same as the tokenizer."""
    max_reject_share: float = Field(0.05, ge=0, le=1)
    """The build fails if more than this share of the pairs cannot be used."""

    def faults(self) -> Iterator[str]:
        if self.num_keyframes > self.num_between:
            yield f"num_keyframes: {self.num_keyframes} cannot be drawn from 2^depth - 1 = {self.num_between} frames"
        if self.strategy in ("visual_text", "mixed") and self.pair_encoder is None and self.scores is None:
            yield (
                f"strategy: {self.strategy!r} needs pair_encoder (jobs/train_pair_encoder.py makes one) or scores; "
                "'visual' needs neither"
            )
        if self.pair_encoder is not None and self.scores is not None:
            yield "pair_encoder and scores: give only one; scores are taken instead of computed similarities"
        if self.interpolation == "vfiformer" and self.interpolation_weights is None:
            yield "interpolation_weights: interpolation=vfiformer needs them"
        if self.interpolation != "vfiformer" and self.interpolation_weights is not None:
            yield f"interpolation_weights: interpolation={self.interpolation} has none; take interpolation=vfiformer"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        yield from missing(self.tokenizer, "tokenizer")
        yield from missing(self.pair_encoder, "pair_encoder")
        yield from missing(self.scores, "scores")
        yield from missing(self.vocabulary, "vocabulary")
        yield from missing(self.interpolation_weights, "interpolation_weights")
        for path in self.videos:
            yield from missing(path, "videos")

    @property
    def num_between(self) -> int:  # l
        """Interpolated frames l."""
        return int(2**self.depth - 1)


class BuildProceduresJob(ConfigModel):
    """Build a folder of procedures."""

    procedures: str = Field(min_length=1)
    """Folder to write."""
    build: ProceduresConfig
    """How."""
