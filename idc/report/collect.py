"""The page of a run, read from the folders of the run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from idc.data.images import decode_image
from idc.data.store import iter_rows, read_manifest
from idc.evaluation.baselines import TRUTH
from idc.evaluation.record import EVALUATION, Evaluation, ScoredCaption, load_evaluation, load_predictions
from idc.evaluation.trained_baseline import load_comparable
from idc.report import run
from idc.report.config import ReportJob
from idc.report.page import SCORES_NOTE, Card, Page
from idc.report.pair_cards import HEADLINE, pair_card
from idc.util.atomic import write_text
from idc.util.cores import usable_cores

_OPENING, _SHOWN, _EXTREMES = 6, 12, 4
"""Pairs at the top of the page, of all change types below, and with the best or worst CIDEr."""

_PACKAGES = ("torch", "ray", "deepspeed", "diffusers", "mitsuba", "opencv-python-headless", "pycocoevalcap", "numpy")


def evaluation_page(evaluation: str, pairs: str) -> Path | None:
    """Write the page of one evaluation into its folder, if it is not there yet; None for pairs without images."""
    if not read_manifest(pairs).has_images:
        return None
    path, scores = Path(evaluation) / "report.html", Path(evaluation) / EVALUATION
    if not path.exists() or path.stat().st_mtime < scores.stat().st_mtime:
        title = "Image difference captioning: an evaluation"
        job = ReportJob(out=str(path), title=title, evaluations=(evaluation,), pairs=pairs)
        write_text(path, collect(job).html())
    return path


def collect(job: ReportJob) -> Page:
    """The page of a run, read from its folders.

    Raises:
        ValueError: a folder lacks its files, or an evaluation of ``compare`` is of other pairs.
    """
    evaluations = [load_evaluation(folder) for folder in job.evaluations]
    captions = load_predictions(job.evaluations[0])
    chosen = {
        "A few of every kind": spread_over_types(captions, _SHOWN),
        "Best by CIDEr": by_score(captions, _EXTREMES, best=True),
        "Worst by CIDEr": by_score(captions, _EXTREMES, best=False),
    }
    opening = spread_over_types(captions, _OPENING)
    cards = gallery([row for rows in (opening, *chosen.values()) for row in rows], job.pairs, job.procedures)
    galleries = {title: [cards[row.pair_id] for row in rows] for title, rows in chosen.items()}
    first, others = evaluations[0], _others(job, evaluations[0], captions)
    timings = {name: f"{seconds:.1f} s" for name, seconds in first.seconds.items()}
    sections = [
        run.pairs_section([cards[row.pair_id] for row in opening], galleries),
        run.scores_section(evaluations, others),
        run.claims_section(evaluations, others),
        run.types_section(evaluations),
        run.record_section(first.protocol, timings, environment()),
    ]
    return Page(job.title, "", sections, SCORES_NOTE)


def _others(job: ReportJob, first: Evaluation, captions: Sequence[ScoredCaption]) -> dict[str, list[Evaluation]]:
    """The evaluations of the other captioners, all of the same pairs."""
    if taken := job.compare.keys() & {"model", TRUTH, *first.baselines}:
        raise ValueError(f"compare.{min(taken)}: the page has another row of this name; name the captioner")
    references = {row.pair_id: row.references for row in captions}
    same = (references, first.split, str(first.protocol.get("name")), list(first.scores))
    return {
        name: [load_comparable(folder, *same, f"compare.{name}") for folder in folders]
        for name, folders in job.compare.items()
    }


def spread_over_types(captions: Sequence[ScoredCaption], count: int) -> list[ScoredCaption]:
    """``count`` pairs, one of each change type in turn, in their given order."""
    waiting: dict[str | None, list[ScoredCaption]] = {}
    for row in captions:
        waiting.setdefault(row.change_type, []).append(row)
    turns = zip_longest(*waiting.values())
    return [row for turn in turns for row in turn if row is not None][:count]


def by_score(captions: Sequence[ScoredCaption], count: int, best: bool) -> list[ScoredCaption]:
    """The pairs with the highest or lowest CIDEr, ties in their given order."""
    scored = [row for row in captions if HEADLINE in row.scores]
    return sorted(scored, key=lambda row: -row.scores[HEADLINE] if best else row.scores[HEADLINE])[:count]


def gallery(captions: Iterable[ScoredCaption], pairs: str, procedures: str | None) -> dict[str, Card]:
    """The pairs with their images and, if they have one, their procedure; all must be in ``pairs``."""
    wanted = {row.pair_id: row for row in captions}
    split = {row.split for row in wanted.values()}
    only = split.pop() if len(split) == 1 and split != {"all"} else None
    images = _find(pairs, ("pair_id", "before", "after", "mask", "source"), only, set(wanted))
    if lost := sorted(wanted.keys() - images.keys()):
        raise ValueError(
            f"{pairs} lacks {len(lost)} of the captioned pairs: {', '.join(lost[:5])}; give the evaluated pairs"
        )
    columns = ("pair_id", "frames", "confidence", "keyframes")
    films = _find(procedures, columns, only, set(wanted)) if procedures is not None else {}
    cards = {}
    for name, row in wanted.items():
        pair, film = images[name], films.get(name)
        mask = decode_image(pair["mask"]).max(axis=2) if pair["mask"] else None
        frames = [decode_image(frame) for frame in film["frames"]] if film is not None else []
        whole = film is not None and len(frames) == len(film["confidence"]) + 2
        cards[name] = pair_card(
            name,
            decode_image(pair["before"]),
            decode_image(pair["after"]),
            row.caption,
            references=row.references,
            change_type=row.change_type,
            named_type=row.named_type,
            mask=mask if mask is not None and mask.any() else None,
            frames=frames,
            confidence=film["confidence"] if film is not None and whole else (),
            keyframes=film["keyframes"] if film is not None else (),
            scores=row.scores,
            nearest=row.nearest,
        )
    return cards


def environment() -> dict[str, str]:
    """The machine and the versions: Python, system, cores, memory, packages."""
    facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    facts["cores"] = str(usable_cores())
    if hasattr(os, "sysconf"):
        facts["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _find(path: str, columns: Sequence[str], split: str | None, ids: set[str]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for row in iter_rows(path, columns, split, batch_size=32):
        if row["pair_id"] in ids:
            rows[row["pair_id"]] = row
            if len(rows) == len(ids):
                break
    return rows
