"""The describe job: a describer's sentence for every pair, as a folder of pairs.

With the oracle it is a data job like others. With a model, all questions are asked first
(:mod:`idc.mining.descriptions.asking`), and then the folder is written from the log of answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from idc.data.pipeline import Batch, FolderSource, Runner, StageSpec, good_rows, run_local, with_errors
from idc.data.schema import CAPTION_ORIGINS, PAIR_SCHEMA_VERSION, pair_arrow_schema
from idc.data.store import DatasetFolder, Manifest, fingerprint
from idc.endpoint.answer_log import AnswerLog
from idc.mining.descriptions.asking import accepted, answer_key_inputs, answers_to, ask_for_descriptions
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.instructions import ImageCaptions, instruction_of, read_image_captions
from idc.mining.descriptions.oracle import describe_by_oracle

VERSION = 1
"""Part of the folder's fingerprint; to be raised when the same settings and answers would give other rows."""

ANSWERS = "answers.jsonl"
ORIGIN = "description"
"""Key in a pair's ``meta``: the instruction and the number of the question."""


def describe_pairs(job: DescribeJob, chunks: Runner, overwrite: bool = False) -> Manifest:
    """Describe the pairs and write the folder.

    Args:
        chunks: runs the oracle's chunks: ``run_local``, or ``cluster.session.run_chunks`` with its first arguments.

    Raises:
        ValueError: the input is not a folder of pairs with images, the output holds something else, or too many pairs
            have no description.
        EndpointError: the model does not answer, or its answers are refused; the log holds the answers so far.
    """
    source = FolderSource(job.pairs, chunk_size=job.chunk_size, splits=job.splits, limit=job.max_pairs, kind="pairs")
    captions = read_image_captions(job.image_captions)
    of, settings = source.manifest, _settings(job, captions)
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="pairs",
        schema=pair_arrow_schema(origins=True),
        fingerprint=fingerprint("describe", VERSION, PAIR_SCHEMA_VERSION, settings, source.fingerprint),
        config=job.model_dump(mode="json", include=set(DescribeJob.model_fields)),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra={
            **of.extra,
            "notes": [*of.extra.get("notes", []), f"captions: one description per pair by {origin_of(job)}"],
            "descriptions": {"of": of.fingerprint, "describer": job.describer, "prompt": job.prompt},
        },
    )
    if folder.complete:
        return folder.manifest
    if job.describer == "oracle":
        stage = StageSpec(Describe, {"describe": partial(_from_scene, job)}, concurrency=job.workers)
        return chunks(folder, source, [stage], max_reject_share=job.max_reject_share, name="pairs")
    log = AnswerLog(log_path(job))
    rejected = ask_for_descriptions(job, source, captions, log)
    stage = StageSpec(Describe, {"describe": partial(_from_log, job, source, captions, log, rejected)})
    return run_local(folder, source, [stage], max_reject_share=job.max_reject_share, name="writing")


def log_path(job: DescribeJob) -> Path:
    """The file of the answers."""
    return Path(job.log) if job.log is not None else Path(job.out) / ANSWERS


def origin_of(job: DescribeJob) -> str:
    """Which describer, in words: the source of the captions."""
    if job.describer == "oracle":
        return f"oracle of rendered scenes, noise {job.oracle.noise:g} (seed {job.oracle.seed})"
    return f"{job.endpoint.model}, {job.prompt} prompt"


def _settings(job: DescribeJob, captions: Mapping[str, ImageCaptions]) -> list[Any]:
    if job.describer == "oracle":
        return ["oracle", job.oracle.model_dump(mode="json")]
    quoted = fingerprint(sorted(captions.items())) if captions else None
    return [*answer_key_inputs(job), job.asks, quoted]


Describer = Callable[[Mapping[str, Any]], tuple[str, str, dict[str, Any]]]
"""Of a row the caption, its source, and more ``meta``; raises ValueError with the reason of a reject."""


class Describe:
    """Stage: replaces the captions of the rows by their description."""

    def __init__(self, describe: Describer) -> None:
        self.describe = describe

    def __call__(self, batch: Batch) -> Batch:
        batch = {name: list(column) for name, column in with_errors(batch).items()}
        batch[CAPTION_ORIGINS] = [None] * len(batch["pair_id"])
        for i in good_rows(batch):
            try:
                caption, source, more = self.describe({name: column[i] for name, column in batch.items()})
            except ValueError as error:
                batch["error"][i] = str(error)
                continue
            batch["captions"][i] = [caption]
            batch[CAPTION_ORIGINS][i] = [{"source": source, "confidence": None}]
            batch["meta"][i] = json.dumps({**json.loads(batch["meta"][i] or "{}"), **more}, sort_keys=True)
        return batch


def _from_scene(job: DescribeJob, row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    description = describe_by_oracle(row["pair_id"], json.loads(row["meta"] or "{}"), job.oracle)
    return description.sentence(), origin_of(job), {}


def _from_log(
    job: DescribeJob, source: FolderSource, captions: Mapping[str, ImageCaptions], log: AnswerLog,
    rejected: Mapping[str, str], row: Mapping[str, Any],
) -> tuple[str, str, dict[str, Any]]:  # fmt: skip
    reason = None
    for number, record in enumerate(answers_to(job, source, captions, log, row["pair_id"]), 1):
        try:
            caption = accepted(job, record)
        except ValueError as error:
            reason = str(error)
            continue
        kind = instruction_of(job, row) if job.prompt == "structured" else "conventional"
        return caption, f"{record['model']}, {job.prompt} prompt", {ORIGIN: {"instruction": kind, "question": number}}
    raise ValueError(rejected.get(row["pair_id"]) or reason or "no answer")
