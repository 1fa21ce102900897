"""WebDataset shards: tar files whose members with one key are one sample.

    train-000000.tar    0001.before.png  0001.after.png  0001.json  0002.before.jpg  0002.after.jpg  0002.txt ...

The key of a member is its name up to the first dot of the file's name; the rest identifies its content: ``before``,
``after`` and ``mask`` with the suffix of an image (other names are settings), ``txt`` with one caption per line, and
``json`` with ``captions`` or ``caption``, and perhaps ``change_type``, ``split``, ``source``; other entries go into
``meta``. A caption in both ``txt`` and ``json`` is kept once. The split is that of the JSON, else the one with
which the shard's name begins (``train-000000.tar``), else val and test get the configured shares.

A shard's headers are read once; its members are then read by position, so shards must not be compressed.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from idc.data import files
from idc.data.config import ImportConfig
from idc.data.images import IMAGE_SUFFIXES
from idc.data.pipeline import Batch
from idc.data.readers.base import SPLIT_NAMES, access, rows_to_batch, unread
from idc.data.readers.own import record_captions
from idc.data.store import fingerprint
from idc.data.textfiles import decode_text, parse_json, split_lines

_COLUMNS = ("captions", "caption", "change_type", "split", "source")


class WebdatasetReader:
    """Reads a shard, or all ``*.tar`` of a folder; see the module's text.

    Raises:
        ValueError: there are none, or they hold no samples.
    """

    def __init__(self, source: files.Location, config: ImportConfig) -> None:
        self._config = config.webdataset
        others: list[str] = []
        single = source.is_file()
        if single:
            shards, folder = [source.name], source.parent
        else:
            names, folder = [file.base_name for file in source.list_files()], source
            shards = [name for name in names if name.endswith(".tar")]
            others = [name for name in names if not name.endswith(".tar")]
        if not shards:
            raise ValueError(f"{source} has no shards (*.tar); decompress compressed shards first")
        self.reader = files.Reader(folder, access("webdataset", config))
        self._chunks: list[tuple[str, list[tuple[str, dict[str, tuple[int, int]]]]]] = []
        self._rejects: list[dict[str, Any]] = []
        hashed = hashlib.sha256()
        seen: set[str] = set()
        for shard in shards:
            if not single:
                try:
                    self.reader.locate(shard)
                except files.OutsideSource as exc:
                    self._rejects.append({"pair_id": shard, "error": f"outside the source: {exc}"})
                    continue
            samples: dict[str, dict[str, tuple[int, int]]] = {}
            repeated: dict[str, str] = {}
            for name, span in self._members(shard):
                hashed.update(f"/{shard} {name} {span}\n".encode("utf-8", "surrogateescape"))
                key, ending = _key_and_ending(name)
                if ending in samples.setdefault(key, {}):
                    repeated.setdefault(key, name)
                samples[key][ending] = span
            for key, name in repeated.items():
                del samples[key]
                seen.add(key)
                self._rejects.append(
                    {"pair_id": f"{shard}:{key}", "error": f"duplicate pair id: the shard has {name} twice"}
                )
            for key in [key for key in samples if key in seen]:
                del samples[key]
                self._rejects.append(
                    {"pair_id": f"{shard}:{key}", "error": f"duplicate pair id: {key} is in another shard"}
                )
            seen |= samples.keys()
            listed = list(samples.items())
            size = config.chunk_size
            self._chunks += [(shard, listed[start : start + size]) for start in range(0, len(listed), size)]
        if not self._chunks:
            raise ValueError(f"{source} has no samples{''.join('; ' + row['error'] for row in self._rejects[:3])}")
        self.extra: dict[str, Any] = {"notes": unread(others, "no uncompressed tar"), "shards": len(shards)}
        self.fingerprint = fingerprint("webdataset", config.chunk_size, self._config.model_dump(), hashed.hexdigest())

    def _members(self, shard: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name and (position, size) of every file in a shard, up to the first damage."""
        with (self.reader.folder / shard).open() as stream:
            size = stream.size()
            try:
                # "r:" refuses a compressed shard, whose members have no position in the file.
                with tarfile.open(fileobj=stream, mode="r:") as tar:
                    for member in tar:
                        if member.isdir():
                            continue
                        if not member.isreg() or member.issparse():
                            position = f"{shard}:{member.name}"
                            self._rejects.append(
                                {"pair_id": position, "error": f"unreadable file: {member.name} is not a plain file"}
                            )
                            continue
                        if member.offset_data + member.size > size:
                            raise tarfile.ReadError(f"it ends within {member.name}")
                        yield member.name, (member.offset_data, member.size)
            except tarfile.TarError as exc:
                self._rejects.append({"pair_id": shard, "error": f"bad file: {shard}, {exc}"})

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        shard, samples = self._chunks[chunk_id]
        rows = list(self._rejects) if chunk_id == 0 else []
        with (self.reader.folder / shard).open() as stream:
            for key, members in samples:
                contents = {}
                for ending, (position, size) in members.items():
                    stream.seek(position)
                    contents[ending] = stream.read(size)
                rows.append(self._row(shard, key, contents))
        return rows_to_batch(rows)

    def _row(self, shard: str, key: str, contents: dict[str, bytes]) -> dict[str, Any]:
        begin = re.match(r"[a-z]+", shard.lower())
        row: dict[str, Any] = {
            "pair_id": key,
            "captions": [],
            "split": begin[0] if begin and begin[0] in SPLIT_NAMES else None,
            "source": f"{shard}:{key}",
            "meta": {},
        }
        for role in ("before", "after", "mask"):
            of_role = [ending for ending in contents if _is(ending, getattr(self._config, role))]
            if len(of_role) > 1:
                return {**row, "error": f"bad row: {' and '.join(sorted(of_role))} are both the {role} of it"}
            row[role] = contents[of_role[0]] if of_role else None
        if absent := [role for role in ("before", "after") if row[role] is None]:
            there = ", ".join(sorted(contents))
            return {**row, "error": f"missing partner: no {' and no '.join(absent)} among {there}"}
        if "txt" in contents:
            row["captions"] = split_lines(decode_text(contents["txt"], "surrogateescape"))
        if "json" in contents:
            try:
                content = parse_json(decode_text(contents["json"], "surrogateescape"), keep_surrogates=True)
            except ValueError as exc:
                return {**row, "error": f"bad row: {key}.json: {exc}"}
            if not isinstance(content, dict):
                return {**row, "error": f"bad row: {key}.json has a {type(content).__name__}, not an object"}
            row["meta"] = {name: value for name, value in content.items() if name not in _COLUMNS}
            row |= {name: content[name] for name in ("change_type", "split", "source") if content.get(name) is not None}
            captions = record_captions(content)
            row["captions"] = [*captions, *(text for text in row["captions"] if text not in captions)]
        return row


def _key_and_ending(name: str) -> tuple[str, str]:
    """``a/0001.before.png`` is the member ``before.png`` of ``a/0001``."""
    folder, slash, file = name.removeprefix("./").rpartition("/")
    key, _, ending = file.partition(".")
    return folder + slash + key, ending.lower()


def _is(ending: str, name: str) -> bool:
    name = name.lower()
    stem, suffix = str(PurePosixPath(ending).with_suffix("")), PurePosixPath(ending).suffix
    return ending == name or (stem == name and suffix in IMAGE_SUFFIXES)
