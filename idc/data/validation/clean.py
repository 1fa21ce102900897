"""A clean variant of a data set, beside the official one and never instead of it.

It leaves out what :mod:`idc.data.validation.checks` reports as leaked or contradictory. Pairs are taken from the splits
``clean_splits`` alone (train and val by default, so that test stays official and scores comparable); a leaked pair is
taken if it shares an image with a pair of a later split, in the order train, val, test; a contradictory pair is taken
wherever it stands in these splits. What was left out stands in the variant's rejects with its reason; check the variant
itself to see what other splits still hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pyarrow import fs

from idc.data import files
from idc.data.config import ValidateJob
from idc.data.pipeline import Batch, FolderSource, StageSpec, run_local, with_errors
from idc.data.store import DatasetFolder, Manifest, fingerprint, read_schema
from idc.data.validation.report import DATA_SET_FOLDER
from idc.data.validation.run import Findings
from idc.schema import CAPTION_ORIGINS, pair_arrow_schema

_VERSION = 1
"""Of the rule: raise it if it would leave out other pairs."""


def clean_path(job: ValidateJob) -> str:
    """Where the clean variant goes: ``job.clean_out``, else ``-clean`` behind the folder's name."""
    return job.clean_out if job.clean_out is not None else f"{job.pairs.rstrip('/')}-clean"


def write_clean(
    job: ValidateJob,
    findings: Findings,
    *,
    overwrite: bool = False,
    progress: bool = True,
    filesystem: fs.FileSystem | None = None,
) -> Manifest:
    """Write the clean variant of the folder ``job.pairs``; done already, nothing happens.

    Args:
        findings: what :func:`idc.data.validation.run.validate` said of the same job.

    Raises:
        ValueError: ``job.pairs`` is no data set folder, or the place is taken by something else.
    """
    out = clean_path(job)
    if files.resolve(out, filesystem)[1].rstrip("/") == files.resolve(job.pairs, filesystem)[1].rstrip("/"):
        raise ValueError(f"clean_out is the official folder {job.pairs!r}; give another one")
    if findings.result.format != DATA_SET_FOLDER:
        raise ValueError(f"{job.pairs} is no data set folder; import it first, its clean variant is made of that")
    source = FolderSource(job.pairs, chunk_size=job.chunk_size, kind="pairs", filesystem=filesystem)
    official = source.manifest
    left_out = Counter(reason.partition(":")[0] for reason in findings.left_out.values())
    what = {
        "of": job.pairs,
        "fingerprint": official.fingerprint,
        "rule": f"left out of {' and '.join(job.clean_splits)} are pairs that share an image with a later split (train,"
        " val, test in this order) and pairs that contradict themselves",
        "splits": list(job.clean_splits),
        "left_out": dict(sorted(left_out.items())),
    }
    note = f"clean variant of {job.pairs}: {_spelled(left_out)} left out; the pairs are listed in rejects-*.parquet"
    origins = bool(official.parts) and CAPTION_ORIGINS in read_schema(job.pairs, filesystem=filesystem).names
    folder = DatasetFolder.open_for_build(
        out,
        kind="pairs",
        schema=pair_arrow_schema(origins=origins),
        fingerprint=fingerprint("clean", _VERSION, official.fingerprint, sorted(job.clean_splits), job.chunk_size),
        config=official.config,
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra={**official.extra, "clean": what, "notes": [*official.extra.get("notes", []), note]},
        filesystem=filesystem,
    )
    stage = StageSpec(LeaveOut, {"reasons": findings.left_out})
    return run_local(folder, source, [stage], progress=progress, max_reject_share=1.0, name="clean pairs")


class LeaveOut:
    """Stage: pairs with a reason to be left out get it as their error."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        errors = [error or self.reasons.get(name) for name, error in zip(batch["pair_id"], batch["error"], strict=True)]
        return {**batch, "error": errors}


def _spelled(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count} for a {code}" for code, count in sorted(left_out.items())) or "nothing"
