"""ProCap's settings. The defaults are the paper's (CLEVR-Change); where the official code differs, the field says so
and ``jobs/configs/procap/*_official.yaml`` sets the official value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.training.config import GroupConfig, KeepBest, TrainConfig

Procedure = Literal["queries", "frames", "none"]


class EncoderConfig(ConfigModel):
    """The procedure encoder (section 3.1.3, appendix H)."""

    width: int = Field(768, ge=8)  # d
    """Hidden size d."""
    layers: int = Field(12, ge=1)  # l_e
    """Number of blocks l_e: 12 on CLEVR-Change and Image-Editing-Request, 4 on Spot-the-Diff."""
    heads: int = Field(12, ge=1)
    """Attention heads."""
    init: Literal["comparing", "normal"] = "comparing"
    """Initial attention weights. The paper does not say; the official code starts from CLIP's ViT-B/32, whose
    attention already looks at like patches. `comparing` imitates that without pretrained weights (see
    `ProcedureEncoder`): queries meet keys of like patches, and values take the difference to them; without it an
    encoder trained from scratch on a few thousand pairs does not learn to compare the two images. `normal`: PyTorch's
    defaults."""
    text_length: int = Field(24, ge=3)  # n_T
    """Caption tokens n_T in the stage 1 sequence; shorter captions are padded, each position with its own padding
    embedding (official code; the paper does not say)."""
    text_vocabulary: int | None = Field(None, ge=0)
    """Ids of the encoder's own text vocabulary, where its captions are not made of the captioner's words. Official:
    49,408, CLIP's BPE (see `PretrainJob.clip_tokenizer`), whose id 0, the exclamation mark, is taken for padding."""
    separator: bool = False
    """A separator token between text and frames. Not in the paper's sequence (section 3.1.3); official: true."""
    consistency_sees_text: bool = True
    """Whether the consistency token may attend to the caption, as eq. 8 has it. Official: false (its attention mask
    hides everything before the separator from the separator and the consistency token)."""
    queries_only: bool = True
    """Stage 2 feeds before, queries and after alone (eq. 9). Official: false: the text slot stays, filled with
    the embeddings of word ids 0..n_T-1 (an oversight of the official code), and so do the separator and the
    consistency token; the alignment token is dropped without shifting the attention mask, so the mask falls on the
    consistency token and on the first patch instead."""

    def faults(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"


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
    """Norm of the procedure before the decoder attends to it. Official: layer (the paper does not say). `batch`
    takes the mean and deviation of each position and channel over the batch, so that what all pairs have in common,
    above all the positions, does not hide how they differ; on a few thousand pairs the decoder then learns to look
    within a few hundred steps, and with `layer` not within thousands. It is computed over a worker's micro-batch, so
    accumulation and the number of workers change its numbers."""
    max_length: int = Field(24, ge=2)
    """Caption tokens at most, begin and end token included."""
    ban_unknown_only: bool = False
    """The search never generates the unknown word; nor, by default, padding and a second beginning. Official: true:
    those and the other special marks may be generated, padding without ending the caption."""

    def faults(self) -> Iterator[str]:
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
    """An ablation: this scheme is removed, and the other three are scaled up in proportion (table 11; the paper does
    not say what becomes of the others), or, with `varied_to`, it has that probability."""
    varied_to: float | None = Field(None, ge=0.0, le=1.0)  # p
    """Probability p of the scheme `varied`; each of the others then has (1 - p) / 3, whatever the four settings above
    say (figure 7)."""
    low: float = Field(0.2, ge=0.0, le=1.0)  # a
    """Lower bound a of the random masking probability, drawn once a sample. Official: 0.8 (it keeps a patch with
    probability 0.2, where the paper masks it with a probability from U(0.2, 0.5))."""
    high: float = Field(0.5, ge=0.0, le=1.0)  # b
    """Upper bound b of the random masking probability. Official: 0.8."""
    block_area_low: float = Field(0.2, gt=0.0, le=1.0)
    """Smallest share of the frame that a block covers; one block for all frames of a sample."""
    block_area_high: float = Field(0.8, gt=0.0, le=1.0)
    """Largest share of the frame that a block covers."""
    block_aspect: float = Field(2.0, ge=1.0)
    """A block's height over width lies between 1/this and this (official code; the paper does not say)."""

    def faults(self) -> Iterator[str]:
        total = self.random + self.entire + self.in_block + self.out_of_block
        if abs(total - 1.0) > 1e-6:
            yield (
                f"random, entire, in_block and out_of_block: their probabilities add up to {total:g}, not 1; "
                "to remove one of them set varied"
            )
        if self.varied is None and self.varied_to is not None:
            yield f"varied_to: {self.varied_to} is the probability of no scheme; set varied too"
        others = [getattr(self, scheme) for scheme in SCHEMES if scheme != self.varied]
        if self.varied is not None and self.varied_to is None and not any(others):
            yield f"varied: without {self.varied} no scheme is left, as the others have probability 0"
        if self.low > self.high:
            yield f"low: {self.low} is above high = {self.high}"
        if self.block_area_low > self.block_area_high:
            yield f"block_area_low: {self.block_area_low} is above block_area_high = {self.block_area_high}"

    def probabilities(self) -> tuple[float, ...]:
        """Of the schemes, in the order of `SCHEMES`."""
        given = {scheme: float(getattr(self, scheme)) for scheme in SCHEMES}
        if self.varied is None:
            return tuple(given.values())
        if self.varied_to is None:
            rest = sum(share for scheme, share in given.items() if scheme != self.varied)
            return tuple(0.0 if scheme == self.varied else share / rest for scheme, share in given.items())
        return tuple(self.varied_to if scheme == self.varied else (1 - self.varied_to) / 3 for scheme in SCHEMES)


class LossConfig(ConfigModel):
    """Stage 1 losses (section 3.1.4, eq. 5) and how their negatives are made (appendix E)."""

    msm: float = Field(1.0, ge=0.0)
    """Weight of masked sequence modeling (eq. 6), averaged over the masked patches of each sample. Official: 7, and
    averaged over the masked patches of the whole batch."""
    align: float = Field(1.0, ge=0.0)
    """Weight of cross-modal alignment (eq. 7). Official: 0.5."""
    consistency: float = Field(1.0, ge=0.0)
    """Weight of temporal consistency (eq. 8). Official: 0.5."""
    align_negative: Literal["other_caption", "swap_halves"] = "other_caption"
    """Where the unaligned caption comes from: another pair of the data set, drawn until its caption differs; or the
    other half of the micro-batch (official: may be the same caption, and needs an even micro-batch)."""
    align_skips_entire: bool = False
    """Leave samples with entire masking out of the alignment loss, which is then the mean over the other samples of a
    micro-batch and depends on how the batch is cut into micro-batches. Official: true."""
    color_shift_all_frames: bool = True
    """Colour shifting moves one channel of every frame (eq. 18). Official: false: one frame, one
    channel or, once in four, all."""
    color_shift: float = Field(0.5, gt=0.0, le=1.0)
    """The colour shift is drawn from U(-this, this), for pixels in [0, 1]."""
    rotation: float = Field(30.0, ge=0.0)  # alpha
    """Affine warp: largest rotation alpha, degrees."""
    translation: float = Field(0.1, ge=0.0)  # tau
    """Affine warp: largest translation tau, share of the frame's size."""
    scaling: float = Field(0.1, ge=0.0, lt=1.0)  # mu
    """Affine warp: the scale is drawn from U(1 - mu, 1 + mu)."""

    def faults(self) -> Iterator[str]:
        if self.msm == self.align == self.consistency == 0.0:
            yield "msm, align and consistency: at least one loss needs a weight above 0"


class _RunConfig(ConfigModel):
    """What both stages share."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`, and what a restart is recognised by."""
    runs: str = "runs"
    """Folder of all runs."""
    procedures: str = Field(min_length=1)
    """Folder of procedures; built first from `build` if it is not there."""
    build: ProceduresConfig | None = None
    """How to build the procedures if they are not there: pairs, tokenizer and so on (see build_procedures.py)."""
    captions: Literal["random", "first"] = "random"
    """Which reference caption of a pair is shown: another one each epoch, or always the first (official stage 1 on
    Spot-the-Diff and Image-Editing-Request)."""

    def preflight(self) -> Iterator[str]:
        if self.build is None:
            yield from missing(self.procedures, "procedures")


class PretrainJob(_RunConfig):
    """Stage 1, explicit procedure modeling."""

    name: str = Field("procap-pretrain", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`, and what a restart is recognised by."""
    redraw_keyframes: bool = False
    """Draw the k keyframes anew each epoch (the official code does) instead of taking the stored draw; needs
    procedures that hold all frames."""
    clip: str | None = None
    """CLIP model, a local folder or hub id that transformers reads, whose first l_e vision blocks the encoder starts
    from; nothing: `encoder.init`. The paper does not say; official: openai/clip-vit-base-patch32."""
    clip_tokenizer: str | None = None
    """CLIP tokenizer, a local folder or hub id, if the encoder reads captions as CLIP's BPE; it needs
    `encoder.text_vocabulary`. Official: openai/clip-vit-base-patch32, without marks of beginning and end."""
    caption_condition: bool = True
    """Show the caption to the encoder. Without it (table 10, "visual inputs alone") the sequence has no text, and there
    is no alignment loss, which would have nothing to align."""
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

    def faults(self) -> Iterator[str]:
        micro = self.train.batch_size // (self.train.num_workers * self.train.grad_accumulation)
        if self.loss.align_negative == "swap_halves" and self.loss.align > 0 and micro % 2:
            yield f"loss.align_negative: swap_halves needs an even micro-batch, got {micro} samples a worker"
        if not self.caption_condition and self.loss.msm == self.loss.consistency == 0.0:
            yield "loss: without caption_condition there is no alignment loss; msm or consistency needs a weight"
        if self.clip_tokenizer is None and self.encoder.text_vocabulary is not None:
            yield "clip_tokenizer: required with encoder.text_vocabulary; it says which ids a caption has"
        if self.clip_tokenizer is not None and self.encoder.text_vocabulary is None:
            yield "encoder.text_vocabulary: required with clip_tokenizer; CLIP's has 49408 ids"

    def aligns(self) -> bool:
        """Whether there is an alignment loss."""
        return self.caption_condition and self.loss.align > 0


class FinetuneJob(_RunConfig):
    """Stage 2, implicit procedure captioning."""

    name: str = Field("procap-finetune", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`, and what a restart is recognised by."""
    pretrained: str | None = None
    """Artifact of stage 1, or nothing to train the encoder from scratch."""
    encoder: EncoderConfig | None = None
    """Procedure encoder, if from scratch; with `pretrained` the artifact's own is taken."""
    procedure: Procedure = "queries"
    """What stands between the patches of the two images. queries: k * n_I copies of the mask embedding, the implicit
    procedure captioning of eq. 9. frames: the frames themselves, explicit procedure captioning (table 14); the
    captioner then makes them of every pair it is given, by interpolator and sampling of its procedures. none: nothing,
    before and after alone (tables 2 and 7, IPC not ticked, k = 0), at the positions of the first and the last frame.
    Official: switches `use_fi_frames` and `end_to_end`; the latter hands the encoder the positions without the images,
    an oversight that is not copied."""
    explicit_frames: Literal["keyframes", "even"] = "keyframes"
    """Which k frames `procedure: frames` takes: the key frames drawn by confidence, or (official) evenly spaced ones,
    which need no similarity and no caption but procedures that hold all frames. The paper has them from the procedure
    generation module "directly" (table 14), which fits both."""
    decoder: DecoderConfig = DecoderConfig()
    """Text decoder."""
    encoder_optim: GroupConfig = GroupConfig(lr=5e-5, weight_decay=0.01)
    """Of the procedure encoder: fixed at 5e-5, on Spot-the-Diff at 2e-5. Official: 2e-5 everywhere (the value of its
    YAML is never read), schedule linear_warmup_decay with warmup_share 0.1 as the decoder. The weight decay is the
    official code's; the paper does not say."""
    decoder_optim: GroupConfig = GroupConfig(lr=5e-5, weight_decay=0.01, schedule="linear_warmup", warmup_share=0.1)
    """Of the text decoder and the projection to it. Official: schedule linear_warmup_decay."""
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
    """Mass of the target given to the other words. Eq. 10 has none; official: 0.1."""
    beams: int = Field(1, ge=1)
    """Beams of the captioner; 1 is greedy, as published."""
    length_penalty: float = Field(1.0, ge=0.0)
    """Exponent of the length in beam search's scoring rule."""
    validation_pairs: int | None = Field(None, ge=1)
    """Validate on the first this many pairs of the validation split; all of them if not given."""
    trained_on: str | None = Field(None, min_length=1, max_length=200)
    """What the training images are, to complete "This model has only seen ...": in the artifact, on its model card and
    in the warning for other images. By default derived from the manifests of the procedures and their pairs."""
    train: TrainConfig = TrainConfig(epochs=40, batch_size=16, keep_best=KeepBest(metric="CIDEr"))
    """The loop; the best validation CIDEr is selected (official: test CIDEr)."""

    def faults(self) -> Iterator[str]:
        if self.pretrained is not None and self.encoder is not None:
            yield "encoder: given together with pretrained, whose encoder it would contradict; drop one of them"
        if self.procedure != "frames" and self.explicit_frames != "keyframes":
            yield f"explicit_frames: procedure = {self.procedure} takes no frames; set procedure to frames"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.pretrained, "pretrained")


class ConvertJob(ConfigModel):
    """Make one of our artifacts of the authors' weights."""

    kind: Literal["vqgan", "stage1", "stage2", "clip4idc"]
    """vqgan: a fine-tuned VQGAN (`*_epoch=*.ckpt`); stage1: `dalle.pt`; stage2: `model.chkpt`, a captioner; clip4idc: a
    pair encoder for visual-text key frames (CLIP4IDC's `pytorch_model.bin.*`)."""
    weights: str = Field(min_length=1)
    """The file."""
    out: str = Field(min_length=1)
    """Folder to write: an image tokenizer (vqgan) or an artifact, each with `conversion.json` in it."""
    vocabulary: str | None = None
    """The authors' word list of that data set, `cache/*_word2idx*.json` in their repository; needed for stage2."""
    clip_tokenizer: str | None = "openai/clip-vit-base-patch32"
    """CLIP tokenizer, a local folder or hub id. stage1: whose ids it reads captions as; only noted in the artifact.
    clip4idc: put into the artifact; empty: none, and the encoder takes ids instead of texts."""
    image_size: int = Field(224, ge=8)
    """Side of the VQGAN's images (vqgan); in the other files the positions tell it."""
    heads: int = Field(12, ge=1)
    """Attention heads of the procedure encoder, which no tensor tells. Official: 12."""
    decoder_heads: int = Field(8, ge=1)
    """Attention heads of the text decoder, where `model_cfg` in the file does not tell. Official: 8."""
    max_length: int = Field(24, ge=2)
    """Caption tokens at most, begin and end included, where `model_cfg` in the file does not tell. Official: 24."""
    separate_layers: int = Field(9, ge=1)
    """clip4idc: blocks that see one image, before those that see both; no tensor tells. Official: 9 of 12."""

    def faults(self) -> Iterator[str]:
        if self.kind == "stage2" and self.vocabulary is None:
            yield "vocabulary: required for stage2; without it the ids of its words have no names"
        if self.kind == "stage1" and self.clip_tokenizer is None:
            yield "clip_tokenizer: required for stage1; it says which ids a caption has"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.weights, "weights")
        yield from missing(self.vocabulary, "vocabulary")


class SpeedConfig(ConfigModel):
    """Optimisations of captioning. They change no caption; only the rounding of float32 differs."""

    cached: bool = True
    """Keep the decoder's keys and values, and project the procedure once per batch. Without, every step computes the
    whole prefix and its memory again (the official code: prefix again, memory once)."""
    fused_attention: bool = True
    """Attention that never writes its score matrix to memory; without, two matrix products and a softmax."""
    channels_last: bool = True
    """On a GPU: the image tokenizer's maps in channels-last layout, which its convolutions prefer. On a CPU nothing
    changes (Winograd's convolutions were tried there: 0.95 times as fast, see BENCHMARKS.md)."""
    compile: bool = False
    """`torch.compile` for the blocks of the procedure encoder and, on a GPU, the tokenizer's encoder. The first batch
    of a size waits for it; needs a C++ compiler on a CPU."""


def is_captioner(saved: dict[str, Any]) -> bool:
    """Whether the config of a ProCap artifact is that of stage 2."""
    return saved.get("stage") == "finetune"
