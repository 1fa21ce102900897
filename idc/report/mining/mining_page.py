"""The page of a mining job: what each filter left, similarities, mined pairs as pictures, rejected images."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from idc.data import files
from idc.data.images import decode_image
from idc.data.mining.config import MinePairsJob
from idc.data.mining.features_folder import FEATURES
from idc.data.store import Manifest, Reject, iter_tables, read_rejects
from idc.data.write_errors import writing
from idc.report import charts
from idc.report.page import render

PAGE = "mining.html"
_BINS = 50
_REJECTS = 30
"""Rejected images and near-duplicates that are listed, of each kind."""


def write_page(job: MinePairsJob, manifest: Manifest, again: bool = True) -> None:
    """Write :data:`PAGE` into the folder of pairs.

    Args:
        manifest: of the complete folder of pairs.
        again: also if there is one.
    """
    page = files.locate(job.out) / PAGE
    if again or not page.exists():
        text = render_mining(job, manifest)
        with writing(page.parent):
            page.write(text.encode())


def summary(job: MinePairsJob, manifest: Manifest) -> list[str]:
    """The result in lines: every image of the heap is in exactly one of them."""
    found = manifest.extra["mining"]
    lost = [f"  {count:,} {reason}" for reason, count in found["without_pair"].items()]
    return [
        *(f"note: {note}" for note in manifest.extra.get("notes", [])),
        f"{job.heap}: {found['images']:,} images: {found['unreadable']:,} cannot be read, "
        f"{found['near_duplicates']:,} are near-duplicates, {found['paired']:,} have pairs, "
        f"{found['searched'] - found['paired']:,} have none" + (":" if lost else ""),
        *lost,
        f"{job.out}: {manifest.num_rows:,} pairs; rejected: {manifest.num_rejected} {manifest.reject_reasons or ''}"
        f"; page: {job.out}/{PAGE}",
    ]


def render_mining(job: MinePairsJob, manifest: Manifest) -> str:
    """The page as text."""
    found = manifest.extra["mining"]
    return render(
        "mining.html",
        title="Mined pairs",
        subtitle=f"{manifest.num_rows:,} pairs of {found['images']:,} images, by {' and '.join(found['features'])} "
        f"({found['encoder']})",
        tiles_shown=[
            ("images in the heap", f"{found['images']:,}", f"{found['unreadable']:,} cannot be read"),
            ("near-duplicates", f"{found['near_duplicates']:,}", "left out before the search"),
            ("images with pairs", f"{found['paired']:,}", f"of {found['searched']:,} searched"),
            ("pairs", f"{manifest.num_rows:,}", f"{found['chosen']:,} chosen, {manifest.num_rejected:,} unreadable"),
        ],
        images=_images(found),
        candidates=_candidates(found, job),
        histograms=_histograms(job, found["features"]),
        cards=_cards(job, manifest.num_rows, found["features"]),
        unreadable=_listed(read_rejects(f"{found['work']}/features")),
        duplicates=_listed(read_rejects(f"{found['work']}/neighbours")),
        notes=manifest.extra.get("notes", []),
        settings={
            "command's settings": json.dumps(job.mining().model_dump(mode="json", exclude_defaults=True)),
            "thresholds": [
                f"{name}: {one.min:g} to {one.max:g}, best at least {one.set_max:g}, least at least {one.set_min:g}"
                for name, one in zip(found["features"], job.thresholds(), strict=True)
            ],
            "fingerprint": manifest.fingerprint,
        },
    )


def _images(found: dict[str, Any]) -> list[list[str]]:
    """Where every image of the heap went: rows of a table whose counts add up to the heap."""
    total = max(found["images"], 1)
    lines = {"cannot be read": found["unreadable"], "near-duplicate of an earlier image": found["near_duplicates"]}
    lines |= found["without_pair"] | {"has pairs": found["paired"]}
    return [[name, f"{count:,}", f"{100 * count / total:.1f} %"] for name, count in lines.items()]


def _candidates(found: dict[str, Any], job: MinePairsJob) -> list[list[str]]:
    """Candidates per searched image after each filter, on average."""
    means = found["candidates"]
    rows = []
    for column, title in zip(FEATURES, found["features"], strict=True):
        rows.append([f"nearest under {title} (k = {job.neighbours})", f"{means[f'{column}_listed']:.2f}"])
        rows.append([f"of these between min and max of {title}", f"{means[f'{column}_between']:.2f}"])
    rows.append(["in both lists", f"{means['both']:.2f}"])
    rows.append([f"one per cluster (K = {job.clusters})", f"{found['chosen'] / max(found['searched'], 1):.2f}"])
    return rows


def _histograms(job: MinePairsJob, titles: Sequence[str]) -> list[Any]:
    """Similarities of each feature: of the neighbours that were listed, and of the targets that were chosen."""
    shown = []
    for column, title, limits in zip(FEATURES, titles, job.thresholds(), strict=True):
        marks = [(limits.min, "min"), (limits.max, "max")]
        for folder, what in (
            (f"{job.work_folder()}/neighbours", "nearest images"),
            (job.targets_folder(), "pairs"),
        ):
            counts, ends = _counts(iter_tables(folder, [f"{column}_sims"], batch_size=4096))
            if sum(counts):
                inside = [mark for mark in marks if ends[0] <= mark[0] <= ends[1]]
                shown.append(charts.distribution(f"{title}: {what}", "cosine similarity", counts, ends, inside))
    return shown


def _counts(tables: Iterable[pa.Table]) -> tuple[list[int], tuple[float, float]]:
    """Counts per bin of all values in lists, and the ends, rounded outwards to tenths."""
    fine = np.zeros(_BINS * 20, np.int64)
    for table in tables:
        values = table.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        fine += np.histogram(values, len(fine), (-1.0, 1.0))[0]
    used = np.flatnonzero(fine)
    if not len(used):
        return [0], (-1.0, 1.0)
    per_tenth = len(fine) // 20
    low, high = used[0] // per_tenth, used[-1] // per_tenth + 1
    inside = fine[low * per_tenth : high * per_tenth]
    bins = np.array_split(inside, _BINS)
    return [int(part.sum()) for part in bins], (low / 10 - 1, high / 10 - 1)


def _cards(job: MinePairsJob, num_pairs: int, titles: Sequence[str]) -> list[dict[str, Any]]:
    """Evenly spaced pairs as pictures, with the names of their images and their similarities."""
    if not num_pairs or not job.pictures:
        return []
    count = min(job.pictures, num_pairs)
    wanted = {round(n * (num_pairs - 1) / max(count - 1, 1)) for n in range(count)}
    cards, start = [], 0
    for table in iter_tables(job.out, ["pair_id", "before", "after", "meta"], batch_size=256):
        for row in (
            table.slice(n - start, 1).to_pylist()[0] for n in sorted(wanted) if start <= n < start + len(table)
        ):
            meta = json.loads(row["meta"])
            similar = [f"{name} {meta['similarity'][name]:.3f}" for name in (*titles, "both")]
            views = [(name, decode_image(row[role]))
                     for name, role in zip(meta["images"], ("before", "after"), strict=True)]  # fmt: skip
            cards.append({"pair_id": row["pair_id"], "views": views, "tags": [row["pair_id"], *similar]})
        start += len(table)
    return cards


def _listed(rejects: Sequence[Reject]) -> list[str]:
    lines = [f"{reject.row_id}: {reject.reason}" for reject in itertools.islice(rejects, _REJECTS)]
    return lines + ([f"and {len(rejects) - _REJECTS:,} more"] if len(rejects) > _REJECTS else [])
