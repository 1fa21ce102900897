"""Settings of an evaluation, and of a comparison of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.metrics.protocols import ProtocolName

CAPTION_HOW = frozenset({"batch_size", "actors", "cpus_per_actor", "gpus_per_actor"})
"""Settings of how a split is captioned, on which its scores do not depend."""


class EvaluateJob(ConfigModel):
    """Caption a split of a folder of pairs, or take captions made elsewhere, and score them beside the baselines."""

    out: str = Field(min_length=1)
    """Folder for `evaluation.json` and `predictions.jsonl`."""
    pairs: str | None = Field(None, min_length=1)
    """Folder of pairs; this or `references`."""
    references: str | None = None
    """References made elsewhere, for `predictions`: JSONL of `pair_id` and `captions` (or one `caption` a line), JSON
    in COCO's or LEVIR-CC's form, or an object of id to captions. Rows may have change_type, changed, viewpoint_iou and
    split; those without a split belong to the one that is scored."""
    split: Literal["train", "val", "test", "all"] = "test"
    """The split that is captioned and scored. Models are selected on val; test is touched once. `all` is for pairs that
    were not trained on whatever their split; they have no nearest training pair."""
    max_pairs: int | None = Field(None, ge=1)
    """Only the first this many pairs of the split; all of them if not given."""
    artifact: str | None = None
    """Artifact of the captioner; this or `predictions`."""
    predictions: str | None = None
    """Captions made elsewhere: JSONL with `pair_id` and `caption`, COCO results (a JSON list of `image_id` and
    `caption`), or an object of id to caption."""
    protocol: ProtocolName = "coco"
    """How captions become tokens, and which references count. coco: PTB tokens. levir_ids: strings of token ids, as the
    LEVIR-CC literature reports; levir_words: the same tokens as words. spot_single: a pair of Spot-the-Diff with all
    its sentences; spot_multi: with one reference that joins them."""
    vocabulary: str | None = None
    """The official vocab.json for levir_ids; else the words are counted in the captions of all splits."""
    batch_size: int = Field(32, ge=1)
    """Pairs captioned at a time."""
    actors: int = Field(1, ge=1)
    """Processes that caption at the same time; more than one run on Ray."""
    cpus_per_actor: float = Field(1.0, gt=0)
    """Cores of one of them, where there are several."""
    gpus_per_actor: float = Field(0.0, ge=0)
    """GPUs of one of them; above 0 they caption on cuda."""
    change_maps: bool = False
    """Hold the captioner's change maps against the masks of changed pairs, beside the pixel difference and a blob in
    the middle; for pairs that have masks, as rendered ones do."""
    metrics: tuple[Literal["BLEU", "METEOR", "ROUGE-L", "CIDEr"], ...] = Field(
        ("BLEU", "METEOR", "ROUGE-L", "CIDEr"), min_length=1
    )
    """What is scored."""
    spice: bool = True
    """Score SPICE too if its jars are there; pycocoevalcap does not bring them, and the job says which are missing."""
    selection: str = "best CIDEr on val"
    """How the model was selected; stands in the protocol."""
    allow_empty: bool = False
    """An empty caption scores 0 instead of being an error."""
    resamples: int = Field(1000, ge=0)
    """Sets of pairs drawn for the bootstrap intervals of the scores. 0: no intervals."""
    constant_candidates: int = Field(200, ge=0)
    """How many of the most frequent training captions are tried as the best constant (and the most frequent one of
    every change type). 0: no constant baseline."""
    nearest_train_pairs: int = Field(20_000, ge=0)
    """How many training pairs, from the first on, are searched for the nearest one. 0: no such baseline. Both images of
    each are decoded: 20,000 pairs of 480x320 take about four minutes on one core."""

    def faults(self) -> Iterator[str]:
        if (self.artifact is None) == (self.predictions is None):
            yield "artifact, predictions: give one of the two"
        if (self.pairs is None) == (self.references is None):
            yield "pairs, references: give one of the two"
        if self.references is not None and self.artifact is not None:
            yield "references: an artifact captions images, so it needs pairs; references go with predictions"
        if self.change_maps and self.artifact is None:
            yield "change_maps: a captioner makes them, so they need an artifact; captions made elsewhere have none"
        if self.vocabulary is not None and self.protocol != "levir_ids":
            yield f"vocabulary: only protocol=levir_ids has one, not {self.protocol}"
        if self.pairs is not None and self.split == "all" and self.nearest_train_pairs:
            yield "nearest_train_pairs: must be 0 with split=all, where training pairs would be nearest to themselves"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        yield from missing(self.artifact, "artifact")
        yield from missing(self.predictions, "predictions")
        yield from missing(self.references, "references")
        yield from missing(self.vocabulary, "vocabulary")


class EvaluateSection(EvaluateJob):
    """An evaluation inside another job, which sets its inputs and its output."""

    out: str = ""
    pairs: str = ""
    predictions: str | None = ""  # for the check that there is an artifact or predictions

    def preflight(self) -> Iterator[str]:
        return iter(())


class CompareJob(ConfigModel):
    """Compare two systems that were evaluated on the same pairs."""

    a: str = Field(min_length=1)
    """Folder of an evaluation."""
    b: str = Field(min_length=1)
    """Folder of the other one; differences are b - a."""
    resamples: int = Field(1000, ge=100)
    """Sets of pairs drawn for the intervals of the differences."""
    exchanges: int = Field(10_000, ge=100)
    """Random exchanges of the two captions of each pair, for the p values."""
    seed: int = 0
    """Seed of both."""
    out: str | None = None
    """File for the comparison as JSON."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.a, "a")
        yield from missing(self.b, "b")
