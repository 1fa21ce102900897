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

Triples without any image are counted in ``extra["absent_triples"]`` and left out (a sample of the data set is a usable
data set); if no triple has an image, all are read without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row
from idc.data.readers.base import unread
from idc.data.schema import NO_CHANGE, SPLITS

_FOLDERS = {"default": "images", "semantic": "sc_images", "nonsemantic": "nsc_images"}
_CAPTIONS = {"c": "change_captions.json", "nc": "no_change_captions.json"}
_IOU = "change_captions_by_IOU.json"


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs; see the module's text.

    Raises:
        ValueError: ``splits.json`` is missing or useless.
    """
    if annotations.find("splits.json") is None:
        raise ValueError(f"{annotations.root} has no splits.json; it does not have the official CLEVR-Change layout")
    split_of = {int(key): split for key, split in annotations.splits("splits.json", _triple).items()}
    if not split_of:
        why = "; ".join(row["error"] for row in annotations.rejects[:3]) or "it is empty"
        raise ValueError(f"{annotations.root} has no triple that can be read: {why}")
    type_of = _types(annotations)
    texts: dict[str, dict[int, Any]] = {}
    for name in (*_CAPTIONS.values(), _IOU):
        if annotations.find(name) is None:
            what = "its pairs have no viewpoint IoU" if name == _IOU else "its pairs have no captions"
            annotations.note(f"{name} is missing: {what}")
        texts[name] = _by_triple(annotations, name)
        for number in texts[name].keys() - split_of.keys():
            annotations.reject(f"{name}:{number}", f"bad split: triple {number} is in none of the splits")

    there = _images_there(annotations) if config.images else {}
    any_image = set[int]().union(*there.values())
    kept = [number for number in sorted(split_of) if not any_image or number in any_image]
    absent = len(split_of) - len(kept)
    if absent:
        annotations.note(f"{absent} of the {len(split_of)} triples in splits.json have no images")
    in_split = list(split_of.values())
    annotations.extra |= {
        "counts": {split: {"triples": in_split.count(split)} for split in SPLITS if split in in_split},
        "absent_triples": absent,
        "images_without_split": len(any_image - split_of.keys()),
        "images": bool(any_image),
    }
    for number in kept:
        for kind, role in (("c", "semantic"), ("nc", "nonsemantic")):
            names = {of: f"{_FOLDERS[of]}/CLEVR_{of}_{number:06d}.png" for of in ("default", role)}
            missing = [name for of, name in names.items() if any_image and number not in there[of]]
            iou = texts[_IOU].get(number) if kind == "c" else None
            yield {
                "pair_id": f"{number:06d}{kind}",
                "before": names["default"],
                "after": names[role],
                "captions": texts[_CAPTIONS[kind]].get(number),
                "change_type": type_of.get(number) if kind == "c" else NO_CHANGE,
                "split": split_of[number],
                "source": f"CLEVR-Change/{names[role]}",
                "meta": {"triple": number, **({} if iou is None else {"viewpoint_iou": iou})},
                "error": f"missing partner: {', '.join(missing)}" if missing else None,
            }


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


def _triple(value: Any) -> str | None:
    """``"123"`` of ``123``, ``"000123.png"`` and ``"CLEVR_default_000123.png"``."""
    match = re.search(r"(?<![\d.-])(\d+)(?:\.png)?$", str(value))
    return str(int(match.group(1))) if match else None
