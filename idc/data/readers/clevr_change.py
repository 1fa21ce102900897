"""The official CLEVR-Change layout (DUDA, Park et al. 2019), as its authors and every later paper use it.

    images/CLEVR_default_000123.png  sc_images/CLEVR_semantic_000123.png  nsc_images/CLEVR_nonsemantic_000123.png
    splits.json                     {"train": [123, ...], "val": [...], "test": [...]}
    type_mapping.json               {"color": ["000123.png", ...], ...}                     (optional)
    change_captions.json            {"CLEVR_default_000123.png": ["...", ...]}              (optional)
    no_change_captions.json         the same for the distractor pairs                       (optional)
    change_captions_by_IOU.json     {"123": 0.42}: viewpoint IoU of the change pair         (optional)

A triple gives two pairs, named as ProCap names them: ``000123c`` (default, semantic) and ``000123nc`` (default,
nonsemantic: only the viewpoint and the light differ). Entries that name no triple, name one twice
or cannot be read are rejects, identified by their position (``splits.json:train:12``); the rest is read.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from idc.data import files
from idc.data.config import ImportConfig
from idc.data.pipeline import Batch
from idc.data.readers.annotations import Annotations
from idc.data.readers.base import access, rows_to_batch, unread
from idc.data.schema import NO_CHANGE, SPLITS
from idc.data.store import fingerprint

_FOLDERS = {"default": "images", "semantic": "sc_images", "nonsemantic": "nsc_images"}
_CAPTIONS = {"c": "change_captions.json", "nc": "no_change_captions.json"}
_IOU = "change_captions_by_IOU.json"


class ClevrChangeReader:
    """Reads the official layout; see the module's text.

    Triples without any image are counted in ``extra["absent_triples"]`` and left out (a sample of the data set is a
    usable data set); if no triple has an image, all are read without.

    Raises:
        ValueError: ``splits.json`` is missing or useless.
    """

    def __init__(self, folder: files.Location, config: ImportConfig) -> None:
        annotations = Annotations(folder, access("clevr_change", config))
        chunk_size = config.chunk_size
        self.reader = annotations.reader
        if annotations.find("splits.json") is None:
            raise ValueError(f"{folder} has no splits.json; it does not have the official CLEVR-Change layout")
        split_of = {int(key): split for key, split in annotations.splits("splits.json", _triple).items()}
        if not split_of:
            why = "; ".join(row["error"] for row in annotations.rejects[:3]) or "it is empty"
            raise ValueError(f"{folder} has no triple that can be read: {why}")
        type_of = _types(annotations)
        for name in (*_CAPTIONS.values(), _IOU):
            if annotations.find(name) is None:
                what = "its pairs have no viewpoint IoU" if name == _IOU else "its pairs have no captions"
                annotations.note(f"{name} is missing: {what}")
            for number in _by_triple(annotations, name).keys() - split_of.keys():
                annotations.reject(f"{name}:{number}", f"bad split: triple {number} is in none of the splits")

        there = _images_there(annotations) if config.images else {}
        any_image, every = set[int]().union(*there.values()), sorted(split_of)
        alone = not any_image
        kept = [n for n in every if alone or n in any_image]
        self._numbers = np.array(kept, dtype=np.int64)
        self._splits = np.array([SPLITS.index(split_of[n]) for n in kept], dtype=np.int8)
        self._types = [type_of.get(n) for n in kept]
        self._there = {role: np.array([alone or n in there[role] for n in kept], dtype=bool) for role in _FOLDERS}
        self._triples_per_chunk = max(1, chunk_size // 2)
        self._rejects = annotations.rejects
        self.fingerprint = fingerprint("clevr_change", chunk_size, annotations.hash.hexdigest())
        if len(kept) < len(every):
            annotations.note(f"{len(every) - len(kept)} of the {len(every)} triples in splits.json have no images")
        in_split = list(split_of.values())
        self.extra: dict[str, Any] = {
            **annotations.extra,
            "counts": {split: {"triples": in_split.count(split)} for split in SPLITS if split in in_split},
            "absent_triples": len(every) - len(kept),
            "images_without_split": len(any_image - set(every)),
            "images": not alone,
        }
        self._texts: dict[str, dict[int, Any]] = {}

    @property
    def num_chunks(self) -> int:
        return self._triple_chunks + bool(self._rejects)

    @property
    def _triple_chunks(self) -> int:
        return -(-len(self._numbers) // self._triples_per_chunk)

    def read(self, chunk_id: int) -> Batch:
        if chunk_id == self._triple_chunks:
            return rows_to_batch(self._rejects)
        start = chunk_id * self._triples_per_chunk
        stop = min(start + self._triples_per_chunk, len(self._numbers))
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

    def _text(self, name: str) -> dict[int, Any]:
        """A caption or IoU file by triple number; each worker reads it when it first needs it."""
        if name not in self._texts:
            self._texts[name] = _by_triple(Annotations(self.reader.folder, self.reader.access), name)
        return self._texts[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_texts": {}}


def _images_there(annotations: Annotations) -> dict[str, set[int]]:
    there: dict[str, set[int]] = {}
    others = []
    for role, folder in _FOLDERS.items():
        there[role] = set()
        pattern = re.compile(rf"CLEVR_{role}_(\d+)\.png")
        for info in (annotations.root / folder).list_files():
            match = pattern.fullmatch(info.base_name)
            if match:
                there[role].add(int(match.group(1)))
                annotations.hash.update(f"{info.base_name} {info.size}\n".encode())
            else:
                others.append(f"{folder}/{info.base_name}")
    for note in unread(others, "not named like images/CLEVR_default_000123.png"):
        annotations.note(note)
    return there


def _types(annotations: Annotations) -> dict[int, str]:
    """``{"color": ["000001.png"]}`` as ``{1: "color"}``."""
    name, out = "type_mapping.json", dict[int, str]()
    if annotations.find(name) is None:
        annotations.note(f"{name} is missing: change types are unknown")
        return out
    for kind, members in annotations.items(name).items():
        if not isinstance(members, list):
            annotations.reject(f"{name}:{kind}", f"bad row: {kind!r} is not a list of triples")
            continue
        for index, member in enumerate(members):
            key = _triple(member)
            if key is None:
                annotations.reject(f"{name}:{kind}:{index}", f"bad row: {member!r} names no triple")
            elif out.setdefault(int(key), kind) != kind:
                annotations.reject(
                    f"{name}:{kind}:{index}", f"bad row: triple {key} is in {out[int(key)]!r} and in {kind!r}"
                )
    return out


def _by_triple(annotations: Annotations, name: str) -> dict[int, Any]:
    """The entries of a caption or IoU file by triple; empty if the file is missing."""
    out: dict[int, Any] = {}
    for key, value in annotations.items(name).items() if annotations.find(name) else ():
        triple = _triple(key)
        if triple is None:
            annotations.reject(f"{name}:{key}", f"bad row: {key!r} names no triple")
        elif int(triple) in out:
            annotations.reject(f"{name}:{key}", f"duplicate pair id: triple {triple} occurs under two names")
        else:
            out[int(triple)] = value
    return out


def _name(role: str, number: int) -> str:
    return f"{_FOLDERS[role]}/CLEVR_{role}_{number:06d}.png"


def _triple(value: Any) -> str | None:
    """``"123"`` of ``123``, ``"000123.png"`` and ``"CLEVR_default_000123.png"``."""
    match = re.search(r"(?<![\d.-])(\d+)(?:\.png)?$", str(value))
    return str(int(match.group(1))) if match else None
