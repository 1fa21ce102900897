"""A clean variant of a data set, in addition to the official one and never in place of it.

It leaves out pairs of train and val, so that test stays official and scores comparable: those that contradict
themselves, and those that share an image with a pair of a later split, in the order train, val, test. They are in the
variant's rejects with their reasons; validate the variant itself to see what test still contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from idc.data import files
from idc.data.config import ValidateJob
from idc.data.pipeline import Batch, FolderSource, StageSpec, run_local, with_errors
from idc.data.schema import CAPTION_ORIGINS, pair_arrow_schema
from idc.data.store import DatasetFolder, Manifest, fingerprint, read_schema
from idc.data.validation.report import DATA_SET_FOLDER
from idc.data.validation.run import CLEANED, ValidationFindings

_VERSION = 1
"""Version of the rule: to be raised if it would leave out other pairs."""


def clean_path(job: ValidateJob) -> str:
    """The folder of the clean variant: the folder's name with ``-clean`` appended."""
    return f"{job.pairs.rstrip('/')}-clean"


def write_clean(
    job: ValidateJob, findings: ValidationFindings, *, overwrite: bool = False, progress: bool = True
) -> Manifest:
    """Write the clean variant of the folder ``job.pairs``; if it is complete already, nothing happens.

    Args:
        findings: the result of :func:`idc.data.validation.run.validate` for the same job.

    Raises:
        ValueError: ``job.pairs`` is not a data set folder, or the target folder holds something else.
    """
    out, pairs = files.locate(clean_path(job)), files.locate(job.pairs)
    if findings.result.format != DATA_SET_FOLDER:
        raise ValueError(f"{job.pairs} is not a data set folder; import it first, then make its clean variant")
    source = FolderSource(pairs, chunk_size=job.chunk_size, kind="pairs")
    official = source.manifest
    left_out = Counter(reason.partition(":")[0] for reason in findings.left_out.values())
    what = {
        "of": job.pairs,
        "fingerprint": official.fingerprint,
        "left_out": dict(sorted(left_out.items())),
    }
    note = f"clean variant of {job.pairs}: {_spelled(left_out)} left out; the pairs are listed in rejects-*.parquet"
    origins = bool(official.parts) and CAPTION_ORIGINS in read_schema(pairs).names
    folder = DatasetFolder.open_for_build(
        out,
        kind="pairs",
        schema=pair_arrow_schema(origins=origins),
        fingerprint=fingerprint("clean", _VERSION, official.fingerprint, sorted(CLEANED), job.chunk_size),
        config=official.config,
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra={**official.extra, "clean": what, "notes": [*official.extra.get("notes", []), note]},
    )
    stage = StageSpec(LeaveOut, {"reasons": findings.left_out})
    return run_local(folder, source, [stage], progress=progress, max_reject_share=1.0, name="clean pairs")


class LeaveOut:
    """Stage: sets the reason to leave a pair out as its error."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        errors = [error or self.reasons.get(name) for name, error in zip(batch["pair_id"], batch["error"], strict=True)]
        return {**batch, "error": errors}


def _spelled(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count} for a {code}" for code, count in sorted(left_out.items())) or "nothing"
