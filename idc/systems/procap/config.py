"""ProCap's settings. The defaults are the paper's (CLEVR-Change); where the official code differs, the field documents
its value and ``jobs/configs/procap/*_official.yaml`` sets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.nn.config import WordCaptionerSettings
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.training.config import GroupConfig, KeepBest, RunName, TrainConfig, TrainingJob
from idc.util.option_values import DiskPath

Procedure = Literal["queries", "frames", "none"]
STEM_GROUPS = 8
"""Groups of the normalisation in a stem's levels."""


class EncoderConfig(ConfigModel):
    """The procedure encoder (section 3.1.3, appendix H)."""

    width: int = Field(768, ge=8)  # d
    """Hidden size d."""
    layers: int = Field(12, ge=1)  # l_e
    """Number of blocks l_e: 12 on CLEVR-Change and Image-Editing-Request, 4 on Spot-the-Diff."""
    heads: int = Field(12, ge=1)
    """Attention heads."""
    init: Literal["comparing", "normal"] = "comparing"
    """Initial attention weights. Not stated in the paper; the official code starts from CLIP's ViT-B/32, whose
    attention already attends to similar patches. `comparing` imitates that without pretrained weights (see
    `idc/nn/mimetic.py`): queries match keys of similar patches, and values compute the difference to them; without it
    an encoder trained from scratch on a few thousand pairs does not learn to compare the two images. `normal`:
    PyTorch's defaults."""
    stem: tuple[int, ...] = ()
    """Widths of a convolutional stem, trained with the encoder in both stages, that replaces the image tokenizer's
    frozen features: it reads the pixels of each frame and their difference from before and after. Every level halves
    the resolution: 4 levels make patches of 16 pixels, which must be those of the tokenizer. Empty (paper, official):
    the tokenizer's features. Stage 1 hides the masked patches in the pixels too, since a convolution sees its
    neighbours. Not with `procedure: frames`."""
    text_length: int = Field(24, ge=3)  # n_T
    """Caption tokens n_T in the stage 1 sequence; shorter captions are padded, each position with its own padding
    embedding (official code; not stated in the paper)."""
    text_vocabulary: int | None = Field(None, ge=0)
    """Size of the encoder's own text vocabulary, if it does not use the captioner's words. Official: 49,408, CLIP's BPE
    (see `PretrainJob.clip_tokenizer`), whose id 0, the exclamation mark, is used as padding."""
    separator: bool = False
    """A separator token between text and frames. Not in the paper's sequence (section 3.1.3); official: true."""
    consistency_sees_text: bool = True
    """Whether the consistency token attends to the caption, as in eq. 8. Official: false (its attention mask hides
    everything before the separator from the separator and the consistency token)."""
    queries_only: bool = True
    """Stage 2 encodes only before, queries and after (eq. 9). Official: false: the text slot stays, filled with the
    embeddings of word ids 0..n_T-1 (an oversight of the official code), and so do the separator and the consistency
    token; the alignment token is dropped without shifting the attention mask, so the mask applies to the consistency
    token and the first patch instead."""

    def errors(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"
        if wrong := [width for width in self.stem if width < 1 or width % STEM_GROUPS]:
            yield f"stem: {wrong[0]} is not a multiple of {STEM_GROUPS}, the groups of its normalisation"


class DecoderConfig(ConfigModel):
    """The text decoder (section 3.2, appendix H)."""

    width: int = Field(512, ge=8)
    """Hidden size."""
    layers: int = Field(2, ge=1)  # l_d
    """Number of layers l_d: 2 on CLEVR-Change and Image-Editing-Request, 3 on Spot-the-Diff."""
    heads: int = Field(8, ge=1)
    """Attention heads."""
    feedforward: int = Field(2048, ge=8)
    """Width of the feed-forward layer."""
    dropout: float = Field(0.1, ge=0.0, lt=1.0)
    """Dropout after embedding, attention and feed-forward. Not stated in the paper."""
    scale_by_width: bool = False
    """Divide attention scores by the square root of the model width instead of the head width. Official: true."""
    official_norm: bool = False
    """Layer norm with the unbiased standard deviation and epsilon 1e-6 added to it. Official: true."""
    memory_norm: Literal["layer", "batch"] = "layer"
    """Norm of the procedure before the decoder attends to it. Official: layer (not stated in the paper). `batch`
    normalises each position and channel over the batch, so that what all pairs have in common, above all the
    positions, does not hide their differences: on a few thousand pairs the decoder then learns to attend within a few
    hundred steps, with `layer` not within thousands. It is computed over a worker's micro-batch, so accumulation and
    the number of workers change its numbers. While the learning rate is high its running averages, which captioning
    uses, fit the weights badly: validate at the end, when the rate has decayed."""
    max_length: int = Field(24, ge=2)
    """Maximum tokens of a caption, begin and end token included."""
    ban_unknown_only: bool = False
    """true: only the unknown word is never generated (official: special tokens may be, and padding does not end the
    caption). false: nor are padding and a second begin token."""

    def errors(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"
        if self.width % 2:
            yield f"width: {self.width} is odd; sinusoidal positions need an even width"


Scheme = Literal["random", "entire", "in_block", "out_of_block"]
SCHEMES: tuple[Scheme, ...] = ("random", "entire", "in_block", "out_of_block")


class MaskingConfig(ConfigModel):
    """Multi-granularity masking (section 3.1.3, appendix D); one scheme is drawn for each sample."""

    random: float = Field(0.7, ge=0.0, le=1.0)
    """Probability of random patch masking (eq. 14)."""
    entire: float = Field(0.1, ge=0.0, le=1.0)
    """Probability of entire masking (eq. 13)."""
    in_block: float = Field(0.1, ge=0.0, le=1.0)
    """Probability of in-block masking (eq. 16)."""
    out_of_block: float = Field(0.1, ge=0.0, le=1.0)
    """Probability of out-of-block masking (eq. 17)."""
    varied: Scheme | None = None
    """An ablation: this scheme is removed and the other three are scaled up in proportion (table 11; the paper does not
    state what happens to them), or, with `varied_to`, it has that probability."""
    varied_to: float | None = Field(None, ge=0.0, le=1.0)  # p
    """Probability p of the scheme `varied`; each of the others then has (1 - p) / 3, and the four settings above are
    ignored (figure 7)."""
    low: float = Field(0.2, ge=0.0, le=1.0)  # a
    """Lower bound a of the random masking probability. Official: 0.8 (a patch is kept with probability 0.2, while the
    paper masks it with a probability from U(0.2, 0.5))."""
    high: float = Field(0.5, ge=0.0, le=1.0)  # b
    """Upper bound b of the random masking probability. Official: 0.8."""
    drawn_for: Literal["patch", "sample"] = "patch"
    """What a random masking probability is drawn for. patch: each index i has its own p_i (eq. 14), so that nearly the
    same share of every sample is masked, (a + b) / 2. sample: one for all patches of a sample, so that the share varies
    from a to b (official, where a = b leaves nothing to draw; also the demo's and the small presets, with which their
    figures were measured)."""

    def errors(self) -> Iterator[str]:
        total = self.random + self.entire + self.in_block + self.out_of_block
        if abs(total - 1.0) > 1e-6:
            yield (
                f"random, entire, in_block and out_of_block: their probabilities add up to {total:g}, not 1; "
                "to remove one of them set varied"
            )
        if self.varied is None and self.varied_to is not None:
            yield f"varied_to: {self.varied_to} needs the scheme that it is for; set varied too"
        others = [getattr(self, scheme) for scheme in SCHEMES if scheme != self.varied]
        if self.varied is not None and self.varied_to is None and not any(others):
            yield f"varied: without {self.varied} no scheme is left, as the others have probability 0"
        if self.low > self.high:
            yield f"low: {self.low} is above high = {self.high}"

    def probabilities(self) -> tuple[float, ...]:
        """Probabilities of the schemes, in the order of `SCHEMES`."""
        shares = {scheme: float(getattr(self, scheme)) for scheme in SCHEMES}
        if self.varied is None:
            return tuple(shares.values())
        if self.varied_to is None:
            rest = sum(share for scheme, share in shares.items() if scheme != self.varied)
            return tuple(0.0 if scheme == self.varied else share / rest for scheme, share in shares.items())
        return tuple(self.varied_to if scheme == self.varied else (1 - self.varied_to) / 3 for scheme in SCHEMES)


class LossConfig(ConfigModel):
    """Stage 1 losses (section 3.1.4, eq. 5) and their negatives (appendix E)."""

    msm: float = Field(1.0, ge=0.0)
    """Weight of masked sequence modeling (eq. 6), averaged over the masked patches of each sample. Official: 7, and
    averaged over the masked patches of the whole batch."""
    align: float = Field(1.0, ge=0.0)
    """Weight of cross-modal alignment (eq. 7). Official: 0.5."""
    consistency: float = Field(1.0, ge=0.0)
    """Weight of temporal consistency (eq. 8). Official: 0.5."""
    align_negative: Literal["other_caption", "swap_halves"] = "other_caption"
    """Source of the unaligned caption: another pair of the data set, drawn until its caption differs; or the other half
    of the micro-batch (official: may be the same caption, and needs an even micro-batch)."""
    align_skips_entire: bool = False
    """Exclude samples with entire masking from the alignment loss, which is then the mean over the other samples of a
    micro-batch and depends on how the batch is split into micro-batches. Official: true."""
    color_shift_all_frames: bool = True
    """Colour shifting changes one channel of every frame (eq. 18). Official: false: of one frame, one channel or, with
    probability 1/4, all."""

    def errors(self) -> Iterator[str]:
        if self.msm == self.align == self.consistency == 0.0:
            yield "msm, align and consistency: at least one loss needs a weight above 0"


class _RunConfig(TrainingJob):
    """Settings of both stages."""

    learns_captions: ClassVar[bool] = False
    procedures: str = Field(min_length=1)
    """Folder of procedures; built first by `build` if it does not exist."""
    build: ProceduresConfig | None = None
    """How to build the procedures if they do not exist: pairs, tokenizer and so on."""

    def preflight(self) -> Iterator[str]:
        if self.build is None:
            inputs = ("tokenizer", "interpolation_weights", "dinov2")
            yield from missing_pairs(self.procedures, "procedures", "procedures", inputs, self.learns_captions)
        elif self.learns_captions:
            yield from missing_pairs(self.build.pairs, "build.pairs", captions=True)


class PretrainJob(_RunConfig):
    """Stage 1, explicit procedure modeling."""

    ENTRY = "idc.systems.procap.task:pretrain"
    name: RunName = "procap-pretrain"
    redraw_keyframes: bool = False
    """Draw the k key frames anew each epoch (official) instead of using the stored draw."""
    clip: str | None = None
    """CLIP model, a local folder or hub id, whose first l_e vision blocks initialise the encoder; empty:
    `encoder.init`. Not stated in the paper; official: openai/clip-vit-base-patch32."""
    clip_tokenizer: str | None = None
    """CLIP tokenizer, a local folder or hub id, if the encoder reads captions as CLIP's BPE; needs
    `encoder.text_vocabulary`. Official: openai/clip-vit-base-patch32, without begin and end tokens."""
    caption_condition: bool = True
    """Put the caption into the encoder's sequence. Without it (table 10, "visual inputs alone") the sequence has no
    text, and there is no alignment loss."""
    encoder: EncoderConfig = EncoderConfig()
    """Procedure encoder."""
    masking: MaskingConfig = MaskingConfig()
    """Masking schemes."""
    loss: LossConfig = LossConfig()
    """Losses and negatives."""
    optim: GroupConfig = GroupConfig(lr=1e-4, warmup_lr=1e-6, schedule="linear_warmup", warmup_steps=5000)
    """Learning rate and schedule. Official: schedule log_warmup (DeepSpeed's WarmupLR default)."""
    train: TrainConfig = TrainConfig(steps=200_000, batch_size=8)
    """The loop."""

    def errors(self) -> Iterator[str]:
        micro = self.train.batch_size // (self.train.num_workers * self.train.grad_accumulation)
        if self.loss.align_negative == "swap_halves" and self.loss.align > 0 and micro % 2:
            yield f"loss.align_negative: swap_halves needs an even micro-batch, got {micro} samples per worker"
        if not self.caption_condition and self.loss.msm == self.loss.consistency == 0.0:
            yield "loss: without caption_condition there is no alignment loss; msm or consistency needs a weight"
        if self.clip_tokenizer is None and self.encoder.text_vocabulary is not None:
            yield "clip_tokenizer: required with encoder.text_vocabulary; it defines the ids of a caption"
        if self.clip_tokenizer is not None and self.encoder.text_vocabulary is None:
            yield "encoder.text_vocabulary: required with clip_tokenizer; CLIP's has 49408 ids"

    def aligns(self) -> bool:
        """Whether there is an alignment loss."""
        return self.caption_condition and self.loss.align > 0


class FinetuneJob(WordCaptionerSettings, _RunConfig):
    """Stage 2, implicit procedure captioning."""

    learns_captions = True
    ENTRY = "idc.systems.procap.task:finetune"
    name: RunName = "procap-finetune"
    pretrained: str | None = None
    """Artifact of stage 1; empty: train the encoder from scratch."""
    encoder: EncoderConfig | None = None
    """Procedure encoder, if trained from scratch; with `pretrained` the artifact's settings are used."""
    captions: Literal["random", "first", "all"] = "random"
    """Reference caption of a pair that is learned: a random one each epoch, always the first, or all of them in every
    step: the loss of a pair is then the mean over its captions, and the encoder sees the pair once for all of them.
    Paper and official code: random."""
    procedure: Procedure = "queries"
    """Content between the patches of the two images. queries: k * n_I copies of the mask embedding, the implicit
    procedure captioning of eq. 9. frames: the frames themselves, explicit procedure captioning (table 14); the
    captioner then generates them for every pair, by the interpolator and sampling of its procedures: the key frames
    drawn by confidence (official: evenly spaced ones, `build.strategy=uniform`). none: nothing,
    only before and after (tables 2 and 7, IPC not ticked, k = 0), at the positions of the first and the last frame.
    Official: switches `use_fi_frames` and `end_to_end`; the latter passes the positions without the images to the
    encoder, an oversight that is not copied."""
    decoder: DecoderConfig = DecoderConfig()
    """Text decoder."""
    encoder_optim: GroupConfig = GroupConfig(lr=5e-5, weight_decay=0.01)
    """Optimisation of the procedure encoder: constant at 5e-5, on Spot-the-Diff at 2e-5. Official: 2e-5 everywhere (the
    value in its YAML is never read), schedule linear_warmup_decay with warmup_share 0.1 like the decoder. The weight
    decay is the official code's; it is not stated in the paper."""
    decoder_optim: GroupConfig = GroupConfig(lr=5e-5, weight_decay=0.01, schedule="linear_warmup", warmup_share=0.1)
    """Optimisation of the text decoder and the projection to it. Official: schedule linear_warmup_decay."""
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
    """Probability mass of the target on the other words. Eq. 10 has none; official: 0.1."""
    train: TrainConfig = TrainConfig(epochs=40, batch_size=16, keep_best=KeepBest(metric="CIDEr"))
    """The loop; the best validation CIDEr is selected (official: test CIDEr)."""

    def errors(self) -> Iterator[str]:
        if self.pretrained is not None and self.encoder is not None:
            yield "encoder: given together with pretrained, which has its own encoder; remove one of them"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.pretrained, "pretrained")


class ConvertJob(ConfigModel):
    """Convert the authors' weights to an artifact."""

    kind: Literal["vqgan", "stage1", "stage2", "clip4idc"]
    """vqgan: a fine-tuned VQGAN (`*_epoch=*.ckpt`); stage1: `dalle.pt`; stage2: `model.chkpt`, a captioner; clip4idc: a
    pair encoder for visual-text key frames (CLIP4IDC's `pytorch_model.bin.*`). mci: see `kind=mci --help`."""
    weights: str = Field(min_length=1)
    """File to convert."""
    out: DiskPath = Field(min_length=1)
    """Folder to write: an image tokenizer (vqgan) or an artifact, each with `conversion.json` in it."""
    vocabulary: str | None = None
    """The authors' word list of the data set, `cache/*_word2idx*.json` in their repository; required for stage2."""
    clip_tokenizer: str | None = "openai/clip-vit-base-patch32"
    """CLIP tokenizer, a local folder or hub id. stage1: defines the ids of captions; only its name is stored in the
    artifact. clip4idc: copied into the artifact; empty: none, and the encoder takes ids instead of texts."""
    image_size: int = Field(224, ge=8)
    """Side of the VQGAN's images (vqgan); in the other files it follows from the positions."""
    heads: int = Field(12, ge=1)
    """Attention heads of the procedure encoder, which no tensor determines. Official: 12."""
    decoder_heads: int = Field(8, ge=1)
    """Attention heads of the text decoder, if `model_cfg` in the file lacks them. Official: 8."""
    max_length: int = Field(24, ge=2)
    """Maximum tokens of a caption, begin and end included, if `model_cfg` in the file lacks it. Official: 24."""
    separate_layers: int = Field(9, ge=1)
    """clip4idc: blocks that see one image, before those that see both; in no tensor. Official: 9 of 12."""

    def errors(self) -> Iterator[str]:
        if self.kind == "stage2" and self.vocabulary is None:
            yield "vocabulary: required for stage2; without it the ids of its words have no names"
        if self.kind == "stage1" and self.clip_tokenizer is None:
            yield "clip_tokenizer: required for stage1; it defines the ids of a caption"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.weights, "weights")
        yield from missing(self.vocabulary, "vocabulary")


def is_captioner(saved: dict[str, Any]) -> bool:
    """Whether the config of a ProCap artifact is that of stage 2."""
    return saved.get("stage") == "finetune"
