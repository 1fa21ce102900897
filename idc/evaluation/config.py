"""Settings of an evaluation, and of a comparison of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from idc.captioning.loading import LOADING, LoadConfig
from idc.captioning.sources import missing_artifact
from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.data.schema import IMAGE
from idc.metrics.protocols import ProtocolName
from idc.util.option_values import DiskPath

NON_SCORING_SETTINGS = frozenset({"batch_size", "actors", "cpus_per_actor", "gpus_per_actor"}) | LOADING
"""Settings of the captioning on which scores do not depend, but for :meth:`LoadConfig.loading_identity`."""


class EvaluateJob(LoadConfig):
    """Caption a split of a folder of pairs, or take captions made elsewhere, and score them with the baselines."""

    out: DiskPath = Field(min_length=1)
    """Folder for `evaluation.json` and `predictions.jsonl`."""
    pairs: str | None = Field(None, min_length=1)
    """Folder of pairs; this or `references`."""
    references: str | None = None
    """References made elsewhere, for `predictions`: JSONL of `pair_id` and `captions` (or one `caption` a line), JSON
    in COCO's form, or an object of id to captions. Rows may have change_type, changed and split; those without a split
    belong to the scored one."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Split to caption and score. Models are selected on val; test is used once. `all` is for pairs none of which were
    trained on; they have no nearest training pair."""
    max_pairs: int | None = Field(None, ge=1)
    """Only the first this many pairs of the split; all of them if not given."""
    artifact: str | None = None
    """Artifact of the captioner; this or `predictions`."""
    predictions: str | None = None
    """Captions made elsewhere: JSONL with `pair_id` and `caption`, COCO results (a JSON list of `image_id` and
    `caption`), or an object of id to caption."""
    protocol: ProtocolName = "coco"
    """Tokenisation and choice of references. coco: PTB tokens. levir_ids: strings of token ids, as the LEVIR-CC
    literature reports; levir_words: the same tokens as words. spot_single: a pair of Spot-the-Diff with all its
    sentences; spot_multi: with one reference that joins them. characters: each character of Chinese, Japanese, Thai and
    other scripts without spaces is a token."""
    vocabulary: str | None = None
    """The official vocab.json for levir_ids; else the words are counted in the captions of all splits."""
    batch_size: int = Field(32, ge=1)
    """Pairs per batch of the captioner."""
    actors: int = Field(1, ge=1)
    """Number of captioning processes; more than one run on Ray."""
    cpus_per_actor: float = Field(1.0, gt=0)
    """Cores per process, if there are several."""
    gpus_per_actor: float = Field(0.0, ge=0)
    """GPUs per process; above 0 it captions on cuda."""
    change_maps: bool = False
    """Score the captioner's change maps against the masks of changed pairs, with the pixel difference and a centred
    blob as baselines; for pairs with masks, such as rendered ones."""
    reversal: int = Field(200, ge=0)
    """Number of pairs, from the first on, that are also captioned with their images swapped: the share of captions that
    turn round with them. 0: none."""
    metrics: tuple[Literal["BLEU", "METEOR", "ROUGE-L", "CIDEr"], ...] = Field(
        ("BLEU", "METEOR", "ROUGE-L", "CIDEr"), min_length=1
    )
    """Metrics to compute."""
    spice: bool = True
    """Also compute SPICE if its jars are installed; pycocoevalcap does not include them. The job names missing ones."""
    selection: str | None = None
    """How the model was selected; recorded in the protocol. Default: what the artifact's training records, such as
    "best CIDEr on val"; "last step" if it kept no best; "not stated" for captions from elsewhere."""
    allow_empty: bool = False
    """An empty caption scores 0 instead of being an error."""
    resamples: int = Field(1000, ge=0)
    """Number of bootstrap resamples for the intervals of the scores. 0: no intervals."""
    cache: DiskPath | None = Field(None, min_length=1)
    """Folder for what depends on the references alone, for the next evaluation of them: tokens, baselines, METEOR's
    paraphrases. Default: next to `pairs` or `references`, with `.scoring` added to their name (none if these are
    remote). May be shared, and removed at any time."""
    constant_candidates: int = Field(200, ge=0)
    """Number of the most frequent training captions that are tried as the best constant (with the most frequent one of
    every change type). 0: no constant baseline."""
    nearest_train_pairs: int = Field(20_000, ge=0)
    """Number of training pairs, from the first on, that are searched for the nearest one. 0: no such baseline. Both
    images of each are decoded: 20,000 pairs of 480x320 take about four minutes on one core. Must be 0 with split=train
    and all."""

    trained_baseline: str | None = Field(None, min_length=1)
    """Folder of another captioner's evaluation of the same pairs and split, to be shown among the baselines with the
    number of its training pairs and its training time."""

    def errors(self) -> Iterator[str]:
        if (self.artifact is None) == (self.predictions is None):
            yield "artifact, predictions: give one of the two"
        if (self.pairs is None) == (self.references is None):
            yield "pairs, references: give one of the two"
        if self.references is not None and self.artifact is not None:
            yield "references: an artifact captions images, so it needs pairs; references go with predictions"
        if self.change_maps and self.predictions:
            yield "change_maps: a captioner computes them, so they need an artifact; captions made elsewhere have none"
        if self.vocabulary is not None and self.protocol != "levir_ids":
            yield f"vocabulary: only protocol=levir_ids has one, not {self.protocol}"
        if self.pairs is not None and self.split in ("train", "all") and self.nearest_train_pairs:
            yield (
                f"nearest_train_pairs: must be 0 with split={self.split}, where training pairs would be nearest to "
                "themselves"
            )

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.pairs, "pairs")
        yield from missing_artifact(self.artifact, "artifact")
        yield from missing(self.predictions, "predictions")
        yield from missing(self.references, "references")
        yield from missing(self.vocabulary, "vocabulary")
        yield from missing(self.trained_baseline, "trained_baseline")


class EvaluateSection(EvaluateJob):
    """An evaluation inside another job, which sets its inputs and its output."""

    SET_OUTSIDE: ClassVar = ("out", "pairs", "artifact", "predictions")

    out: str = ""
    pairs: str = ""
    predictions: str | None = ""  # passes the check that there is an artifact or predictions

    def preflight(self) -> Iterator[str]:
        yield from missing(self.trained_baseline, "trained_baseline")


class AskJob(LoadConfig):
    """Put the questions of a data set to a captioner, and score its answers."""

    artifact: str = Field(min_length=1)
    """Artifact of a captioner that answers questions."""
    instructions: str = Field(min_length=1)
    """Folder of instructions about pairs, such as ChangeIMTI (`jobs/build_changeimti.py`), or of pairs with questions
    (CDVQA, QAG-360K: `jobs/import_dataset.py`). Path or URI."""
    out: DiskPath = Field(min_length=1)
    """Folder for `answers.jsonl` and `answers.json`."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Split of the questions."""
    max_rows: int | None = Field(None, ge=1)
    """Only the first this many rows of the split, of all tasks; of pairs, this many questions; all of them if not
    given."""
    types: tuple[str, ...] | None = Field(None, min_length=1)
    """Types of questions, as the data set calls them (`types=[change_or_not]`); by default all that can be scored."""
    wording: str = f"{IMAGE}{IMAGE}{{question}}"
    """How a question of pairs is worded: `{question}` is the data set's own, the two `<image>` are before and after.
    Instructions are asked as they are."""
    batch_size: int = Field(16, ge=1)
    """Dialogues that are asked at once."""
    max_tokens: int = Field(48, ge=1)
    """Longest answer in tokens; a list of all nine positions has some 40."""
    data_set: str = "changeimti"
    """Data set of the questions: the page of the leaderboard that shows the result."""

    def errors(self) -> Iterator[str]:
        if "{question}" not in self.wording:
            yield "wording: must have {question} in it, which is where the data set's question goes"
        if (marks := self.wording.count(IMAGE)) != 2:
            yield f"wording: {IMAGE} is in it {marks} times; it must stand for the image before and the image after"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing_artifact(self.artifact, "artifact")
        yield from missing_pairs(self.instructions, "instructions", kind=None)


class AnswersJob(ConfigModel):
    """Score answers to questions about changes."""

    answers: str
    """JSONL, one question per line: `type` (binary, count, location, or another), `answer`, `prediction`; `class`
    (road, building, ...) for count and location; `id`, if given, must be unique."""
    out: DiskPath = Field(min_length=1)
    """Folder for `answers.json`."""
    data_set: str = "changeimti"
    """Data set of the questions: the page of the leaderboard that shows the result."""
    allow_unreadable: bool = False
    """Score predictions that no rule can parse as wrong, and count them; otherwise they are errors."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.answers, "answers")


class CompareJob(ConfigModel):
    """Compare two systems that were evaluated on the same pairs."""

    a: str = Field(min_length=1)
    """Folder of an evaluation."""
    b: str = Field(min_length=1)
    """Folder of another one; differences are b - a."""
    resamples: int = Field(1000, ge=100)
    """Number of bootstrap resamples for the intervals of the differences."""
    seed: int = 0
    """Random seed of the bootstrap."""
    out: DiskPath | None = None
    """JSON file for the comparison."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.a, "a")
        yield from missing(self.b, "b")
