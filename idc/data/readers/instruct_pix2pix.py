"""InstructPix2Pix, clip-filtered (Brooks et al. 2023): photographs generated twice, and the instruction between them.

    seeds.json                          [["0000001", ["1234", "5678"]], ...]    name of an example, seeds that passed
    0000001/prompt.json                 {"input": caption, "edit": instruction, "output": caption}
    0000001/1234_0.jpg  1234_1.jpg      before and after of a seed

Every seed is a pair, ``0000001_1234``; its caption is the instruction; the captions of both images are in ``meta``.
Splits are those of the official code: the first 90 % of the examples in ``seeds.json`` are train, the next 5 % val.

313,010 examples lie in 436 GB, so a prompt is read when its chunk is; the seeds of an example stay in one chunk.
"""

from __future__ import annotations

import math
from typing import Any

from idc.data import files
from idc.data.config import ImportConfig
from idc.data.object_store import StorageError
from idc.data.pipeline import Batch
from idc.data.readers.annotations import Annotations, Row
from idc.data.readers.base import access, rows_to_batch
from idc.data.store import fingerprint
from idc.data.textfiles import JsonError, decode_text, parse_json

_SEEDS = "seeds.json"
_LOOKED_AT = 100
"""The images are taken to be absent if none of the first examples, this many, has one."""


class InstructPix2PixReader:
    """Reads the official layout; see the module's text.

    Raises:
        ValueError: ``seeds.json`` is missing, or nothing in it can be read.
    """

    def __init__(self, folder: files.Location, config: ImportConfig) -> None:
        annotations = Annotations(folder, access("instruct_pix2pix", config))
        self.reader = annotations.reader
        try:
            entries = parse_json(annotations.text(annotations.need(_SEEDS)), keep_surrogates=True)
        except JsonError as exc:
            raise ValueError(f"{folder}/{_SEEDS}: {exc}") from exc
        if not isinstance(entries, list):
            raise ValueError(f"{folder}/{_SEEDS} has a {type(entries).__name__}, not a list of examples and seeds")
        ends = math.floor(0.9 * len(entries)), math.floor(0.95 * len(entries))
        self._examples: list[tuple[str, str, list[str]]] = []
        seen: set[str] = set()
        for number, entry in enumerate(entries):
            position = f"{_SEEDS}:{number}"
            example = _example(entry)
            if example is None:
                annotations.reject(position, f"bad row: {str(entry)[:80]!r} is not [name, [seed, ...]]")
            elif example[0] in seen:
                annotations.reject(position, f"duplicate pair id: the example {example[0]} occurs twice")
            else:
                seen.add(example[0])
                split = "train" if number < ends[0] else "val" if number < ends[1] else "test"
                self._examples.append((example[0], split, example[1]))
        if not self._examples:
            raise ValueError(f"{folder}/{_SEEDS} names no example that can be read")
        self._rejects = annotations.rejects
        self._starts = [0]
        pairs = 0
        for end, (_, _, seeds) in enumerate(self._examples, start=1):
            pairs += len(seeds)
            if pairs >= config.chunk_size or end == len(self._examples):
                self._starts.append(end)
                pairs = 0
        self.extra: dict[str, Any] = {"notes": []}
        if config.images:
            self.extra["images"] = any(
                _there(self.reader, f"{name}/{seeds[0]}_0.jpg")
                for name, _, seeds in self._examples[:_LOOKED_AT]
                if seeds
            )
        self.fingerprint = fingerprint("instruct_pix2pix", config.chunk_size, annotations.hash.hexdigest())

    @property
    def num_chunks(self) -> int:
        return len(self._starts) - 1

    def read(self, chunk_id: int) -> Batch:
        rows: list[Row] = list(self._rejects) if chunk_id == 0 else []
        for name, split, seeds in self._examples[self._starts[chunk_id] : self._starts[chunk_id + 1]]:
            rows += self._pairs(name, split, seeds)
        return rows_to_batch(rows)

    def _pairs(self, name: str, split: str, seeds: list[str]) -> list[Row]:
        prompt, error = self._prompt(name)
        return [
            {
                "pair_id": f"{name}_{seed}",
                "before": f"{name}/{seed}_0.jpg",
                "after": f"{name}/{seed}_1.jpg",
                "captions": [prompt["edit"]] if not error else [],
                "split": split,
                "source": f"InstructPix2Pix/{name}/{seed}",
                "meta": {"example": name, "seed": seed, "input": prompt.get("input"), "output": prompt.get("output")},
                "error": error or (f"duplicate pair id: the seed {seed} occurs twice" if seed in seeds[:n] else None),
            }
            for n, seed in enumerate(seeds)
        ]

    def _prompt(self, name: str) -> tuple[dict[str, Any], str | None]:
        file = f"{name}/prompt.json"
        try:
            prompt = parse_json(decode_text(self.reader.read(file), "surrogateescape"), keep_surrogates=True)
        except StorageError:
            raise
        except FileNotFoundError:
            return {}, f"missing file: {file}"
        except files.OutsideSource as exc:
            return {}, f"outside the source: {file}, {exc}"
        except OSError as exc:
            return {}, f"unreadable file: {file}, {exc}"
        except ValueError as exc:
            return {}, f"bad file: {file}, {exc}"
        if not isinstance(prompt, dict) or not isinstance(prompt.get("edit"), str):
            return {}, f"bad row: {file} has no text under 'edit'"
        return prompt, None


def _there(reader: files.Reader, name: str) -> bool:
    try:
        return reader.exists(name)
    except files.OutsideSource:  # its row is rejected
        return False


def _example(entry: Any) -> tuple[str, list[str]] | None:
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], list)):
        return None
    name, seeds = entry
    if not name or not all(isinstance(seed, str | int) and not isinstance(seed, bool) for seed in seeds):
        return None
    return name, [str(seed) for seed in seeds]
