"""The page of captioned pairs of one's own (:mod:`idc.captioning.table`): what the captioner writes about them, and how
many get its warning. Rows without a caption are not counted. ``jobs/evaluate.py`` tells how much is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.captioning.apply import Pixels, decode_pair
from idc.captioning.boxes import boxes_of
from idc.captioning.contract import assessment_text, sentence_without_model
from idc.captioning.objects_config import OBJECTS, REGIONS
from idc.captioning.table import CHANGE_MAP, PAGE, SUMMARY, CaptionJob
from idc.data.images import decode_image
from idc.data.rows import open_rows
from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.data.store import iter_rows
from idc.metrics.change_types import UNCLEAR, named_type
from idc.metrics.scene_scores import wilson
from idc.report.page import Card, Cards, Facts, Page, Section, Table, Tiles, middle_numbers, write_texts
from idc.report.pair_cards import pair_card, with_boxes

_UNTRAINED = {OBJECTS, REGIONS}
"""Captioners whose words are not those of the change types."""
_READ_TOGETHER = 16
"""Rows of the input that are read for a pair of the page."""


class GallerySummary(BaseModel):
    """All that is counted; ``summary.json``."""

    model_config = ConfigDict(extra="forbid")
    captioner: str
    """The captioner of the job."""
    captions: dict[str, int]
    """Captioner -> pairs that it captioned: one, but of `auto`."""
    input: str
    pairs: int
    without_caption: int
    """Pairs whose images could not be read; the others are counted below."""
    warned: int | None
    """Pairs with the warning that they are unlike the training data; None if the captioner has none to give."""
    warnable: int
    """Pairs that were compared with the training data."""
    verdicts: dict[str, int]
    named_types: dict[str, int]
    """Change type that a caption names, or ``unclear`` -> captions."""


def write_gallery(job: CaptionJob) -> GallerySummary:
    """Write ``summary.json`` and, unless ``job.show`` is 0, ``page.html`` into the complete folder ``job.out``.

    Raises:
        ValueError: the input or the artifact cannot be read, or the folder cannot be written.
    """
    summary = _summarise(job)
    texts = {SUMMARY: summary.model_dump_json(indent=1) + "\n"}
    if job.show:
        shown = _shown(job, summary.pairs - summary.without_caption)
        texts[PAGE] = gallery_page(summary, list(_cards(job, shown))).html()
    write_texts(job.out, texts)
    return summary


def gallery_page(summary: GallerySummary, cards: Sequence[Card]) -> Page:
    """The page of the counts and the pairs to show."""
    captioned = summary.pairs - summary.without_caption
    more = f"{summary.without_caption:,} more have no caption" if summary.without_caption else ""
    tiles = [("captioned pairs", f"{captioned:,}", more)]
    if summary.warned is not None:
        tiles.append(_share("with the warning “unlike the training data”", summary.warned, summary.warnable))
    unchanged = summary.named_types.get(NO_CHANGE, 0)
    tiles.append(("captions that report no change", f"{unchanged / max(1, captioned):.0%}", f"{unchanged:,} captions"))
    facts = {
        "captioner": [f"{name}: {n:,} pairs" for name, n in summary.captions.items()],
        "verdicts": [f"{count:,} {name}" for name, count in summary.verdicts.items()],
    }
    named = [[name, f"{n:,}", f"{n / max(1, captioned):.1%}"] for name, n in summary.named_types.items()]
    every = f"{len(cards):,} of the {captioned:,} captioned pairs, evenly spaced"
    shown = every if len(cards) < captioned else f"All {captioned:,} captioned pairs"
    return Page("Captioned pairs", summary.input, [
        Section("Overview", [
            Tiles(tiles),
            Facts(facts),
            Table(["type", "captions", "share"], named if summary.captions.keys() - _UNTRAINED else [],
                  title="Change types that the captions name",
                  note="Judged by their words; “none” is a caption that reports no change."),
        ]),
        Section("Pairs", [Cards(cards, note=f"{shown}.")]),
    ])  # fmt: skip


def _summarise(job: CaptionJob) -> GallerySummary:
    warned: Counter[bool | None] = Counter()
    verdicts: Counter[str] = Counter()
    captions: Counter[str] = Counter()
    named: Counter[str] = Counter()
    rows = 0
    for row in iter_rows(job.out, ["row", "caption", "verdict", "familiar", "captioner"]):
        rows += 1
        if row["caption"] is None:
            continue
        said = named_type(row["caption"]) or UNCLEAR
        warned[None if row["familiar"] is None else not row["familiar"]] += 1
        verdicts[row["verdict"]] += 1
        captions[row["captioner"]] += 1
        named[said] += 1
    judged = warned[True] + warned[False]
    return GallerySummary(
        captioner=job.artifact,
        captions=dict(captions.most_common()),
        input=job.input,
        pairs=rows,
        without_caption=rows - sum(named.values()),
        warned=warned[True] if judged else None,
        warnable=judged,
        verdicts=dict(verdicts.most_common()),
        named_types={name: named[name] for name in (*CHANGE_TYPES, UNCLEAR) if named[name]},
    )


def _share(label: str, count: int, of: int) -> tuple[str, str, str]:
    low, high = wilson(count / of, of)
    return label, f"{count / of:.0%}", f"{count:,} of {of:,}; 95 % interval {100 * low:.1f} to {100 * high:.1f}"


def _shown(job: CaptionJob, captioned: int) -> list[dict[str, Any]]:
    """The captioned rows of the page: the middle ones of ``job.show`` equal parts, or all."""
    wanted = middle_numbers(job.show, captioned)
    rows = (row for row in iter_rows(job.out) if row["caption"] is not None)
    return [row for number, row in enumerate(rows) if number in wanted]


def _cards(job: CaptionJob, shown: Sequence[dict[str, Any]]) -> Iterator[Card]:
    """The pairs with their images, which are read again; one whose images are gone is left out."""
    source = open_rows(job.input, job.format, chunk_size=_READ_TOGETHER, limit=job.max_pairs, access_config=job)
    chunk, batch = -1, {}
    for row in shown:  # ascending, so each chunk is read at most once
        if row["row"] // _READ_TOGETHER != chunk:
            chunk = row["row"] // _READ_TOGETHER
            batch = source.read(chunk)
        index = row["row"] % _READ_TOGETHER
        pixels = decode_pair(batch["before"][index], batch["after"][index], source.reader, job.max_pixels)
        if not isinstance(pixels, Pixels):
            continue
        images = pixels.shown(row["claims"][0]["page"] if row["claims"] else None).images
        before, after = (with_boxes(image, boxes) for image, boxes in zip(images, boxes_of(row), strict=True))
        yield pair_card(
            row["pair_id"],
            before,
            after,
            row["caption"],
            named_type=None if row["captioner"] in _UNTRAINED else named_type(row["caption"]),
            note=f"{assessment_text(row)}; captioner {row['captioner']}",
            warning=row["warning"],
            without_model=sentence_without_model(row),
            change_map=None if row[CHANGE_MAP] is None else decode_image(row[CHANGE_MAP])[..., 0] / np.float32(255),
        )
