"""The page of ChangeIMTI: samples next to table I, answers, contradictions, pairs with masks, centroids, questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from idc.changeimti.change_regions import (
    BUILDING,
    CLASSES,
    POSITIONS,
    ROAD,
    ChangeRegion,
    class_masks,
    find_regions,
    regions_in_words,
)
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
from idc.data.images import decode_image, resize_image
from idc.data.store import iter_rows
from idc.data.validation.checks import is_changed
from idc.report.page import (
    IMAGE_EDGE,
    Bullets,
    Card,
    Cards,
    Cell,
    Facts,
    Page,
    Section,
    Table,
    Tiles,
    middle_numbers,
    write_texts,
)

PAGE = "page.html"

TINTS = {ROAD: (255, 210, 40), BUILDING: (255, 70, 50)}
"""RGB of the classes in pictures."""


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
    tiles = [
        ("samples", f"{total:,}", f"{rejected:,} not made"),
        ("pairs", f"{counts.pairs:,}", f"{counts.changed:,} changed"),
        *((f"changed {name}s", f"{_number(counts, name):,}", f"{counts.not_counted[name]:,} without area")
          for name in CLASSES),
    ]  # fmt: skip
    samples = [
        [task, f"{number:,}", f"{PUBLISHED_SAMPLES[task]:,}"]
        for task, number in counts.samples.items() if task in PUBLISHED_SAMPLES
    ]  # fmt: skip
    settings = {
        "splits": [f"{split} {number:,}" for split, number in counts.samples_by_split.items()],
        **{name: str(value) for name, value in job.model_dump(exclude={"regions"}).items() if name in _SHOWN},
        **{f"regions.{name}": value for name, value in job.regions.model_dump().items()},
    }
    grid = [[position, *(f"{counts.positions[name][position]:,}" for name in CLASSES)] for position in POSITIONS]
    left_out = {code: f"{number:,} samples of {pairs_text(counts.rejected_pairs[code])}"
                for code, number in counts.rejected.items()}  # fmt: skip
    shown = (
        f"{len(pairs)} of {pairs_text(counts.pairs)}, evenly spaced. Roads are yellow, buildings red; a line is a "
        "region's polygon, a dot its centroid, the grid that of the positions."
    )
    return Page("ChangeIMTI", f"questions and answers about {job.pairs}", [
        Section("Overview", [
            Tiles(tiles),
            Table(["task", "samples", "paper's table I"], samples),
            Facts(settings, title="Settings", folded=True),
        ]),
        Section("Answers", [
            Table(["regions", "pairs, roads", "pairs, buildings"], _histogram(counts),
                  note="Counted regions of a pair, and the cells of their centroids."),
            Table(["position", "roads", "buildings"], grid),
        ]),
        Section("Contradictions", [
            Facts({text: f"{pairs_text(number)}, kept" for text, number in counts.contradictions.items()}),
        ]),
        Section("Not made", [Facts(left_out), Bullets(list(counts.examples.values()), note="The first of each:")]),
        Section("Pairs", [Cards(pairs, width=38, note=shown)]),
    ])  # fmt: skip


_SHOWN = ("clean", "as_published", "seed")
"""Settings on the page."""


def _number(counts: ChangeImtiCounts, name: str) -> int:
    return sum(n * pairs for n, pairs in counts.regions[name].items())


def _histogram(counts: ChangeImtiCounts) -> list[list[str]]:
    """Number of regions -> pairs, for each class; what is above 9 in one row."""
    rows = []
    for number in range(11):
        pairs = [
            sum(n for key, n in counts.regions[name].items() if (key == number if number < 10 else key >= 10))
            for name in CLASSES
        ]
        rows.append([str(number) if number < 10 else "10 or more", *(f"{n:,}" for n in pairs)])
    return rows


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
        views.append((regions_in_words(regions), region_picture(after, masks, regions)))
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


def region_picture(
    image: np.ndarray, masks: Mapping[str, np.ndarray], regions: Mapping[str, Sequence[ChangeRegion]]
) -> np.ndarray:
    """The image, enlarged and dimmed, with the masks as tints, and over them the grid, the polygons and the centroids;
    a region that is not counted has no centroid."""
    from PIL import Image, ImageDraw

    height, width = image.shape[:2]
    scale = max(1, IMAGE_EDGE // max(height, width))
    tinted = image.mean(axis=2, keepdims=True) * 0.45 + 0.25 * image
    for name, mask in masks.items():
        tinted[mask] = 0.5 * image[mask] + 0.5 * np.array(TINTS[name])
    large = resize_image(tinted.clip(0, 255).astype(np.uint8), (height * scale, width * scale))
    picture = Image.fromarray(large)
    draw = ImageDraw.Draw(picture)
    for part in (1, 2):
        x, y = width * scale * part / 3, height * scale * part / 3
        draw.line([(x, 0), (x, height * scale)], fill=(235, 235, 235))
        draw.line([(0, y), (width * scale, y)], fill=(235, 235, 235))
    for name, of_class in regions.items():
        for region in of_class:
            corners = [((x + 0.5) * scale, (y + 0.5) * scale) for x, y in region.polygon]
            if len(corners) > 1:
                draw.line([*corners, corners[0]], fill=TINTS[name], width=2)
            if region.centroid is not None:
                x, y = ((position + 0.5) * scale for position in region.centroid)
                draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=TINTS[name], outline=(0, 0, 0))
    return np.asarray(picture)
