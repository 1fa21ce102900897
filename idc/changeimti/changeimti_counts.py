"""What is in a folder of ChangeIMTI: samples next to table I of the paper, answers, contradictions, rejects."""

from __future__ import annotations

import json
from collections import Counter

from pydantic import BaseModel, ConfigDict

from idc.changeimti.config import TASKS
from idc.data.change_masks import CHANGED, POSITIONS
from idc.data.store import AnyPath, complete_manifest, iter_rows, read_rejects

COUNTS_FILE = "changeimti.json"
PUBLISHED_SAMPLES: dict[str, int] = {
    "caption": 24_444,
    "binary": 8_148,
    "count": 16_296,
    "location": 16_296,
    "dialogue": 24_444,
}
"""Table I, for the 8,148 pairs of train and val."""


class ChangeImtiCounts(BaseModel):
    """All that is counted; ``changeimti.json``."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    """Pairs with a sample."""
    changed: int
    """Pairs annotated as changed."""
    samples: dict[str, int]
    """Task -> rows."""
    samples_by_split: dict[str, int]
    rejected: dict[str, int]
    """Reason -> samples that were not made."""
    rejected_pairs: dict[str, int]
    """Reason -> pairs with such a sample."""
    examples: dict[str, str]
    """Reason -> the first such sample, in full."""
    contradictions: dict[str, int]
    """How flag and mask contradict each other -> pairs that are kept nevertheless."""
    regions: dict[str, dict[int, int]]
    """Class -> number of counted regions -> pairs."""
    positions: dict[str, dict[str, int]]
    """Class -> position -> counted regions there."""
    not_counted: dict[str, int]
    """Class -> regions without an area, which are not counted."""


def count_changeimti(out: AnyPath) -> ChangeImtiCounts:
    """Count a complete folder.

    Raises:
        ValueError: it is not complete, or not of this job.
    """
    manifest = complete_manifest(out, "instructions")
    samples: Counter[str] = Counter()
    contradictions: Counter[str] = Counter()
    regions: dict[str, Counter[int]] = {name: Counter() for name in CHANGED}
    positions: dict[str, Counter[str]] = {name: Counter() for name in CHANGED}
    dropped: Counter[str] = Counter()
    pairs = changed = 0
    previous = None
    for row in iter_rows(out, ["row_id", "of_pair", "meta"], batch_size=4096):
        samples[task_of(row["row_id"])] += 1
        if row["of_pair"] == previous:  # the rows of a pair are adjacent, and say the same of it
            continue
        previous, meta = row["of_pair"], json.loads(row["meta"])
        pairs += 1
        changed += meta["changeflag"]
        contradictions.update(filter(None, [meta.get("contradiction")]))
        for name, of_class in meta.get("regions", {}).items():
            counted = [region["position"] for region in of_class if region["position"] is not None]
            regions[name][len(counted)] += 1
            positions[name].update(counted)
            dropped[name] += len(of_class) - len(counted)
    with_reason: dict[str, set[str]] = {}
    examples: dict[str, str] = {}
    for reject in read_rejects(out):
        with_reason.setdefault(reject.code, set()).add(reject.row_id.rpartition("/")[0])
        examples.setdefault(reject.code, f"{reject.row_id}: {reject.reason}")
    return ChangeImtiCounts(
        pairs=pairs,
        changed=changed,
        samples={task: samples[task] for task in TASKS if samples[task]},
        samples_by_split=manifest.rows_by_split,
        rejected=manifest.reject_reasons,
        rejected_pairs={code: len(names) for code, names in sorted(with_reason.items())},
        examples=examples,
        contradictions=dict(contradictions.most_common()),
        regions={name: dict(sorted(counts.items())) for name, counts in regions.items()},
        positions={name: {position: counts[position] for position in POSITIONS} for name, counts in positions.items()},
        not_counted={name: dropped[name] for name in CHANGED},
    )


def task_of(row_id: str) -> str:
    """The task of a row, by its id."""
    return row_id.rpartition("/")[2].partition("-")[0]


def pairs_text(number: int) -> str:
    """A number of pairs in words."""
    return "1 pair" if number == 1 else f"{number:,} pairs"


def counts_table(counts: ChangeImtiCounts) -> str:
    """The counts as plain text."""
    total = sum(counts.samples.values())
    lines = [f"{total:,} samples of {pairs_text(counts.pairs)}, {counts.changed:,} of them changed"]
    for task, number in counts.samples.items():
        lines.append(f"  {task:10}{number:8,}   paper: {PUBLISHED_SAMPLES.get(task, 0):,}")
    for name, of_class in counts.regions.items():
        if of_class:
            number = sum(n * pairs for n, pairs in of_class.items())
            lines.append(
                f"{number:,} changed {name}s in {pairs_text(sum(of_class.values()) - of_class.get(0, 0))}; "
                f"{counts.not_counted[name]:,} without an area are not counted"
            )
    for text, number in counts.contradictions.items():
        lines.append(f"contradictory pairs: {number:,} {text}; clean=true leaves them out")
    for code, number in counts.rejected.items():
        lines.append(
            f"not made: {number:,} samples of {pairs_text(counts.rejected_pairs[code])}: {counts.examples[code]}"
        )
    return "\n".join(lines)
