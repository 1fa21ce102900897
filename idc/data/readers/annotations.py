"""Shared parts of the readers of official layouts whose annotations fit into memory.

Such a reader is a function ``read(annotations, config)`` that yields the pairs of an :class:`Annotations` as rows with
some of :data:`idc.data.readers.base.COLUMNS`; ``before``, ``after`` and ``mask`` are file names (or alternatives for
one image) that :class:`AnnotationReader` looks up anywhere below the source, so the folder into which the images were
unpacked does not matter. ``"76.png"`` finds ``images/76.png``; ``"train/A/x.png"`` does not find ``train/B/x.png``.

Damaged parts become rejects with their position (``train.json:12``) and the rest is read: an entry of the wrong type,
one file of several that is not JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from idc.data import files
from idc.data.config import Format, ImportConfig
from idc.data.images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES
from idc.data.pipeline import Batch
from idc.data.readers.base import SPLIT_NAMES, access, outside_rows, rows_to_batch, unread_images
from idc.data.schema import SPLITS
from idc.data.store import fingerprint
from idc.data.textfiles import JsonError, composed, decode_text, parse_json

Row = dict[str, Any]
ReadPairs = Callable[["Annotations", ImportConfig], Iterable[Row]]
"""Yields the pairs; ``rows`` of a pair is the number of annotation rows it was made of (default 1)."""

EMPTY_SENTENCES = "empty_sentences"
"""Key of ``meta``: positions of a pair's empty sentences among all its sentences, if it has any."""


_NOTHING = object()
"""The content of a file that is not JSON."""


class Annotations:
    """The annotation files of one data set.

    Attributes:
        root: the folder of the data set.
        reader: reads the files below it, as far as ``access`` allows.
        rejects: a row with ``error`` for each entry that could not be read; readers add theirs by :meth:`reject`.
        extra: further values for the manifest; readers add to it.
        hash: of everything that was read.
    """

    def __init__(self, root: files.Location, access: files.Access = files.BELOW) -> None:
        if not root.is_folder():
            raise ValueError(f"{root} is not a folder; this format takes the folder of the data set")
        self.root = root
        self.reader = files.Reader(root, access)
        self.rejects: list[Row] = []
        self.extra: dict[str, Any] = {"notes": []}
        self.hash = hashlib.sha256()

    def note(self, text: str) -> None:
        self.extra["notes"].append(text)

    def reject(self, position: str, error: str) -> None:
        """Record an unusable entry; ``error`` begins with a code of :mod:`idc.data.readers.base`.

        Only the first fault of an entry is kept.
        """
        if not self.rejects or self.rejects[-1]["pair_id"] != position:
            self.rejects.append({"pair_id": position, "error": error})

    def find(self, *names: str) -> str | None:
        """The first of these files or folders that exists; a FIFO or a device is none."""
        paths = ((name, self.root / name) for name in names)
        return next((name for name, path in paths if path.is_file() or path.is_folder()), None)

    def need(self, *names: str) -> str:
        """As :meth:`find`.

        Raises:
            ValueError: none of them exists.
        """
        name = self.find(*names)
        if name is None:
            raise ValueError(f"{self.root} has no {' and no '.join(names)}; it does not have the layout of this format")
        return name

    def split_files(self, *folders: str) -> dict[str, str]:
        """The file of every split, ``{"train": "train.json", ...}``, in the first folder that has any.

        Raises:
            ValueError: there are none, or several for one split.
        """
        for folder in folders:
            inside = self.root / folder.rstrip("/") if folder else self.root
            names = [info.base_name for info in inside.list_files()]
            there = {name: SPLIT_NAMES.get(name.removesuffix(".json")) for name in names if name.endswith(".json")}
            by_split: dict[str, str] = {}
            for split in SPLITS:
                of_split = [folder + name for name, of in there.items() if of == split]
                if len(of_split) > 1:
                    raise ValueError(
                        f"{self.root} has several files for {split}: {', '.join(of_split)}; keep one of them"
                    )
                if of_split:
                    by_split[split] = of_split[0]
            if by_split:
                for split in SPLITS:
                    if split not in by_split:
                        self.note(f"no annotations of {split} were found")
                if strangers := sorted(folder + name for name, split in there.items() if split is None):
                    self.note(f"not read, their names are none of a split: {', '.join(strangers)}")
                return by_split
        raise ValueError(
            f"{self.root} has no train.json, val.json or test.json; it does not have the layout of this format"
        )

    def text(self, name: str) -> str:
        """A whole file; bytes that are not UTF-8 are kept as surrogates and rejected where the text is used.

        Raises:
            ValueError: it cannot be read.
        """
        try:
            data = self.reader.read(name)
        except (OSError, files.OutsideSource) as exc:
            raise ValueError(f"{self.root}: {name} cannot be read: {exc}") from exc
        self.hash.update(name.encode("utf-8", "surrogateescape") + hashlib.sha256(data).digest())
        return decode_text(data, "surrogateescape")

    def records(self, name: str, key: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """The objects of a JSON list (the one under ``key`` of an object), each with its position."""
        content = self._json(name)
        content = content.get(key) if key is not None and isinstance(content, dict) else content
        if not isinstance(content, list) and content is not _NOTHING:
            self._bad_file(name, "has no list" + ("" if key is None else f" {key!r}"))
        for number, record in enumerate(content if isinstance(content, list) else ()):
            if isinstance(record, dict):
                yield f"{name}:{number}", record
            else:
                self.reject(f"{name}:{number}", f"bad row: {type(record).__name__}, not an object")

    def items(self, name: str) -> dict[str, Any]:
        """The entries of a JSON object."""
        content = self._json(name)
        if not isinstance(content, dict) and content is not _NOTHING:
            self._bad_file(name, f"holds a {type(content).__name__}, not an object")
        return content if isinstance(content, dict) else {}

    def _json(self, name: str) -> Any:
        try:
            return parse_json(self.text(name), keep_surrogates=True)
        except JsonError as error:
            self._bad_file(name, f"is {error}")
            return _NOTHING

    def splits(self, name: str, identity: Callable[[Any], str | None]) -> dict[str, str]:
        """``{"train": [76, ...], ...}`` as ``{"76": "train", ...}``.

        Args:
            identity: returns the pair id of an entry, ``None`` if it is not an id.
        """
        out: dict[str, str] = {}
        for group, members in self.items(name).items():
            if not isinstance(members, list):
                self.reject(f"{name}:{group}", f"bad row: {group!r} is not a list of ids")
                continue
            split = SPLIT_NAMES.get(group.lower())
            for number, member in enumerate(members):
                position, pair_id = f"{name}:{group}:{number}", identity(member)
                if pair_id is None:
                    self.reject(position, f"no pair id: {member!r}")
                elif split is None:
                    self.reject(pair_id, f"bad split: {group!r} is not one of {', '.join(SPLITS)}")
                elif pair_id in out:
                    self.reject(position, f"duplicate pair id: {pair_id} is in {out[pair_id]} and in {split}")
                else:
                    out[pair_id] = split
        return out

    def captions(self, name: str, splits: Mapping[str, str]) -> dict[str, list[str]]:
        """``{"000076.png": ["...", ...], ...}`` as ``{"76": ["...", ...], ...}``; see :func:`numbered_id`.

        Args:
            splits: of :meth:`splits`; entries that are in none of them are rejected.
        """
        out: dict[str, list[str]] = {}
        for key, value in self.items(name).items():
            position, pair_id = f"{name}:{key}", numbered_id(key)
            if pair_id is None:
                self.reject(position, f"no pair id: {key!r}")
            elif pair_id not in splits:
                self.reject(position, f"bad split: {pair_id} is in none of the splits")
            elif pair_id in out:
                self.reject(position, f"duplicate pair id: {pair_id} occurs under two names")
            elif (sentences := self.texts_in(position, value, "captions")) is not None:
                out[pair_id] = sentences
        return out

    def join(self, pairs: dict[str, Row], position: str, pair: Row) -> Row | None:
        """The pair of this id, which is ``pair`` if there is none yet; counts a row of it. A row of another split than
        the pair's first row is rejected."""
        first = pairs.setdefault(pair["pair_id"], {**pair, "rows": 0})
        if first["split"] != pair["split"]:
            splits = f"{first['split']} and in {pair['split']}"
            self.reject(position, f"duplicate pair id: {pair['pair_id']} is in {splits}")
            return None
        first["rows"] += 1
        return first

    def name_in(self, position: str, record: dict[str, Any], key: str) -> str | None:
        """The id or file name under ``key``; without one the record is rejected."""
        value = record.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
        self.reject(position, f"bad row: {key} is {value!r}" if key in record else f"bad row: it has no {key}")
        return None

    def texts_in(self, position: str, value: Any, what: str) -> list[str] | None:
        """``value`` if it is a list of texts; otherwise the record is rejected."""
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return value
        self.reject(position, f"bad row: {what} is {str(value)[:80]!r}, not a list of texts")
        return None

    def _bad_file(self, name: str, why: str) -> None:
        self.reject(name, f"bad file: {name} {why}")
        self.note(f"{name} {why}; its content is missing")


def numbered_id(value: Any) -> str | None:
    """``"76"`` of ``76``, ``"76"`` and ``"000076.png"``."""
    text = str(value).removesuffix(".png")
    return str(int(text)) if text.isascii() and text.isdigit() else None


class AnnotationReader:
    """A :class:`~idc.data.readers.base.PairReader` of the pairs that ``read`` finds.

    ``extra["counts"]`` has for each split the number of annotation ``rows``, of ``sentences`` and of empty ones among
    them (``empty_sentences``), which are left out of the pairs. ``meta`` has the names of the images as ``before`` and
    ``after``, and the positions of left-out sentences (:data:`EMPTY_SENTENCES`).

    Raises:
        ValueError: the folder does not have the layout of the format, or no pair could be read.
    """

    def __init__(self, format: Format, folder: files.Location, read: ReadPairs, config: ImportConfig) -> None:
        annotations = Annotations(folder, access(format, config))
        rows = list(read(annotations, config))
        if not rows:
            why = "; ".join(row["error"] for row in annotations.rejects[:3])
            raise ValueError(f"{folder} has no pair that can be read{': ' if why else ''}{why}")
        if "images" not in annotations.extra:  # else ``read`` counts its rows and looks for its images itself
            annotations.extra["counts"] = _count(rows)
            if config.images:
                annotations.extra["images"] = _find_images(annotations, rows)
        self.extra = annotations.extra
        rejects, size = annotations.rejects, config.chunk_size
        if format == "clevr_change":  # the pairs of a triple are in one chunk, all rejects in the last
            size = max(2, size - size % 2)
        else:
            rows, rejects = rows + rejects, []
        self._chunks = [rows[first : first + size] for first in range(0, len(rows), size)] + [rejects] * bool(rejects)
        self.reader = annotations.reader
        self.fingerprint = fingerprint(format, config.chunk_size, annotations.hash.hexdigest())

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        return rows_to_batch(self._chunks[chunk_id])


def _count(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """The counts of each split; marks repeated ids, and puts names and empty sentences of each row into its meta."""
    counts: dict[str, dict[str, int]] = {}
    seen: set[str] = set()
    for row in rows:
        split = str(row["split"])
        of = counts.setdefault(SPLIT_NAMES.get(split.lower(), split), {"rows": 0, "sentences": 0, EMPTY_SENTENCES: 0})
        empty = [index for index, text in enumerate(row["captions"]) if not text.strip()]
        of["rows"] += row.pop("rows", 1)
        of["sentences"] += len(row["captions"])
        of[EMPTY_SENTENCES] += len(empty)
        if row["pair_id"] in seen:
            row["error"] = f"duplicate pair id: {row['source']} repeats an id"
        seen.add(row["pair_id"])
        names = {
            role: name if isinstance(name, str) else name[0] for role in ("before", "after") if (name := row[role])
        }
        row["meta"] = {**names, **row.get("meta", {}), **({EMPTY_SENTENCES: empty} if empty else {})}
    return counts


def _find_images(annotations: Annotations, rows: Sequence[Row]) -> bool:
    """Replace the names of the images by their paths; returns whether any was found.

    A name without a file is kept, and the loading stage rejects its row; masks are dropped if none exists.
    """
    by_name: dict[str, list[str]] = {}
    other_images: set[str | None] = set()
    tree = annotations.root.scan(annotations.reader.access.links)
    for file, size in sorted([*tree.files, *((file, 0) for file in tree.special)]):
        inner = annotations.root.relative(file)
        relative = PurePosixPath(inner)
        suffix = relative.suffix.lower()
        if suffix in IMAGE_SUFFIXES or suffix in OTHER_IMAGE_SUFFIXES:
            by_name.setdefault(composed(relative.name), []).append(inner)
            annotations.hash.update(f"{inner} {size}\n".encode("utf-8", "surrogateescape"))
        if suffix in OTHER_IMAGE_SUFFIXES:
            other_images.add(inner)
    for row in outside_rows(tree, annotations.root):
        annotations.reject(row["pair_id"], row["error"])
        annotations.note(f"{row['pair_id']} is {row['error']}")
    for paths in by_name.values():
        paths.sort(key=lambda path: (path.count("/"), path))

    def path_of(names: str | Sequence[str]) -> str | None:
        for name in map(composed, [names] if isinstance(names, str) else names):
            for path in by_name.get(name.rpartition("/")[2], ()):
                if composed(f"/{path}").endswith(f"/{name}"):
                    return path
        return None

    there = {"before": 0, "after": 0, "mask": 0}
    for row in rows:
        for role in there:
            names = row.get(role)
            if not names:
                row[role] = None
                continue
            path = path_of(names)
            there[role] += path is not None
            other_images.discard(path)
            row[role] = path or (names if isinstance(names, str) else names[0])
    for note in unread_images(sorted(filter(None, other_images))):
        annotations.note(note)
    if not there["mask"]:
        for row in rows:
            row["mask"] = None
    return bool(there["before"] or there["after"])
