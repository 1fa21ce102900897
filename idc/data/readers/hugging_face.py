"""A data set of the Hugging Face ``datasets`` library, with its columns named in ``hugging_face``.

The source is a folder that ``save_to_disk`` wrote (one split, or a dictionary of splits), a name on the hub, or
anything else that ``datasets.load_dataset`` takes. Images are an Image feature, bytes, or paths. Splits with our names
are used (``validation`` is val); a data set that has only ``train`` is split by the shares for val and test. Columns
that are not named are kept in ``meta`` if they are text, numbers or lists of them.

Of a folder, only images and Arrow files below it are read; of a data set on the hub those in the library's caches.
A folder whose README makes the library load files from elsewhere is refused without ``allow_remote``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from idc.data import files
from idc.data.config import ImportConfig
from idc.data.pipeline import Batch
from idc.data.readers.base import SPLIT_NAMES, access, rows_to_batch
from idc.data.store import fingerprint
from idc.data.textfiles import parse_json

_ROLES = ("before", "after", "mask")
_NAMED = (*_ROLES, "captions", "pair_id", "change_type", "split")


class HuggingFaceReader:
    """Reads a data set of the library; see the module's text.

    Raises:
        ValueError: it cannot be loaded, a named column is not in it, or it is empty.
    """

    def __init__(self, path: str, config: ImportConfig) -> None:
        self._path, self._config = path, config.hugging_face
        self._allow_remote = config.allow_remote
        self.reader = _reader(path, config)
        self._splits = self._load()
        self._chunks: list[tuple[str, int, int]] = []
        self._columns = {name: column for name in _NAMED if (column := getattr(self._config, name)) is not None}
        others: set[str] = set()
        for split, rows in self._splits.items():
            self._check(split, rows.column_names)
            others |= set(rows.column_names) - set(self._columns.values())
            size = config.chunk_size
            self._chunks += [(split, start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
        if not self._chunks:
            raise ValueError(f"{path} has no rows")
        splits = [SPLIT_NAMES.get(split.lower()) for split in self._splits]
        self._given = len(splits) > 1 or splits[0] in ("val", "test")
        notes = [f"columns kept in meta: {', '.join(sorted(others))}"] if others else []
        if not self._given and self._config.split is None:
            notes.append("it has one split: val and test get the configured shares")
        self.extra: dict[str, Any] = {"notes": notes}
        # Private to the library: its hash of the data and of all that was done to it, without reading the rows.
        prints = {split: rows._fingerprint for split, rows in self._splits.items()}
        self.fingerprint = fingerprint("hugging_face", config.chunk_size, self._config.model_dump(), prints)
        self._seen = self._repeated()

    def _load(self) -> dict[str, Any]:
        import datasets

        config = self._config
        if Path(self._path).is_dir():
            _check_folder(self._path, self.reader, self._allow_remote)
        try:
            if (Path(self._path) / "state.json").exists() or (Path(self._path) / "dataset_dict.json").exists():
                loaded = datasets.load_from_disk(self._path)
            else:
                loaded = datasets.load_dataset(self._path, config.name, revision=config.revision)
        except Exception as exc:  # the library raises errors of its own, of the hub, of HTTP, of pyarrow
            raise ValueError(f"{self._path} cannot be loaded as a data set: {type(exc).__name__}: {exc}") from exc
        splits = dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
        return {split: _undecoded(rows) for split, rows in splits.items()}

    def _check(self, split: str, columns: list[str]) -> None:
        for name, column in self._columns.items():
            if column not in columns:
                raise ValueError(
                    f"hugging_face.{name}: {self._path} has no column {column!r}; {split} has {', '.join(columns)}"
                )

    def _repeated(self) -> set[tuple[str, int]]:
        """Rows that repeat the id of an earlier row; only ids taken from a column can repeat."""
        if self._config.pair_id is None:
            return set()
        seen: set[str] = set()
        repeated = set()
        for split, rows in self._splits.items():
            for number, value in enumerate(rows[self._config.pair_id]):
                if str(value) in seen:
                    repeated.add((split, number))
                seen.add(str(value))
        return repeated

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def read(self, chunk_id: int) -> Batch:
        split, start, stop = self._chunks[chunk_id]
        rows = self._splits[split]
        columns = rows[start:stop]
        records = [{name: values[i] for name, values in columns.items()} for i in range(stop - start)]
        return rows_to_batch([self._row(split, n, record) for n, record in enumerate(records, start=start)])

    def _row(self, split: str, number: int, record: dict[str, Any]) -> dict[str, Any]:
        config = self._config
        position = f"{split}:{number}"
        pair_id = f"{split}-{number}" if config.pair_id is None else record[config.pair_id]
        if pair_id in (None, ""):
            return {"pair_id": position, "error": f"no pair id: {position}"}
        row: dict[str, Any] = {
            "pair_id": str(pair_id),
            "captions": None if config.captions is None else record[config.captions],
            "change_type": self._change_type(split, record),
            "split": record[config.split] if config.split is not None else split if self._given else None,
            "source": f"{self._path}:{position}",
            "meta": {
                name: value for name, value in record.items() if name not in self._columns.values() and _plain(value)
            },
        }
        for role in _ROLES:
            value = record[self._columns[role]] if role in self._columns else None
            row[role] = self._named((value.get("bytes") or value.get("path")) if isinstance(value, dict) else value)
        if (split, number) in self._seen:
            row["error"] = f"duplicate pair id: {position} repeats {pair_id}"
        return row

    def _named(self, value: Any) -> Any:
        """The library makes the names of a folder's files absolute."""
        folder = self.reader.folder.path + "/"
        return os.path.normpath(value).removeprefix(folder) if isinstance(value, str) and value[:1] == "/" else value

    def _change_type(self, split: str, record: dict[str, Any]) -> Any:
        column = self._config.change_type
        if column is None or record[column] is None:
            return None
        feature = self._splits[split].features[column]
        return feature.int2str(record[column]) if hasattr(feature, "int2str") else record[column]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_splits": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._splits = self._load()


def _reader(path: str, config: ImportConfig) -> files.Reader:
    """A reader of the files below a folder, or below the library's caches if the data set is on the hub."""
    allowed = access("hugging_face", config)
    if Path(path).exists():
        return files.Reader(files.locate(path), allowed)
    import datasets
    import huggingface_hub

    caches = str(datasets.config.HF_DATASETS_CACHE), huggingface_hub.constants.HF_HUB_CACHE
    return files.Reader(files.locate(caches[0]), allowed, also=caches)


def _check_folder(path: str, reader: files.Reader, allow_remote: bool) -> None:
    """Refuse a folder that makes the library read files outside of it.

    Raises:
        ValueError: names such a file.
    """
    for name, file in _named_files(Path(path)):
        if "://" in file and allow_remote:
            continue
        try:
            reader.locate(file)
        except files.OutsideSource as exc:
            fix = "; allow_remote=true reads it" if "://" in file else ""
            raise ValueError(f"{path}/{name}: it names the file {file[:300]!r}: {exc}{fix}") from exc


def _named_files(root: Path) -> Iterator[tuple[str, str]]:
    """The files that the descriptions of a data set list, each as (description, listed file)."""
    states = ["state.json"]
    try:
        if (root / "dataset_dict.json").is_file():
            splits = parse_json((root / "dataset_dict.json").read_text("utf-8")).get("splits", [])
            yield from (("dataset_dict.json", str(split)) for split in splits)
            states += [f"{split}/state.json" for split in splits]
        for state in filter(lambda name: (root / name).is_file(), states):
            for entry in parse_json((root / state).read_text("utf-8")).get("_data_files", []):
                yield state, os.path.join(os.path.dirname(state), str(entry["filename"]))
        for name in filter(lambda name: (root / name).is_file(), ("README.md", ".huggingface.yaml")):
            text = (root / name).read_text("utf-8")
            head = text.split("---")[1] if name == "README.md" and text.startswith("---") else text
            if name == "README.md" and head is text:
                continue
            settings = yaml.safe_load(head)
            yield from (
                (name, file) for file in _texts(settings.get("configs") if isinstance(settings, dict) else None)
            )
    except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as exc:
        raise ValueError(f"{root} cannot be read as a data set: {type(exc).__name__}") from exc


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _texts(entry)
    elif isinstance(value, str):
        yield value


def _undecoded(rows: Any) -> Any:
    """The rows with images as bytes or paths instead of decoded ones."""
    import datasets

    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
    return rows


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
