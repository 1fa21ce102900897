"""The official CLEVR-Change layout (DUDA, Park et al. 2019), as its authors and every later paper use it.

    images/CLEVR_default_000123.png  sc_images/CLEVR_semantic_000123.png  nsc_images/CLEVR_nonsemantic_000123.png
    splits.json                     {"train": [123, ...], "val": [...], "test": [...]}
    type_mapping.json               {"color": ["000123.png", ...], ...}                     (may be absent)
    change_captions.json            {"CLEVR_default_000123.png": ["...", ...]}              (may be absent)
    no_change_captions.json         the same for the distractor pairs                       (may be absent)
    change_captions_by_IOU.json     {"123": 0.42}: viewpoint IoU of the change pair         (may be absent)

A triple gives two pairs, named as ProCap names them: ``000123c`` (default, semantic) and ``000123nc`` (default,
nonsemantic: only the viewpoint and the light differ).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import numpy as np
from pyarrow import fs

from idc.data import files
from idc.data.importer import SPLIT_NAMES, rows_to_batch
from idc.data.pipeline import Batch
from idc.data.store import fingerprint
from idc.schema import NO_CHANGE, SPLITS

_FOLDERS = {"default": "images", "semantic": "sc_images", "nonsemantic": "nsc_images"}
_CAPTIONS = {"c": "change_captions.json", "nc": "no_change_captions.json"}
_IOU = "change_captions_by_IOU.json"


class ClevrChangeReader:
    """Reads the official layout; see the module's text.

    Args:
        strict: every triple of ``splits.json`` must be there. Otherwise triples of which no image is there are
            counted in ``extra["absent_triples"]`` and left out (a sample of the data set is a usable data set).

    Raises:
        ValueError: ``splits.json`` or all images are missing, or a JSON file is not what it should be.
    """

    def __init__(
        self, path: str, *, chunk_size: int = 64, strict: bool = False, filesystem: fs.FileSystem | None = None
    ) -> None:
        filesystem, self._root = files.resolve(path, filesystem)
        self._root = self._root.rstrip("/")
        self.reader = files.Reader(filesystem, self._root)
        self._hash = hashlib.sha256()
        notes: list[str] = []

        splits = self._json("splits.json")
        if splits is None:
            raise ValueError(f"{path} has no splits.json; it is not the official CLEVR-Change layout")
        there = self._images_there()
        if not any(there.values()):
            raise ValueError(f"{path} has no images named as in images/CLEVR_default_000123.png")
        split_of = _numbers_of(splits, SPLIT_NAMES, "splits.json")
        types = self._json("type_mapping.json")
        if types is None:
            notes.append("type_mapping.json is not there: change types are unknown")
        type_of = _numbers_of(types or {}, {}, "type_mapping.json")
        for name in (*_CAPTIONS.values(), _IOU):
            if self._json(name) is None:
                what = "its pairs have no viewpoint IoU" if name == _IOU else "its pairs have no captions"
                notes.append(f"{name} is not there: {what}")

        any_image, every = set().union(*there.values()), sorted(split_of)
        kept = [n for n in every if strict or n in any_image]
        self._numbers = np.array(kept, dtype=np.int64)
        self._splits = np.array([SPLITS.index(split_of[n]) for n in kept], dtype=np.int8)
        self._types = [type_of.get(n) for n in kept]
        self._there = {role: np.array([n in numbers for n in kept], dtype=bool) for role, numbers in there.items()}
        self._triples_a_chunk = max(1, chunk_size // 2)
        self.fingerprint = fingerprint("clevr_change", chunk_size, strict, self._hash.hexdigest())
        if len(kept) < len(every):
            notes.append(f"{len(every) - len(kept)} of the {len(every)} triples in splits.json have no images here")
        self.extra: dict[str, Any] = {
            "absent_triples": len(every) - len(kept),
            "images_without_split": len(any_image - set(every)),
            "notes": notes,
        }
        self._texts: dict[str, dict[int, Any]] = {}

    @property
    def num_chunks(self) -> int:
        return -(-len(self._numbers) // self._triples_a_chunk)

    def read(self, chunk_id: int) -> Batch:
        start = chunk_id * self._triples_a_chunk
        stop = min(start + self._triples_a_chunk, len(self._numbers))
        return rows_to_batch([self._pair(i, kind) for i in range(start, stop) for kind in ("c", "nc")])

    def _pair(self, i: int, kind: str) -> dict[str, Any]:
        number = int(self._numbers[i])
        roles = ("default", "semantic" if kind == "c" else "nonsemantic")
        before, after = (_name(role, number) for role in roles)
        absent = [_name(role, number) for role in roles if not self._there[role][i]]
        meta: dict[str, Any] = {"triple": number}
        iou = self._text(_IOU).get(number) if kind == "c" else None
        if iou is not None:
            meta["viewpoint_iou"] = iou
        return {
            "pair_id": f"{number:06d}{kind}",
            "before": before,
            "after": after,
            "captions": self._text(_CAPTIONS[kind]).get(number),
            "change_type": self._types[i] if kind == "c" else NO_CHANGE,
            "split": SPLITS[self._splits[i]],
            "source": f"CLEVR-Change/{after}",
            "meta": meta,
            "error": f"missing partner: {', '.join(absent)}" if absent else None,
        }

    def _images_there(self) -> dict[str, set[int]]:
        there: dict[str, set[int]] = {}
        for role, folder in _FOLDERS.items():
            there[role] = set()
            pattern = re.compile(rf"CLEVR_{role}_(\d+)\.png")
            for info in files.list_files(self.reader.filesystem, f"{self._root}/{folder}"):
                match = pattern.fullmatch(info.base_name)
                if match:
                    there[role].add(int(match.group(1)))
                    self._hash.update(f"{info.base_name} {info.size}\n".encode())
        return there

    def _json(self, name: str) -> Any | None:
        path = f"{self._root}/{name}"
        if not files.exists(self.reader.filesystem, path):
            return None
        data = files.read_bytes(path, self.reader.filesystem)
        self._hash.update(hashlib.sha256(data).digest())
        try:
            content = json.loads(data.decode("utf-8", "surrogateescape"))
        except json.JSONDecodeError as exc:
            raise ValueError(f"{path} is not JSON: {exc}") from exc
        if not isinstance(content, dict):
            raise ValueError(f"{path} holds a {type(content).__name__}, not an object")
        return content

    def _text(self, name: str) -> dict[int, Any]:
        """A caption or IoU file by triple number, read by a worker when it first needs it."""
        if name not in self._texts:
            self._texts[name] = {_number(key, name): value for key, value in (self._json(name) or {}).items()}
        return self._texts[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_texts": {}, "_hash": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _hash=hashlib.sha256())


def _name(role: str, number: int) -> str:
    return f"{_FOLDERS[role]}/CLEVR_{role}_{number:06d}.png"


def _number(key: Any, where: str) -> int:
    """The triple in ``123``, ``"000123.png"`` or ``"CLEVR_default_000123.png"``."""
    match = re.search(r"(\d+)(?:\.png)?$", str(key))
    if match is None:
        raise ValueError(f"{where}: {key!r} names no triple")
    return int(match.group(1))


def _numbers_of(groups: dict[str, Any], names: dict[str, str], where: str) -> dict[int, str]:
    """``{"train": [1, 2]}`` as ``{1: "train", 2: "train"}``; a triple in two groups is an error."""
    out: dict[int, str] = {}
    for group, members in groups.items():
        if names and group not in names:
            raise ValueError(f"{where}: {group!r} is not one of {', '.join(SPLITS)}")
        if not isinstance(members, list):
            raise ValueError(f"{where}: {group!r} is not a list")
        for member in members:
            number, name = _number(member, where), names.get(group, group)
            if out.setdefault(number, name) != name:
                raise ValueError(f"{where}: triple {number} is in {out[number]!r} and in {name!r}")
    return out
