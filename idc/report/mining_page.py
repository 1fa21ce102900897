"""The page of a mining job: what each filter left, similarities, mined pairs as pictures, rejected images."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from idc.data import files
from idc.data.images import decode_image
from idc.data.store import Manifest, Reject, iter_rows, iter_tables, read_rejects
from idc.mining.config import MinePairsJob
from idc.mining.features_folder import FEATURES
from idc.report.page import Bullets, Card, Cards, Facts, Page, Section, Table, Tiles, middle_numbers, write_texts

PAGE = "mining.html"
_SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_REJECTS = 30
"""Rejected images and near-duplicates that are listed, of each kind."""


def write_mining_page(job: MinePairsJob, manifest: Manifest, again: bool = True) -> None:
    """Write :data:`PAGE` into the folder of pairs.

    Args:
        manifest: of the complete folder of pairs.
        again: also if there is one.
    """
    if again or not (files.locate(job.out) / PAGE).exists():
        write_texts(job.out, {PAGE: mining_page(job, manifest).html()})


def mining_summary(job: MinePairsJob, manifest: Manifest) -> list[str]:
    """The result in lines: every image of the collection is in exactly one of them."""
    mining = manifest.extra["mining"]
    lost = [f"  {count:,} {reason}" for reason, count in mining["without_pair"].items()]
    return [
        *(f"note: {note}" for note in manifest.extra.get("notes", [])),
        f"{job.images}: {mining['images']:,} images: {mining['unreadable']:,} cannot be read, "
        f"{mining['near_duplicates']:,} are near-duplicates, {mining['paired']:,} have pairs, "
        f"{mining['searched'] - mining['paired']:,} have none" + (":" if lost else ""),
        *lost,
        f"{job.out}: {manifest.num_rows:,} pairs; rejected: {manifest.num_rejected} {manifest.reject_reasons or ''}"
        f"; page: {job.out}/{PAGE}",
    ]


def mining_page(job: MinePairsJob, manifest: Manifest) -> Page:
    """The page of a complete folder of pairs."""
    mining = manifest.extra["mining"]
    thresholds = [
        f"{name}: {limits.min:g} to {limits.max:g}, best at least {limits.set_max:g}, least at least {limits.set_min:g}"
        for name, limits in zip(mining["features"], job.thresholds(), strict=True)
    ]
    subtitle = (
        f"{manifest.num_rows:,} pairs of {mining['images']:,} images, by {' and '.join(mining['features'])} "
        f"({mining['encoder']})"
    )
    return Page("Mined pairs", subtitle, [
        Section("Overview", [
            Tiles([
                ("images in the collection", f"{mining['images']:,}", f"{mining['unreadable']:,} cannot be read"),
                ("near-duplicates", f"{mining['near_duplicates']:,}", "left out before the search"),
                ("images with pairs", f"{mining['paired']:,}", f"of {mining['searched']:,} searched"),
                ("pairs", f"{manifest.num_rows:,}",
                 f"{mining['chosen']:,} chosen, {manifest.num_rejected:,} unreadable"),
            ]),
            Table(["image", "count", "share"], _images(mining), title="Every image of the collection"),
            Table(["after", "mean"], _candidates(mining, job), title="Candidates per searched image"),
        ]),
        Section("Pairs", [Cards(_cards(job, manifest.num_rows, mining["features"]), width=20,
                                note="Evenly spaced over all pairs, with the names of the images in the collection.")]),
        Section("Similarities", [Table(
            ["cosine similarity", *(f"{share:.0%}" for share in _SHARES), "thresholds"],
            _quantiles(job, mining["features"]),
            note="Of all nearest images that were listed, and of the pairs that were chosen among them: the share of "
            "them in the heading is at most as similar.",
        )]),
        Section("Left out", [
            Bullets(_listed(read_rejects(f"{mining['work']}/features")), title="Cannot be read"),
            Bullets(_listed(read_rejects(f"{mining['work']}/neighbours")), title="Near-duplicates"),
            Bullets(manifest.extra.get("notes", [])),
        ]),
        Section("Settings", [Facts({
            "command's settings": json.dumps(job.mining().model_dump(mode="json", exclude_defaults=True)),
            "thresholds": thresholds,
            "fingerprint": manifest.fingerprint,
        })]),
    ])  # fmt: skip


def _images(mining: dict[str, Any]) -> list[list[str]]:
    """Where every image of the collection went: rows of a table whose counts add up to all images."""
    total = max(mining["images"], 1)
    lines = {"cannot be read": mining["unreadable"], "near-duplicate of an earlier image": mining["near_duplicates"]}
    lines |= mining["without_pair"] | {"has pairs": mining["paired"]}
    return [[name, f"{count:,}", f"{100 * count / total:.1f} %"] for name, count in lines.items()]


def _candidates(mining: dict[str, Any], job: MinePairsJob) -> list[list[str]]:
    """Candidates per searched image after each filter, on average."""
    means = mining["candidates"]
    rows = []
    for column, title in zip(FEATURES, mining["features"], strict=True):
        rows.append([f"nearest under {title} (k = {job.neighbours})", f"{means[f'{column}_listed']:.2f}"])
        rows.append([f"of these between min and max of {title}", f"{means[f'{column}_between']:.2f}"])
    rows.append(["in both lists", f"{means['both']:.2f}"])
    rows.append([f"one per cluster (K = {job.clusters})", f"{mining['chosen'] / max(mining['searched'], 1):.2f}"])
    return rows


def _quantiles(job: MinePairsJob, titles: Sequence[str]) -> list[list[str]]:
    """Similarities of each feature: of the neighbours that were listed, and of the targets that were chosen."""
    rows = []
    for column, title, limits in zip(FEATURES, titles, job.thresholds(), strict=True):
        for folder, what in ((f"{job.work_folder()}/neighbours", "nearest images"), (job.targets_folder(), "pairs")):
            counts = np.zeros(2001, np.int64)  # of thousandths from -1 on: all values need not fit into memory
            for table in iter_tables(folder, [f"{column}_sims"], batch_size=4096):
                values = table.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False)
                counts += np.bincount(((values.clip(-1, 1) + 1) * 1000).round().astype(int), minlength=len(counts))
            if total := counts.sum():
                bins = np.searchsorted(counts.cumsum(), np.array(_SHARES) * total)
                cells = [f"{bin_ / 1000 - 1:.3f}" for bin_ in bins]
                rows.append([f"{title}: {what}", *cells, f"{limits.min:g} to {limits.max:g}"])
    return rows


def _cards(job: MinePairsJob, num_pairs: int, titles: Sequence[str]) -> list[Card]:
    """Evenly spaced pairs as pictures, with the names of their images and their similarities."""
    wanted, cards = middle_numbers(job.pictures, num_pairs), []
    rows = iter_rows(job.out, ["pair_id", "before", "after", "meta"], batch_size=16) if wanted else ()
    for row in (row for number, row in enumerate(rows) if number in wanted):
        meta = json.loads(row["meta"])
        similar = [f"{name} {meta['similarity'][name]:.3f}" for name in (*titles, "both")]
        views = zip(meta["images"], (decode_image(row[role]) for role in ("before", "after")), strict=True)
        cards.append(Card(row["pair_id"], list(views), tags=[row["pair_id"], *similar]))
    return cards


def _listed(rejects: Sequence[Reject]) -> list[str]:
    lines = [f"{reject.row_id}: {reject.reason}" for reject in itertools.islice(rejects, _REJECTS)]
    return lines + ([f"and {len(rejects) - _REJECTS:,} more"] if len(rejects) > _REJECTS else [])
