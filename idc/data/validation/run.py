"""Validates a data set: every pair is read once and checked.

Errors (the set is not ``ok``): unusable rows, repeated ids, images shared between splits, flags that contradict masks.
Warnings: the same two images under several ids, identical before and after, blank captions. Also: counts per split,
compared with the published ones (:mod:`idc.data.validation.published`), and statistics of the captions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from idc.data import files
from idc.data.config import ValidateJob
from idc.data.importing import load_stage
from idc.data.pipeline import FolderSource, Source, StageSpec, good_rows, run_stages
from idc.data.readers import open_reader
from idc.data.readers.base import PairReader
from idc.data.readers.default_splits import SaysNoChange, with_default_splits
from idc.data.readers.layouts import with_layout
from idc.data.schema import SPLITS
from idc.data.store import MANIFEST
from idc.data.validation.caption_statistics import CaptionCounter
from idc.data.validation.checks import Checks
from idc.data.validation.near_copies import copy_thumbnail
from idc.data.validation.published import ALL, PUBLISHED, SetName, compare_counts
from idc.data.validation.report import DATA_SET_FOLDER, EXAMPLES, Validation
from idc.util.progress import tracked


@dataclass(frozen=True)
class Example:
    """A pair to show; images are encoded, and empty if the set has none."""

    pair_id: str
    split: str
    before: bytes
    after: bytes
    mask: bytes | None
    captions: list[str]
    change_type: str | None


@dataclass(frozen=True)
class ValidationFindings:
    """The result, and the parts of it that are not stored.

    Attributes:
        job: with the format and its settings that ``format=auto`` found.
        examples: split -> a few of its pairs.
        shown: pair id -> the pair, for the examples of problems.
    """

    job: ValidateJob
    result: Validation
    examples: dict[str, list[Example]]
    shown: dict[str, Example]


def validate(
    job: ValidateJob, *, progress: bool = True, says_no_change: SaysNoChange | None = None
) -> ValidationFindings:
    """Read every pair once and check it; memory is some thousand bytes per pair (ids, hashes, thumbnails), not its
    images.

    Raises:
        ValueError: there is nothing to read at ``job.pairs``.
    """
    opened = _open(job, progress, says_no_change)
    stage = opened.stage.build()
    checks = Checks(job.pictures)
    chunks = range(opened.source.num_chunks)
    for chunk in tracked(chunks, len(chunks), "pairs", "chunk", show=progress):
        raw = opened.source.read(chunk)
        checks.add(chunk, raw, run_stages([stage], raw))
    result = _result(job, opened, checks)
    chosen = {split: checks.sample(split) for split in SPLITS}
    named = [*itertools.chain.from_iterable(chosen.values()), *_named(result)]
    shown = _fetch(opened, checks.chunks_of(named)) if job.pictures else {}
    return ValidationFindings(
        job=opened.job,
        result=result,
        examples={split: [shown[name] for name in names] for split, names in chosen.items() if names},
        shown=shown,
    )


# ------------------------------------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class _Opened:
    """Pairs of a data set folder, or of a source that is not imported yet, as the checks need them."""

    job: ValidateJob
    format: str
    source: Source
    stage: StageSpec
    extra: Mapping[str, Any]
    rejected: Mapping[str, int]
    known_as: SetName | None

    @property
    def images(self) -> bool:
        return bool(self.extra.get("images", True))


def _open(job: ValidateJob, progress: bool, says_no_change: SaysNoChange | None) -> _Opened:
    location = files.locate(job.pairs)
    source: FolderSource | PairReader
    if (location / MANIFEST).exists():
        source = FolderSource(location, chunk_size=job.chunk_size, kind="pairs")
        manifest, reader, format = source.manifest, files.Reader(location), DATA_SET_FOLDER
        extra, rejected, config = manifest.extra, manifest.reject_reasons, manifest.config
    else:
        job, layout = with_layout(job, location)
        source = open_reader(layout, location, job)
        source = with_default_splits(source, layout, job, progress=progress, says_no_change=says_no_change)
        reader, format, extra, rejected, config = source.reader, layout, source.extra, {}, job.model_dump()
    stage = load_stage(job, reader, extra.get("images", True), look=copy_thumbnail)
    return _Opened(job, format, source, stage, extra, rejected, job.published or _known_as(config))


def _known_as(config: Mapping[str, Any]) -> SetName | None:
    format = config.get("format")
    if format == "spot_the_diff" and config.get("spot_the_diff", {}).get("protocol") == "multi":
        return "spot_the_diff_multi"
    return next((name for name in PUBLISHED if name == format), None)


# ------------------------------------------------------------------------------------------------ what was found


def _result(job: ValidateJob, opened: _Opened, checks: Checks) -> Validation:
    checks.finish()
    leaks = list(checks.shared.leaks())
    counts = checks.all_counts(opened.extra.get("counts") or {})
    reasons = _reasons(opened, checks)
    return Validation(
        pairs=job.pairs,
        format=opened.format,
        ok=not checks.problems and not leaks and bool(checks.shared.pairs),
        images=opened.images,
        num_pairs=checks.num_pairs,
        usable_pairs=len(checks.shared.pairs),
        by_split_and_type={
            split: dict(sorted(checks.table[split].items())) for split in SPLITS if split in checks.table
        },
        counts=counts,
        published=compare_counts(opened.known_as, counts, reasons) if opened.known_as is not None else None,
        problems=dict(sorted(checks.problems.items())),
        warnings=dict(sorted(checks.warnings.items())),
        num_leaks=len(leaks),
        leaks=leaks[:EXAMPLES],
        leaked_pairs=checks.shared.leaked_pairs(),
        without_captions=checks.without,
        statistics=checks.captions.get(ALL, CaptionCounter()).result(),
        statistics_by_split={s: checks.captions[s].result() for s in SPLITS if s in checks.captions},
        different_sizes=checks.different,
        image_sizes=dict(checks.sizes.most_common(EXAMPLES)),
        rejected=dict(opened.rejected),
        notes=list(opened.extra.get("notes", [])),
    )


def _reasons(opened: _Opened, checks: Checks) -> list[str]:
    extra = opened.extra
    reasons = [
        f"{number:,} {name.removeprefix('absent_')} have no images here"
        for name, number in extra.items()
        if name.startswith("absent_") and number
    ]
    if bad := checks.num_pairs - len(checks.shared.pairs):
        reasons.append(f"{bad:,} rows are unusable")
    if opened.rejected:
        reasons.append(f"{sum(opened.rejected.values()):,} rows were rejected at import")
    return reasons


def _named(result: Validation) -> list[str]:
    texts = [text for problem in (*result.problems.values(), *result.warnings.values()) for text in problem.examples]
    return [*(text.partition(": ")[0] for text in texts), *(name for leak in result.leaks for name in leak.pairs)]


def _fetch(opened: _Opened, wanted: Mapping[int, set[str]]) -> dict[str, Example]:
    stage, out = opened.stage.build(), dict[str, Example]()
    for chunk, names in sorted(wanted.items()):
        batch = run_stages([stage], opened.source.read(chunk))
        for i in good_rows(batch):
            if (pair_id := batch["pair_id"][i]) in names and pair_id not in out:
                values = {name: batch[name][i] for name in ("before", "after", "mask", "captions", "change_type")}
                out[pair_id] = Example(pair_id=pair_id, split=batch["split"][i], **values)
    return out
