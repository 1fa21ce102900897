"""Settings of building procedures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs

Kind = Literal["text", "visual"]
_KINDS: dict[str, tuple[Kind, ...]] = {
    "mixed": ("text", "visual"), "visual": ("visual",), "visual_text": ("text",),
}  # fmt: skip


class ProceduresConfig(ConfigModel):
    """How procedures are built from pairs (ProCap, sections 3.1.1 and 3.1.2)."""

    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    tokenizer: str = Field(min_length=1)
    """Folder of a trained image tokenizer."""
    depth: int = Field(3, ge=1, le=8)  # d
    """Recursion depth d of the interpolation: l = 2^d - 1 frames between before and after (paper: l = 7)."""
    interpolation: Literal["dis", "blend", "vfiformer"] = "dis"
    """Interpolator of a frame half way between two: bidirectional DIS optical flow, their mean, or VFIformer, as in the
    paper (set gpus_per_actor: on a CPU the full one takes seconds per frame)."""
    interpolation_weights: str | None = None
    """Weights of vfiformer: an official checkpoint (net_220.pth)."""
    strategy: Literal["visual", "visual_text", "mixed", "random", "uniform"] = "visual"
    """How key frames are chosen (appendix C, figure 4). `visual`: by the confidence of eq. 2 from the similarity of the
    frames to both ends; `visual_text`: by the confidence from how well the change from before to a frame, and from the
    frame to after, matches the caption (the paper's choice; needs pair_encoder); `mixed`: both. `random`: all
    frames equally likely. `uniform`: evenly spaced frames, nothing drawn (official use_fi_frames)."""
    similarity: Literal["tokenizer", "dinov2"] = "tokenizer"
    """Features that `visual` compares: the tokenizer's patch features, or DINOv2's image feature (paper)."""
    dinov2: str = "facebook/dinov2-large"
    """DINOv2 for similarity=dinov2: a local folder or a hub id. Paper: ViT-L/14. The paper does not state which output
    is compared; here it is the class token after the last norm."""
    pair_encoder: str | None = None
    """Artifact of a trained or converted pair encoder, for the strategies visual_text and mixed (eq. 12). A frame is
    compared as (before, frame) and (frame, after), in temporal order as the official code names its scores, because
    the order matters to the pair encoder; eq. 12 taken literally has (after, frame). With several captions the mean
    over them counts (official; the paper has one). All frames of a pair without captions have the same confidence."""
    mix: float = Field(0.7, ge=0, le=1)
    """Weight of visual_text in `mixed`; the rest is visual (official: 0.7; not in the paper). Both squared differences
    are first scaled to [0, 1] by those of the pair's own frames; official: by those of all pairs, changed and unchanged
    ones apart."""
    temperature: float = Field(1.0, gt=0)
    """The squared differences of eq. 2 are divided by this before the softmax. Paper: 1. Cosines differ by a few
    hundredths between frames, so with 1 the softmax, and hence the confidence, is nearly the same for all frames; with
    0.001 it is not."""
    num_keyframes: int = Field(2, ge=1)  # k
    """Number k of key frames."""
    seed: int = Field(0, ge=0)
    """Seed of the draw; a pair's draw depends only on it and on the pair's id."""
    store_features: bool = False
    """Also store the encoder features of the frames as float16. Useful where an encoder pass costs more than
    reading them: on CPUs. At the paper's size they take 0.9 MB per pair."""
    min_word_count: int = Field(1, ge=1)
    """Rarer words of the training captions become the unknown word. Official: 6."""
    vocabulary: str | None = None
    """Folder of procedures whose vocabulary is used, for pairs without captions or for the evaluation of another model;
    empty: the words of the training captions."""
    max_pairs: int | None = Field(None, ge=1)
    """Number of pairs, the first of the folder; default all."""
    pairs_per_chunk: int = Field(32, ge=1)
    """Pairs per chunk of work and part file; limits the memory, and the work lost when a process is killed."""
    frames_per_batch: int = Field(64, ge=1)
    """Frames per pass through the tokenizer."""
    actors: int = Field(1, ge=1)
    """Number of parallel processes."""
    cpus_per_actor: float = Field(1.0, gt=0)
    """Cores, and torch threads, per process."""
    gpus_per_actor: float = Field(0.0, ge=0)
    """GPUs per process that tokenises; above 0, interpolation runs in processes of its own, except vfiformer, which
    shares the tokenizer's."""
    max_reject_share: float = Field(0.05, ge=0, le=1)
    """The build fails if a larger share of the pairs is rejected."""

    def errors(self) -> Iterator[str]:
        if self.num_keyframes > self.num_between:
            yield f"num_keyframes: {self.num_keyframes} cannot be drawn from 2^depth - 1 = {self.num_between} frames"
        if "text" in self.kinds and self.pair_encoder is None:
            yield (
                f"strategy: {self.strategy!r} needs pair_encoder (jobs/train_pair_encoder.py makes one); 'visual' does "
                "not"
            )
        if self.interpolation == "vfiformer" and self.interpolation_weights is None:
            yield "interpolation_weights: interpolation=vfiformer needs them"
        if self.interpolation != "vfiformer" and self.interpolation_weights is not None:
            yield f"interpolation_weights: interpolation={self.interpolation} has none; set interpolation=vfiformer"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")
        yield from missing(self.tokenizer, "tokenizer")
        yield from missing(self.pair_encoder, "pair_encoder")
        yield from missing(self.vocabulary, "vocabulary")
        yield from missing(self.interpolation_weights, "interpolation_weights")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of similarity that the strategy needs."""
        return _KINDS.get(self.strategy, ())

    @property
    def num_between(self) -> int:  # l
        """Number l of interpolated frames."""
        return int(2**self.depth - 1)


class BuildProceduresJob(ConfigModel):
    """Build a folder of procedures."""

    procedures: str = Field(min_length=1)
    """Folder to write."""
    build: ProceduresConfig
    """How to build it."""
