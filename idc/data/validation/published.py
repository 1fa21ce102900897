"""Published counts of the official data sets, and their comparison with an imported one, as one line per data set.

The numbers are those of the official annotation files (repositories and files are named at each set) and of the papers.
A count has the same name in ``Validation.counts``; :func:`compare_counts` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from idc.schema import SPLITS

ALL = "all"
"""Used instead of a split for a count that is only published for the whole set."""

SetName = Literal[
    "clevr_change",
    "clevr_dc",
    "spot_the_diff",
    "spot_the_diff_multi",
    "image_editing_request",
    "birds_to_words",
    "levir",
    "omnidiff",
    "instruct_pix2pix",
    "cdvqa",
]

Counts = Mapping[str, int]
"""Split -> number."""


@dataclass(frozen=True)
class Table1Row:
    """A row of OmniDiff's table 1: image pairs, mean words per caption, share of captions over 20 words (percent); of
    OmniDiff itself also captions, sentences per caption and vocabulary, from table 2."""

    pairs: int
    words: int
    over_20: int
    captions: int | None = None
    sentences: float | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class Relation:
    """The reason why one count exceeds another: ``"9,524 rows are 8,566 pairs: ids repeat"``."""

    more: str
    fewer: str
    why: str


@dataclass(frozen=True)
class PublishedSet:
    """Published facts about one data set.

    Attributes:
        title: its name in papers.
        source: the source of the counts.
        counts: name -> split (or :data:`ALL`) -> number.
        relations: relations between its counts.
        remarks: notes on the counts; other published numbers.
        table1: its row in OmniDiff's table 1, if it has one.
    """

    title: str
    source: str
    counts: Mapping[str, Counts]
    relations: Sequence[Relation] = ()
    remarks: Sequence[str] = ()
    table1: Table1Row | None = None


def _splits(train: int, val: int, test: int) -> dict[str, int]:
    return {"train": train, "val": val, "test": test}


PUBLISHED: dict[SetName, PublishedSet] = {
    "clevr_change": PublishedSet(
        title="CLEVR-Change",
        source="splits.json and type_mapping.json of the authors (Park et al. 2019, Seth-Park/RobustChangeCaptioning)",
        counts={
            "triples": _splits(33_830, 1_988, 3_985),
            "pairs": _splits(67_660, 3_976, 7_970),
            "unchanged_pairs": _splits(33_830, 1_988, 3_985),
            **{f"{kind}_pairs": {"test": 797} for kind in ("color", "material", "add", "drop", "move")},
        },
        relations=[Relation("pairs", "triples", "a triple gives a changed pair and a distractor pair")],
        table1=Table1Row(79_606, 8, 0),
    ),
    "clevr_dc": PublishedSet(
        title="CLEVR-DC",
        source="README of the authors (Kim et al. 2021, hsgkim/clevr-dc): 8,000 pairs for each of 6 actions, 85:5:10",
        counts={"pairs": _splits(40_800, 2_400, 4_800)},
        remarks=["no change is one of the 6 actions; there are no further distractor pairs"],
    ),
    "spot_the_diff": PublishedSet(
        title="Spot-the-Diff",
        source="data/annotations/{train,val,test}.json of the authors (Jhamtani and Berg-Kirkpatrick 2018, "
        "harsh19/spot-the-diff)",
        counts={
            "rows": _splits(9_524, 1_634, 1_404),
            "pairs": _splits(8_566, 1_493, 1_270),
            "sentences": _splits(17_676, 3_310, 2_107),
            "empty_sentences": _splits(53, 6, 7),
        },
        relations=[
            Relation("rows", "pairs", "several annotators of a pair have one row each, under the same img_id"),
            Relation("sentences", "captions", "empty sentences are dropped"),
        ],
        remarks=[
            "OmniDiff, table 1, has 13,192 pairs; the released files have 12,562 rows of 11,329 pairs",
            "the 19 words per caption of that table are a row's sentences together (19.5 in the released files)",
        ],
        table1=Table1Row(13_192, 19, 19),
    ),
    "spot_the_diff_multi": PublishedSet(
        title="Spot-the-Diff (multi-change)",
        source="change_multi_captions.json and splits.json of CARD (Tu et al. 2024, tuyunbin/CARD)",
        counts={"pairs": _splits(8_566, 1_493, 1_270), "sentences": _splits(8_566, 1_493, 1_270)},
        relations=[Relation("sentences", "captions", "some pairs have only blank sentences, so no caption")],
        remarks=["one caption per pair: all its sentences joined"],
        table1=Table1Row(13_192, 19, 19),
    ),
    "image_editing_request": PublishedSet(
        title="Image-Editing-Request",
        source="dataset/adobe/{train,valid,test}.json of the authors (Tan et al. 2019, airsplay/VisualRelationships)",
        counts={
            "rows": _splits(3_061, 383, 495),
            "pairs": _splits(3_061, 383, 495),
            "distinct_pairs": _splits(2_507, 357, 446),
            "captions": _splits(3_061, 1_149, 1_485),
            "captions_with_capitals": {"test": 766},
            "captions_with_punctuation": {"test": 326},
        },
        relations=[Relation("pairs", "distinct_pairs", "the same two images occur under several uids")],
        remarks=["one request per pair in train, three in val and test"],
        table1=Table1Row(3_939, 8, 2),
    ),
    "birds_to_words": PublishedSet(
        title="Birds-to-Words",
        source="the set of Forbes et al. 2019 as tokenised in cwj1412/image-difference-captioning (data/bird2words); "
        "pairs: OmniDiff, table 1",
        counts={"rows": _splits(12_890, 325, 337), "pairs": {ALL: 3_347}},
        relations=[
            Relation("rows", "pairs", "a training pair has a row for each of its descriptions, others have one")
        ],
        table1=Table1Row(3_347, 32, 25),
    ),
    "levir": PublishedSet(
        title="LEVIR-CC and LEVIR-MCI",
        source="LevirCCcaptions.json (Liu et al. 2022), as in Chen-Yang-Liu/Change-Agent, Multi_change/data/LEVIR_MCI; "
        "contradictions: issue 18 there",
        counts={
            "pairs": _splits(6_815, 1_333, 1_929),
            "captions": _splits(34_075, 6_665, 9_645),
            "unchanged_pairs": _splits(3_408, 666, 965),
            "unchanged_with_mask": {"train": 211},
            "changed_without_mask": {"train": 139},
        },
        remarks=["five captions per pair; all unchanged pairs have the same five"],
        table1=Table1Row(10_077, 8, 1),
    ),
    "omnidiff": PublishedSet(
        title="OmniDiff",
        source="the paper (Liu et al. 2025), table 2, and its counts of the real and the rendered part",
        counts={
            "pairs": _splits(12_452, 1_576, 1_570),
            "captions": _splits(12_452, 1_576, 1_570),
            "real_pairs": _splits(7_007, 799, 803),
            "render_pairs": _splits(5_445, 777, 767),
        },
        remarks=[
            "no file format is published; the reader assumes one (idc/data/readers/omnidiff.py)",
            "the paper reports 60.0 words and 2.5 sentences per caption, 38,653 sentences and a vocabulary of 3,793 "
            "(table 2)",
            "60 words on average, with 37 % of the captions over 20 words (table 1), would need 128 words in each of "
            "these",
        ],
        table1=Table1Row(15_598, 60, 37, captions=15_598, sentences=2.5, vocabulary=3_793),
    ),
    "instruct_pix2pix": PublishedSet(
        title="InstructPix2Pix, clip-filtered",
        source="README of the authors (Brooks et al. 2023, timothybrooks/instruct-pix2pix)",
        counts={"pairs": {ALL: 313_010}},
        remarks=["split 90:5:5 by the order of the prompts, which have several pairs each (edit_dataset.py)"],
    ),
    "cdvqa": PublishedSet(
        title="CDVQA",
        source="{Val,Test}_questions.json of the authors (Yuan et al. 2022, YZHJessica/CDVQA)",
        counts={"questions": {"val": 16_441, "test": 39_686}, "question_types": {ALL: 8}, "answers": {ALL: 19}},
        remarks=["train questions are not in the repository"],
    ),
}


class CountLine(BaseModel):
    """One count, found and published; ``agrees`` is None if nothing comparable is published."""

    name: str
    found: dict[str, int]
    published: dict[str, int]
    agrees: bool | None


class CountComparison(BaseModel):
    """A data set compared with its published counts."""

    name: SetName
    title: str
    source: str
    lines: list[CountLine]
    absent_splits: list[str]
    """Splits of the published set that are entirely missing here; they are not compared."""
    explained: list[str]
    agrees: bool

    def sentence(self) -> str:
        """The comparison in one line."""
        order = "/".join(SPLITS)
        groups = {
            f"as published ({order})": [_shown(line.name, line.found) for line in self.lines if line.agrees],
            "DIFFERENT": [
                f"{_shown(line.name, line.found)} (published {_numbers(line.published)})"
                for line in self.lines
                if line.agrees is False
            ],
            "counted": [_shown(line.name, line.found) for line in self.lines if line.agrees is None],
            "missing": self.absent_splits,
        }
        facts = [f"{head}: {', '.join(parts)}" for head, parts in groups.items() if parts]
        return f"{self.title}: {'; '.join([*facts, *self.explained])}"


def compare_counts(name: SetName, counted: Mapping[str, Counts], reasons: Sequence[str] = ()) -> CountComparison:
    """Compare the counts of a set with the published ones.

    Args:
        counted: name -> split -> number, as ``Validation.counts``. Missing names were not counted and are left out.
        reasons: possible reasons for lower counts (missing images, rejected rows), as text.
    """
    expected = PUBLISHED[name]
    here = {split for split, number in counted.get("pairs", {}).items() if number}
    wanted = {split for counts in expected.counts.values() for split in counts if split != ALL}
    absent = [split for split in SPLITS if split in wanted and split not in here]
    lines = []
    for count, published in expected.counts.items():
        if count not in counted:
            continue
        numbers = _in_all(counted[count]) if ALL in published else counted[count]
        pertinent = {split: number for split, number in published.items() if split not in absent}
        numbers = {split: numbers.get(split, 0) for split in pertinent}
        agrees = numbers == pertinent if pertinent else None
        if agrees is False and ALL in published and absent:
            agrees = None  # a part of the set is missing, so the count of the whole set cannot be compared
        lines.append(CountLine(name=count, found=numbers, published=dict(published), agrees=agrees))
    agrees = all(line.agrees is not False for line in lines) and any(line.agrees for line in lines)
    different = {line.name for line in lines if line.agrees is False}
    explained = [
        f"{_shown(relation.more, counted[relation.more])} are {_shown(relation.fewer, counted[relation.fewer])}: "
        f"{relation.why}"
        for relation in expected.relations
        if relation.more in counted
        and relation.fewer in counted
        and counted[relation.more] != counted[relation.fewer]
        and not {relation.more, relation.fewer} & different
    ]
    explained += expected.remarks
    if different or absent:
        explained += reasons
    if different and not reasons:
        explained.append("the difference is unexplained: these are probably not the published files")
    return CountComparison(
        name=name, title=expected.title, source=expected.source, lines=lines, absent_splits=absent, explained=explained,
        agrees=agrees,
    )  # fmt: skip


def _in_all(numbers: Counts) -> dict[str, int]:
    return {ALL: numbers.get(ALL, sum(numbers.values()))}


def _numbers(counts: Counts) -> str:
    """``9,524/1,634/1,404`` by split; one number for one split or the whole set."""
    if len(counts) == 1:
        return "".join(f"{number:,}" for number in counts.values())
    return "/".join(f"{counts[split]:,}" if split in counts else "–" for split in SPLITS) if counts else "0"


def _shown(name: str, counts: Counts) -> str:
    only = f" ({'in all' if ALL in counts else next(iter(counts))})" if len(counts) == 1 else ""
    return f"{_numbers(counts)} {name.replace('_', ' ')}{only}"
