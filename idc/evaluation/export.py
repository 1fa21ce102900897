"""Folders of pairs as tasks of evaluation harnesses, each written by a module of its own that imports none of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.data.manifest import complete_manifest, missing_pairs
from idc.data.stored_rows import iter_rows
from idc.util.option_values import DiskPath

_COLUMNS = ["pair_id", "before", "after", "captions", "change_type", "source", "meta"]


class ExportJob(ConfigModel):
    """Write a split of a folder of pairs as a task of an evaluation harness."""

    pairs: str = Field(min_length=1)
    """Folder of pairs with images and captions. Path or URI."""
    to: Literal["lmms_eval", "vlmevalkit"]
    """The harness."""
    out: DiskPath = Field(min_length=1)
    """Folder for the task: of lmms-eval what `--include_path` takes, of VLMEvalKit its `LMUData`."""
    name: str = Field("idc", pattern=r"^[A-Za-z0-9_]+$")
    """Name of the task."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Split of the pairs."""
    max_pairs: int | None = Field(None, ge=1)
    """Only the first this many pairs with captions; all of them if not given."""
    prompt: str = Field(
        "The first image shows a scene before, the second one after. What changed between the two images? "
        "Answer in one sentence.",
        min_length=1,
    )
    """The question, which follows the two images."""

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")


def exported_rows(job: ExportJob) -> Iterator[dict[str, Any]]:
    """The pairs of the split that have captions, with the columns of the stored format.

    Raises:
        ValueError: the folder has no images.
    """
    complete_manifest(job.pairs, "pairs").need_images(job.pairs)
    split = None if job.split == "all" else job.split
    yield from islice((row for row in iter_rows(job.pairs, _COLUMNS, split) if row["captions"]), job.max_pairs)


def run_export(job: ExportJob) -> str:
    """Write the task. Returns the harness's command, and what scores its predictions.

    Raises:
        ValueError: the split has no pair with a caption.
    """
    task = (Path(job.out), job.name, job.prompt, exported_rows(job))
    if job.to == "lmms_eval":
        from idc.evaluation.lmms_eval_task import write_lmms_eval_task

        number = write_lmms_eval_task(*task)
        commands = [f"lmms-eval --model MODEL --tasks {job.name} --include_path {job.out} --batch_size 1"]
    else:
        from idc.evaluation.vlmevalkit_task import write_vlmevalkit_task

        number = write_vlmevalkit_task(*task)
        score = f"python jobs/evaluate.py predictions=outputs/MODEL/MODEL_{job.name}.json pairs={job.pairs} out=OUT"
        score += "" if job.split == "test" else f" split={job.split} nearest_train_pairs=0"
        score += "" if job.max_pairs is None else f" max_pairs={job.max_pairs}"
        run = f"LMUData={job.out} PRED_FORMAT=json python run.py --data {job.name} --model MODEL --mode infer"
        commands = [run, score]
    if not number:
        raise ValueError(f"{job.pairs}: split {job.split!r} has no pair with a caption")
    return "\n".join([f"{number} pairs in {job.out}", *commands])
