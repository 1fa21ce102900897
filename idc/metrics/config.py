"""Settings of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing


class EvaluateJob(ConfigModel):
    """Caption a split of a folder of pairs and score the captions beside the floors."""

    out: str = Field(min_length=1)
    """Folder for `evaluation.json` and `predictions.jsonl`."""
    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    split: Literal["train", "val", "test", "all"] = "test"
    """The split that is captioned and scored. Models are selected on val; test is touched once. `all` is for pairs that
    were not trained on whatever their split; they have no nearest training pair."""
    max_pairs: int | None = Field(None, ge=1)
    """Only the first this many pairs of the split; all of them if not given."""
    artifact: str | None = None
    """Artefact of the captioner; this or `predictions`."""
    predictions: str | None = None
    """Captions made elsewhere: JSONL with `pair_id` and `caption`."""
    batch_size: int = Field(32, ge=1)
    """Pairs captioned at a time."""
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
    constant_candidates: int = Field(200, ge=0)
    """How many of the most frequent training captions are tried as the best constant (and the most frequent one of
    every change type). 0: no constant floor."""
    nearest_train_pairs: int = Field(20_000, ge=0)
    """How many training pairs, from the first on, are searched for the nearest one. 0: no such floor. Both images of
    each are decoded: 20,000 pairs of 480x320 take about four minutes on one core."""

    def faults(self) -> Iterator[str]:
        if (self.artifact is None) == (self.predictions is None):
            yield "artifact, predictions: give one of the two"
        if self.split == "all" and self.nearest_train_pairs:
            yield "nearest_train_pairs: must be 0 with split=all, where training pairs would be nearest to themselves"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        yield from missing(self.artifact, "artifact")
        yield from missing(self.predictions, "predictions")
