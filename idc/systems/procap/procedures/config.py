"""Settings of building procedures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing


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
    """Weights of vfiformer: the artifact of jobs/train_interpolator.py, or an official checkpoint (net_220.pth)."""
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
