"""The checks of a data set, pair by pair: counts, errors and warnings."""

from __future__ import annotations

import contextlib
import heapq
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from idc.data.images import decode_image
from idc.data.pipeline import Batch, good_rows
from idc.data.schema import NO_CHANGE, SPLITS
from idc.data.validation.caption_statistics import CaptionCounter
from idc.data.validation.duplicates import SharedImages, digest
from idc.data.validation.near_copies import NearCopies
from idc.data.validation.published import ALL
from idc.data.validation.report import EXAMPLES, Problem

_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


class Checks:
    """Checks chunk after chunk; memory is some thousand bytes per pair.

    Args:
        pictures: number of pairs of each split to choose for display.
    """

    def __init__(self, pictures: int) -> None:
        self.pictures = pictures
        self.num_pairs = self.without = self.different = 0
        self.table: dict[str, Counter[str]] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.captions: dict[str, CaptionCounter] = {}
        self.problems: dict[str, Problem] = {}
        self.warnings: dict[str, Problem] = {}
        self.shared, self.copies = SharedImages(), NearCopies()
        self.ids: set[bytes] = set()
        self.chunks = array("l")
        """The chunk of each pair of ``shared.pairs``."""
        self.sizes: Counter[str] = Counter()
        self.question_types: set[str] = set()
        self.answers: set[str] = set()
        self.masks = False

    def add(self, chunk: int, raw: Batch, batch: Batch) -> None:
        """Check a chunk, given as it was read and after the load stage."""
        good = set(good_rows(batch))
        for i, error in enumerate(batch["error"]):
            self.num_pairs += 1
            pair_id = batch["pair_id"][i]
            key = digest(pair_id)
            if i not in good:
                code, _, detail = error.partition(": ")
                _note(self.problems, code, f"{pair_id}: {detail}")
            elif key in self.ids:
                _note(self.problems, "duplicate pair id", f"{pair_id}: occurs more than once")
            else:
                captions = raw["captions"][i]
                texts = [captions] if isinstance(captions, str) else captions or []
                blank = sum(not text.strip() for text in texts)
                self._good(chunk, {name: batch[name][i] for name in batch}, blank)
            self.ids.add(key)

    def _good(self, chunk: int, row: dict[str, Any], blank: int) -> None:
        pair_id, split, meta = row["pair_id"], row["split"], json.loads(row["meta"])
        self.chunks.append(chunk)
        self.table.setdefault(split, Counter())[row["change_type"] or "unknown"] += 1
        for of in (split, ALL):
            self.captions.setdefault(of, CaptionCounter()).add(row["captions"])
        self.without += not row["captions"]
        if blank:
            _note(self.warnings, "blank caption", f"{pair_id}: {blank} of its captions", blank)
        keys = [_image_key(row, meta, role) for role in ("before", "after")]
        self.shared.add(pair_id, split, keys[0], keys[1])
        for role, key in zip(("before", "after"), keys, strict=True):
            if row[role] and key is not None:
                self.copies.add(pair_id, split, row[f"{role}_look"], key)
        changed = is_changed(row["change_type"], meta)
        if row["before_size"] is not None:
            self.different += row["before_size"] != row["after_size"]
            self.sizes.update(f"{width}x{height}" for height, width in (row["before_size"], row["after_size"]))
        if keys[0] is not None and keys[0] == keys[1]:
            _note(self.warnings, "identical before and after", f"{pair_id}: in {split}")
            if changed:
                self._contradiction(pair_id, "annotated as changed, but before and after are one image")
        if row["mask"] is not None:
            self.masks = True
            self._check_mask(pair_id, split, row["mask"], changed)
        if meta.get("subset") in ("real", "render"):  # OmniDiff
            self._count(f"{meta['subset']}_pairs", split)
        questions = meta.get("questions")
        for question in questions if isinstance(questions, list) else ():
            self._count("questions", split)
            if isinstance(question, dict):
                self.question_types.add(str(question.get("type")))
                if question.get("answer") is not None:  # some parts are published without answers
                    self.answers.add(str(question["answer"]))

    def _check_mask(self, pair_id: str, split: str, mask: bytes, changed: bool | None) -> None:
        share = float((decode_image(mask) > 0).any(axis=2).mean())
        if changed is False and share:
            self._count("unchanged_with_mask", split)
            self._contradiction(pair_id, f"annotated as unchanged, but {share:.2%} of the mask is set")
        elif changed and not share:
            self._count("changed_without_mask", split)
            self._contradiction(pair_id, "annotated as changed, but the mask is empty")

    def _contradiction(self, pair_id: str, text: str) -> None:
        _note(self.problems, "contradiction", f"{pair_id}: {text}")

    def _count(self, name: str, split: str) -> None:
        self.counts.setdefault(name, Counter())[split] += 1

    def sample(self, split: str) -> list[str]:
        """The pairs of a split for display: those with the smallest hashes, whatever their order."""
        names = [name for name, number in self.shared.pairs if SPLITS[number] == split]
        return heapq.nsmallest(self.pictures, names, key=digest)

    def chunks_of(self, names: Iterable[str]) -> dict[int, set[str]]:
        """Chunk -> the named pairs that are in it."""
        wanted, out = set(names), dict[int, set[str]]()
        for (pair_id, _), chunk in zip(self.shared.pairs, self.chunks, strict=True):
            if pair_id in wanted:
                out.setdefault(chunk, set()).add(pair_id)
        return out

    def finish(self) -> None:
        """Add the warnings that need all pairs."""
        for (first, *others), splits in self.shared.duplicate_pairs():
            where = "/".join(dict.fromkeys(splits))
            _note(self.warnings, "same two images", f"{first}: also {', '.join(others)} ({where})", len(others))
        for pair_id, split, other, earlier in self.copies.across_splits():
            _note(
                self.warnings, "near copies", f"{pair_id}: an image in {split} looks like one of {other} in {earlier}"
            )

    def all_counts(self, of_the_reader: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """All counts: name -> split -> number, zero if a split has none."""
        counts = {name: Counter(numbers) for name, numbers in self.counts.items()}
        splits = [split for split in SPLITS if split in self.table]
        for split in splits:
            statistics = self.captions[split].result()
            types = self.table[split]
            numbers = {"pairs": statistics.pairs}
            numbers |= {
                "unchanged_pairs" if kind == NO_CHANGE else f"{kind}_pairs": number
                for kind, number in types.items()
                if kind != "unknown"
            }
            if statistics.captions:
                numbers |= {
                    "captions": statistics.captions,
                    "captions_with_capitals": statistics.captions_with_capitals,
                    "captions_with_punctuation": statistics.captions_with_punctuation,
                }
            for name, number in numbers.items():
                counts.setdefault(name, Counter())[split] = number
        if distinct := self.shared.distinct_pairs():
            counts["distinct_pairs"] = Counter(distinct)
        if self.masks:
            for name in ("unchanged_with_mask", "changed_without_mask"):
                counts.setdefault(name, Counter())
        out = {name: {split: counted[split] for split in splits} for name, counted in counts.items()}
        for split, of_split in of_the_reader.items():
            for name, number in of_split.items():
                out.setdefault(name, {})[split] = number
        if self.question_types:
            out |= {"question_types": {ALL: len(self.question_types)}, "answers": {ALL: len(self.answers)}}
        return out


def _note(problems: dict[str, Problem], code: str, example: str, count: int = 1) -> None:
    problem = problems.setdefault(code, Problem(count=0, examples=[]))
    problem.count += count
    if len(problem.examples) < EXAMPLES:
        problem.examples.append(example)


def _image_key(row: Mapping[str, Any], meta: Mapping[str, Any], role: str) -> bytes | None:
    """Key of an image: its bytes; without images its name in the annotations, if they give one."""
    if row[role]:
        return digest(row[role])
    name = meta.get(role)
    return digest(name) if isinstance(name, str) and name else None


def is_changed(change_type: str | None, meta: Mapping[str, Any]) -> bool | None:
    """The annotated change flag (LEVIR): a number or a word; if there is none that can be read, derived from the change
    type; None if there is neither."""
    flag = str(meta.get("changeflag", "")).strip().lower()
    if flag in _FLAGS:
        return _FLAGS[flag]
    with contextlib.suppress(ValueError):
        return float(flag) != 0
    return None if change_type is None else change_type != NO_CHANGE
