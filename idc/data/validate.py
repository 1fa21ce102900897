"""Is a data set fit for training? Counts, unreadable files, duplicates, leaks between splits, captions."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyarrow import fs
from pydantic import BaseModel
from tqdm import tqdm

from idc.data import files
from idc.data.config import ImportConfig, ValidateJob
from idc.data.importer import guess_format, load_stage, open_reader
from idc.data.pipeline import Batch, FolderSource, Source, good_rows, run_stages
from idc.data.store import MANIFEST
from idc.data.text import words

EXAMPLES = 10
"""Examples kept of each kind of problem."""


class Numbers(BaseModel):
    """Smallest, mean and largest of some counts."""

    least: int = 0
    mean: float = 0.0
    most: int = 0


class Problem(BaseModel):
    """One kind of fault; ``examples`` are ``"pair id: detail"``."""

    count: int
    examples: list[str]


class Leak(BaseModel):
    """An image that pairs of two splits share."""

    pairs: list[str]
    splits: list[str]


class Validation(BaseModel):
    """What :func:`validate` found. ``ok`` is false if pairs are unusable, doubled, or leak between splits."""

    pairs: str
    format: str
    ok: bool
    num_pairs: int
    usable_pairs: int
    by_split_and_type: dict[str, dict[str, int]]
    problems: dict[str, Problem]
    num_leaks: int
    leaks: list[Leak]
    without_captions: int
    num_captions: int
    captions_per_pair: Numbers
    words_per_caption: Numbers
    vocabulary_size: int
    words_seen_once: int
    different_sizes: int
    """Pairs whose before and after have different sizes; they are used, resized."""
    image_sizes: dict[str, int]
    rejected_at_import: dict[str, int]
    notes: list[str]


class _Spread:
    def __init__(self) -> None:
        self.count = self.total = self.most = 0
        self.least: int | None = None

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self.least = value if self.least is None else min(self.least, value)

    def numbers(self) -> Numbers:
        return Numbers(least=self.least or 0, mean=round(self.total / max(1, self.count), 2), most=self.most)


def validate(job: ValidateJob, *, progress: bool = True, filesystem: fs.FileSystem | None = None) -> Validation:
    """Read every pair once and look at everything; memory is a few bytes an image (hashes), not the images.

    Raises:
        ValueError: there is nothing to read at ``job.pairs``.
    """
    where, inner = files.resolve(job.pairs, filesystem)
    built = files.exists(where, f"{inner.rstrip('/')}/{MANIFEST}")
    rejected: dict[str, int] = {}
    source: Source
    if built:
        format = "data set folder"
        folder = FolderSource(job.pairs, chunk_size=job.chunk_size, kind="pairs", filesystem=filesystem)
        source, notes, rejected = folder, folder.manifest.extra.get("notes", []), folder.manifest.reject_reasons
        reader, images = files.Reader(where, inner), folder.manifest.has_images
    else:
        format = guess_format(job.pairs, filesystem) if job.format == "auto" else job.format
        opened = open_reader(format, job.pairs, job, filesystem)
        source, notes, reader = opened, opened.extra.get("notes", []), opened.reader
        images = opened.extra.get("images", True)

    collected = _Collector()
    for batch in tqdm(
        _loaded(job, source, reader, images), total=source.num_chunks, unit="chunk", disable=not progress
    ):
        collected.add(batch)
    return collected.result(job.pairs, format, rejected, notes)


def _loaded(config: ImportConfig, source: Source, reader: files.Reader, images: bool) -> Iterator[Batch]:
    stage = load_stage(config, reader, images).build()
    for chunk in range(source.num_chunks):
        yield run_stages([stage], source.read(chunk))


class _Collector:
    def __init__(self) -> None:
        self.num_pairs = self.usable = self.without = self.different = self.num_leaks = 0
        self.table: dict[str, Counter[str]] = {}
        self.problems: dict[str, Problem] = {}
        self.ids: set[bytes] = set()
        self.images: dict[bytes, tuple[str, str]] = {}
        self.leaks: list[Leak] = []
        self.sizes: Counter[str] = Counter()
        self.vocabulary: Counter[str] = Counter()
        self.per_pair, self.per_caption = _Spread(), _Spread()

    def add(self, batch: Batch) -> None:
        good = set(good_rows(batch))
        for i, error in enumerate(batch["error"]):
            self.num_pairs += 1
            pair_id = batch["pair_id"][i]
            key = _hash(pair_id.encode())
            if i not in good:
                code, _, detail = error.partition(": ")
                self._problem(code, f"{pair_id}: {detail}")
            elif key in self.ids:
                self._problem("duplicate pair id", f"{pair_id}: stands more than once")
            else:
                self._good({name: batch[name][i] for name in batch})
            self.ids.add(key)

    def _problem(self, code: str, example: str) -> None:
        problem = self.problems.setdefault(code, Problem(count=0, examples=[]))
        problem.count += 1
        if len(problem.examples) < EXAMPLES:
            problem.examples.append(example)

    def _good(self, row: dict[str, Any]) -> None:
        self.usable += 1
        self.table.setdefault(row["split"], Counter())[row["change_type"] or "unknown"] += 1
        self.per_pair.add(len(row["captions"]))
        self.without += not row["captions"]
        for caption in row["captions"]:
            found = words(caption)
            self.per_caption.add(len(found))
            self.vocabulary.update(found)
        if row["before_size"] is None:  # annotations alone
            return
        self.different += row["before_size"] != row["after_size"]
        for role in ("before", "after"):
            height, width = row[f"{role}_size"]
            self.sizes[f"{width}x{height}"] += 1
        for key in {_hash(row["before"]), _hash(row["after"])}:
            split, other = self.images.setdefault(key, (row["split"], row["pair_id"]))
            if split != row["split"]:
                self.num_leaks += 1
                if len(self.leaks) < EXAMPLES:
                    self.leaks.append(Leak(pairs=[other, row["pair_id"]], splits=[split, row["split"]]))

    def result(self, pairs: str, format: str, rejected: dict[str, int], notes: list[str]) -> Validation:
        return Validation(
            pairs=pairs,
            format=format,
            ok=not self.problems and not self.num_leaks and self.usable > 0,
            num_pairs=self.num_pairs,
            usable_pairs=self.usable,
            by_split_and_type={split: dict(sorted(types.items())) for split, types in sorted(self.table.items())},
            problems=dict(sorted(self.problems.items())),
            num_leaks=self.num_leaks,
            leaks=self.leaks,
            without_captions=self.without,
            num_captions=self.per_caption.count,
            captions_per_pair=self.per_pair.numbers(),
            words_per_caption=self.per_caption.numbers(),
            vocabulary_size=len(self.vocabulary),
            words_seen_once=sum(count == 1 for count in self.vocabulary.values()),
            different_sizes=self.different,
            image_sizes=dict(self.sizes.most_common(EXAMPLES)),
            rejected_at_import=rejected,
            notes=list(notes),
        )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()


def report_path(job: ValidateJob, filesystem: fs.FileSystem | None = None) -> str:
    """Where the result goes: ``job.report``, else beside the pairs."""
    if job.report is not None:
        return job.report
    where, inner = files.resolve(job.pairs, filesystem)
    if where.get_file_info(inner).type == fs.FileType.File:
        return f"{job.pairs}.validation.json"
    return files.join(job.pairs, "") + "validation.json"


def write_report(result: Validation, path: str, filesystem: fs.FileSystem | None = None) -> None:
    """Write the result as JSON."""
    where, inner = files.resolve(path, filesystem)
    files.write_atomic(where, inner, (json.dumps(result.model_dump(), indent=1, ensure_ascii=False) + "\n").encode())


def table(result: Validation) -> str:
    """The result for a terminal."""
    types = sorted({name for row in result.by_split_and_type.values() for name in row})
    lines = [f"{result.pairs} ({result.format}): {result.usable_pairs} of {result.num_pairs} pairs are usable", ""]
    if types:
        width = max(7, *(len(name) for name in types))
        lines.append("  ".join(["split ", *(f"{name:>{width}}" for name in [*types, "all"])]))
        for split, row in result.by_split_and_type.items():
            counts = [row.get(name, 0) for name in types]
            lines.append("  ".join([f"{split:6}", *(f"{count:>{width}}" for count in [*counts, sum(counts)])]))
        lines.append("")
    per_pair, per_caption = result.captions_per_pair, result.words_per_caption
    lines += [
        f"captions      {result.num_captions}; a pair {per_pair.least} to {per_pair.most}, mean {per_pair.mean}",
        f"words         a caption {per_caption.least} to {per_caption.most}, mean {per_caption.mean}; "
        f"{result.vocabulary_size} different, {result.words_seen_once} seen once",
        f"no caption    {result.without_captions} pairs",
        "image sizes   " + (", ".join(f"{s} ({n})" for s, n in result.image_sizes.items()) or "no images"),
    ]
    if result.different_sizes:
        lines.append(f"unequal sizes {result.different_sizes} pairs")
    if result.rejected_at_import:
        what = ", ".join(f"{count} {code}" for code, count in result.rejected_at_import.items())
        lines.append(f"left out when it was imported: {what}")
    lines += [f"note: {note}" for note in result.notes]
    for code, problem in result.problems.items():
        lines.append(f"ERROR {code}: {problem.count}")
        lines += [f"      {example}" for example in problem.examples]
    if result.num_leaks:
        lines.append(f"ERROR leak between splits: {result.num_leaks} images")
        lines += [f"      {' and '.join(leak.pairs)} share one ({' and '.join(leak.splits)})" for leak in result.leaks]
    lines.append("ok" if result.ok else "NOT fit for training as it is")
    return "\n".join(lines)
