"""ChangeIMTI as a folder of instructions: one row per sample, the rows of a pair after one another.

A sample that cannot be made is a reject with its reason, so that rows and rejects together are always the samples that
the pairs stand for; a pair whose flag, images or mask are of no use has none. Codes: ``no flag``, ``no mask``,
``no caption``, ``bad mask``, ``unequal sizes``, the codes of damaged images, ``bad row``, and with ``clean``
``contradiction``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import cv2

from idc.changeimti.config import MASK_TASKS, BuildChangeImtiJob
from idc.changeimti.questions import LabelledPair, SampleName, sample_names, sample_turns
from idc.data.change_masks import ChangeRegion, class_masks, find_regions
from idc.data.images import ImageError, decode_image, image_size
from idc.data.pipeline import Batch, FolderSource, StageSpec, num_rows
from idc.data.schema import INSTRUCTION_SCHEMA_VERSION, Instruction, instruction_arrow_schema
from idc.data.store import DatasetFolder, fingerprint
from idc.data.validation.checks import is_changed

Read = TypeVar("Read")

_VERSION = 1
"""Part of the folder's fingerprint; to be raised if the same pairs and settings would give other rows."""
_COLUMNS = ["pair_id", "before", "after", "captions", "change_type", "split", "mask", "source", "meta"]
_ROW_INDEPENDENT_SETTINGS = {"pairs", "out", "workers", "max_reject_share"}
"""Settings that do not change a row; the pairs count by their own fingerprint."""


def open_changeimti(
    job: BuildChangeImtiJob, overwrite: bool = False
) -> tuple[DatasetFolder, FolderSource, list[StageSpec]]:
    """The folder, source and stage, for :func:`idc.data.pipeline.run_local` or its counterpart on Ray.

    Raises:
        ValueError: the pairs cannot be read or have no images, or ``job.out`` holds something else.
    """
    source = FolderSource(
        job.pairs, chunk_size=job.chunk_size, columns=_COLUMNS, splits=job.splits, limit=job.max_pairs, kind="pairs"
    )
    fields = set(BuildChangeImtiJob.model_fields)
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="instructions",
        schema=instruction_arrow_schema(),
        fingerprint=fingerprint(
            "changeimti",
            _VERSION,
            INSTRUCTION_SCHEMA_VERSION,
            job.model_dump(mode="json", include=fields - _ROW_INDEPENDENT_SETTINGS),
            source.fingerprint,
        ),
        config=job.model_dump(mode="json", include=fields),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra={"changeimti": {"of": source.manifest.fingerprint}},
    )
    return folder, source, [StageSpec(MakeInstructions, {"job": job}, concurrency=job.workers)]


class _Unusable(ValueError):
    """Why a pair has no samples; the text begins with the code of a reject."""


class MakeInstructions:
    """Stage: a batch of pairs to a batch of their samples, the columns of an instruction and ``error``."""

    def __init__(self, job: BuildChangeImtiJob) -> None:
        cv2.setNumThreads(1)  # its threads cost more than they save on masks of this size
        self.job = job

    def __call__(self, batch: Batch) -> Batch:
        rows: list[dict[str, Any]] = []
        for i in range(num_rows(batch)):
            rows += self._samples({name: column[i] for name, column in batch.items()})
        return {name: [row.get(name) for row in rows] for name in [*instruction_arrow_schema().names, "error"]}

    def _samples(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows of a pair's samples, also of those that cannot be made, with the reason."""
        changed, at = is_changed(row["change_type"], json.loads(row["meta"] or "{}")), row["source"] or row["pair_id"]
        names = list(sample_names(self.job.tasks, 1 if changed is False else max(1, len(row["captions"]))))
        try:
            pair = self._labelled(row, changed, at)
        except _Unusable as error:
            return [_reject(row, name, error) for name in names]
        meta: dict[str, Any] = {"changeflag": int(pair.changed)}
        if pair.regions is not None:
            meta["regions"] = {name: [region.to_dict() for region in regions] for name, regions in pair.regions.items()}
        if pair.contradiction is not None:
            meta["contradiction"] = pair.contradiction
        return [self._sample(row, name, pair, meta, at) for name in names]

    def _labelled(self, row: Mapping[str, Any], changed: bool | None, at: str) -> LabelledPair:
        if changed is None:
            raise _Unusable(f"no flag: {at} has neither meta.changeflag nor a change type; add one and import again")
        sizes = [_checked(image_size, row[name], f"{name} of {at}") for name in ("before", "after")]
        if sizes[0] != sizes[1]:
            raise _Unusable(
                f"unequal sizes: {at}, before is {_spelled(sizes[0])}, after {_spelled(sizes[1])}; cut both to the "
                "same ground and import again"
            )
        regions = self._regions(row, at, sizes[0]) if self.job.clean or MASK_TASKS & set(self.job.tasks) else None
        pair = LabelledPair(row["pair_id"], changed, row["captions"], regions)
        if self.job.clean and pair.contradiction is not None:
            raise _Unusable(f"contradiction: {at} is {pair.contradiction}")
        return pair

    def _regions(self, row: Mapping[str, Any], at: str, size: tuple[int, int]) -> dict[str, list[ChangeRegion]]:
        label = f"{row['split']}/label/{row['pair_id']}.png"  # as LEVIR-MCI names it
        if row["mask"] is None:
            raise _Unusable(
                f"no mask: {at}, {label} is missing; import LEVIR-MCI, which has it, or build tasks=[caption,binary] "
                "alone"
            )
        pixels = _checked(decode_image, row["mask"], f"{label} of {at}")
        if pixels.shape[:2] != size:
            raise _Unusable(
                f"unequal sizes: {label} of {at} is {_spelled(pixels.shape[:2])}, the images are {_spelled(size)}; "
                "export the label at their size, without resampling, and import again"
            )
        try:
            masks = class_masks(pixels)
        except ValueError as error:
            raise _Unusable(f"bad mask: {label} of {at} has {error}") from None
        return {name: find_regions(mask, self.job.regions.as_published) for name, mask in masks.items()}

    def _sample(
        self, row: Mapping[str, Any], name: SampleName, pair: LabelledPair, meta: Mapping[str, Any], at: str
    ) -> dict[str, Any]:
        if name.number is not None and not pair.texts:
            return _reject(row, name, f"no caption: {at} is changed and has none; add one, or leave the task out")
        try:
            return Instruction(
                row_id=_row_id(row, name),
                images=(row["before"], row["after"]),
                turns=tuple(sample_turns(name, pair, self.job)),
                split="train" if self.job.val_as_train and row["split"] == "val" else row["split"],
                of_pair=row["pair_id"],
                source=row["source"],
                meta={**meta, **({} if name.about is None else {"about": name.about})},
            ).to_row() | {"error": None}
        except ValueError as error:
            return _reject(row, name, f"bad row: {error}")


def _checked(read: Callable[[bytes], Read], data: bytes, what: str) -> Read:
    try:
        return read(data)
    except ImageError as error:
        detail = f" ({error.detail})" if error.detail else ""
        raise _Unusable(f"{error.code}: {what}{detail}; copy the file again and import again") from None


def _spelled(size: tuple[int, ...]) -> str:
    return f"{size[1]}x{size[0]}"


def _row_id(row: Mapping[str, Any], name: SampleName) -> str:
    return f"{row['pair_id']}/{name}"


def _reject(row: Mapping[str, Any], name: SampleName, error: object) -> dict[str, Any]:
    return {"row_id": _row_id(row, name), "error": str(error)}
