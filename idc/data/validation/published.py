"""Published counts of the official data sets, and their comparison with an imported one, as one line per data set.

The numbers are in ``published.yaml``: those of the official annotation files (repositories and files are named at each
set) and of the papers. A count has the same name in ``Validation.counts``; :func:`compare_counts` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter

from idc.data.schema import SPLITS

ALL = "all"
"""Used instead of a split for a count that is only published for the whole set."""

SetName = Literal[
    "clevr_change", "clevr_dc", "spot_the_diff", "spot_the_diff_multi", "image_editing_request", "birds_to_words",
    "levir", "omnidiff", "instruct_pix2pix", "cdvqa",
]  # fmt: skip

Counts = Mapping[str, int]
"""Split -> number."""


def _by_split(counts: Any) -> Any:
    """``[train, val, test]`` by split."""
    return dict(zip(SPLITS, counts, strict=True)) if isinstance(counts, list) else counts


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Table1Row(_Record):
    """A row of OmniDiff's table 1: image pairs, mean words per caption, share of captions over 20 words (percent); of
    OmniDiff itself also captions, sentences per caption and vocabulary, from table 2."""

    pairs: int
    words: int
    over_20: int
    captions: int | None = None
    sentences: float | None = None
    vocabulary: int | None = None


class Relation(_Record):
    """The reason why one count exceeds another: ``"9,524 rows are 8,566 pairs: ids repeat"``."""

    more: str
    fewer: str
    why: str


class PublishedSet(_Record):
    """Published facts about one data set."""

    title: str
    """Its name in papers."""
    source: str
    """The source of the counts."""
    counts: dict[str, Annotated[dict[str, int], BeforeValidator(_by_split)]]
    """Name -> split (or :data:`ALL`) -> number."""
    relations: list[Relation] = []
    """Relations between its counts."""
    remarks: list[str] = []
    """Notes on the counts; other published numbers."""
    table1: Table1Row | None = None
    """Its row in OmniDiff's table 1, if it has one."""


PUBLISHED: dict[SetName, PublishedSet] = TypeAdapter(dict[SetName, PublishedSet]).validate_python(
    yaml.load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
)


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
        numbers = counted[count]
        if ALL in published:
            numbers = {ALL: numbers.get(ALL, sum(numbers.values()))}
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


def _numbers(counts: Counts) -> str:
    if len(counts) == 1:
        return "".join(f"{number:,}" for number in counts.values())
    return "/".join(f"{counts[split]:,}" if split in counts else "–" for split in SPLITS) if counts else "0"


def _shown(name: str, counts: Counts) -> str:
    only = f" ({'in all' if ALL in counts else next(iter(counts))})" if len(counts) == 1 else ""
    return f"{_numbers(counts)} {name.replace('_', ' ')}{only}"
