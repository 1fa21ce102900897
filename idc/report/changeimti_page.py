"""The page of ChangeIMTI: samples next to table I, answers, contradictions, pairs with masks and questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from idc.changeimti.change_regions import CLASSES, class_masks, find_regions, regions_in_words
from idc.changeimti.changeimti_counts import (
    COUNTS_FILE,
    PUBLISHED_SAMPLES,
    ChangeImtiCounts,
    count_changeimti,
    counts_table,
    pairs_text,
    task_of,
)
from idc.changeimti.config import BuildChangeImtiJob
from idc.changeimti.questions import LabelledPair
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.validation.checks import is_changed
from idc.report.page import Bullets, Card, Cards, Cell, Facts, Page, Section, Table, Tiles, middle_numbers, write_texts
from idc.report.pair_cards import overlay

PAGE = "page.html"


def write_changeimti_page(job: BuildChangeImtiJob) -> str:
    """Write ``changeimti.json`` and, unless ``job.show`` is 0, ``page.html`` into the complete folder ``job.out``.
    Returns the counts as text."""
    counts = count_changeimti(job.out)
    texts = {COUNTS_FILE: counts.model_dump_json(indent=1) + "\n"}
    if job.show:
        texts[PAGE] = changeimti_page(job, counts, list(_cards(job, counts.pairs))).html()
    write_texts(job.out, texts)
    return f"{job.out}: {counts_table(counts)}" + (f"\npage: {job.out}/{PAGE}" if job.show else "")


def changeimti_page(job: BuildChangeImtiJob, counts: ChangeImtiCounts, pairs: Sequence[Card]) -> Page:
    """The page of the counts and the pairs to show."""
    total, rejected = sum(counts.samples.values()), sum(counts.rejected.values())
    regions = {name: sum(n * pairs for n, pairs in counts.regions[name].items()) for name in CLASSES}
    tiles = [
        ("samples", f"{total:,}", f"{rejected:,} not made"),
        ("pairs", f"{counts.pairs:,}", f"{counts.changed:,} changed"),
        *((f"changed {name}s", f"{regions[name]:,}", f"{counts.not_counted[name]:,} without area")
          for name in CLASSES),
    ]  # fmt: skip
    samples = [
        [task, f"{number:,}", f"{PUBLISHED_SAMPLES[task]:,}"]
        for task, number in counts.samples.items() if task in PUBLISHED_SAMPLES
    ]  # fmt: skip
    left_out = {code: f"{number:,} samples of {pairs_text(counts.rejected_pairs[code])}"
                for code, number in counts.rejected.items()}  # fmt: skip
    shown = f"{len(pairs)} of {pairs_text(counts.pairs)}, evenly spaced, with the roads and buildings of the masks."
    return Page("ChangeIMTI", f"questions and answers about {job.pairs}", [
        Section("Overview", [
            Tiles(tiles),
            Table(["task", "samples", "paper's table I"], samples),
            Facts({split: f"{number:,} samples" for split, number in counts.samples_by_split.items()}, title="Splits"),
        ]),
        Section("Contradictions", [
            Facts({text: f"{pairs_text(number)}, kept" for text, number in counts.contradictions.items()}),
        ]),
        Section("Not made", [Facts(left_out), Bullets(list(counts.examples.values()), note="The first of each:")]),
        Section("Pairs", [Cards(pairs, width=38, note=shown)]),
    ])  # fmt: skip


def _cards(job: BuildChangeImtiJob, pairs: int) -> Iterator[Card]:
    """The middle pairs of ``job.show`` equal parts, or all."""
    wanted = middle_numbers(job.show, pairs)
    rows = iter_rows(job.out, ["row_id", "turns", "of_pair"], batch_size=1024)
    of_pairs = enumerate(groupby(rows, key=lambda row: row["of_pair"]))
    samples = {name: list(of_pair) for number, (name, of_pair) in of_pairs if number in wanted}
    columns = ["pair_id", "before", "after", "captions", "change_type", "split", "mask", "meta"]
    for row in iter_rows(job.pairs, columns, batch_size=16):
        if row["pair_id"] in samples:
            yield _pair(job, row, samples.pop(row["pair_id"]))
        if not samples:
            return


def _pair(job: BuildChangeImtiJob, row: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> Card:
    before, after = (decode_image(row[name]) for name in ("before", "after"))
    views = [("before", before), ("after", after)]
    changed = bool(is_changed(row["change_type"], json.loads(row["meta"] or "{}")))
    tags = [row["pair_id"], row["split"], "changed" if changed else "unchanged"]
    if (masks := _masks(row, after.shape[:2])) is not None:
        regions = {name: find_regions(mask, job.regions) for name, mask in masks.items()}
        views.append((regions_in_words(regions), overlay(after, np.any(list(masks.values()), axis=0))))
        contradiction = LabelledPair(row["pair_id"], changed, row["captions"], regions).contradiction
        tags += [contradiction] if contradiction is not None else []
    questions: dict[tuple[str, str], list[str]] = {}
    dialogue: list[tuple[str, str, str]] = []
    for sample in samples:
        task, turns = task_of(sample["row_id"]), [turn["text"] for turn in sample["turns"]]
        if task == "dialogue":
            dialogue = dialogue or [(task, *turn) for turn in zip(turns[::2], turns[1::2], strict=True)]
        else:
            questions.setdefault((task, turns[0]), []).append(turns[1])
    rows = [
        (*asked, answer) if number == 0 else ("", "", answer)
        for asked, answers in questions.items()
        for number, answer in enumerate(answers)
    ]
    cells = [[task, Cell(question, wide=True), Cell(answer, wide=True)] for task, question, answer in rows + dialogue]
    return Card(row["pair_id"], views, tags=tags, blocks=[Table(["task", "question", "answer"], cells)])


def _masks(row: Mapping[str, Any], size: tuple[int, ...]) -> dict[str, np.ndarray] | None:
    """The pixels of each class; None without a usable mask."""
    try:
        label = decode_image(row["mask"] or b"")
        return class_masks(label) if label.shape[:2] == size else None
    except ValueError:
        return None
