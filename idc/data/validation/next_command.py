"""The command to run next, printed at the end of the import and the check of a data set."""

from __future__ import annotations

from idc.config import arguments
from idc.data.config import ImportConfig
from idc.data.validation.clean import clean_path
from idc.data.validation.report import DATA_SET_FOLDER
from idc.data.validation.run import Findings

_CLEANED = {"leak between splits", "contradiction"}
"""Errors whose pairs a clean variant leaves out."""


def after_import(pairs: str) -> str:
    """The check of the imported folder."""
    return _command("validate", pairs=pairs)


def after_validation(found: Findings) -> str:
    """The import, if it is not a data set folder yet; else a clean variant, or the use of the folder."""
    job, result = found.job, found.result
    if result.format != DATA_SET_FOLDER:
        given = job.model_dump(exclude_defaults=True, include={"format", *ImportConfig.model_fields})
        return _command("import_dataset", source=job.pairs, **given, out="data/mine/pairs")
    if result.errors and job.clean:
        return _command("validate", pairs=clean_path(job))
    if result.errors:
        return _command("validate", pairs=job.pairs) + " --clean" * bool(_CLEANED & result.errors.keys())
    if not result.images:
        return _command("evaluate", predictions="mine.jsonl", pairs=job.pairs, out="runs/mine/evaluation")
    tokenizer = _command("train_tokenizer", name="mine-tokenizer", pairs=job.pairs)
    return f"{tokenizer} --config jobs/configs/vision/tokenizer_demo.yaml"


def _command(job: str, **settings: object) -> str:
    return " ".join(["python", f"jobs/{job}.py", *arguments(settings)])
