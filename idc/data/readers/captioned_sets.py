"""Data sets with captions whose annotations are a few JSON files or a table: what is read of each, in its layout.

**Spot-the-Diff** (Jhamtani and Berg-Kirkpatrick 2018): the official layout and CARD's, by ``spot_the_diff.protocol``::

    single  train.json, val.json, test.json (also in annotations/ or data/annotations/, as in the official repository)
            [{"img_id": "76", "sentences": ["the car is gone", ...]}, ...]
    multi   change_multi_captions.json          {"000076.png": ["the car is gone. the dog has moved"], ...}
            splits.json                         {"train": [76, ...], "val": [...], "test": [...]}
    images  76.png before, 76_2.png after (``resized_images`` of the authors); 76_diff.jpg is not a mask and not read

The official rows repeat an id once per annotator: their sentences together are the pair's references, as in the
single-change references of the literature (1,404 test rows, 1,270 pairs). The multi-change protocol has one reference
per pair, all its sentences joined. Both yield the same pair ids.

**LEVIR-CC** (Liu et al. 2022) and **LEVIR-MCI** (Liu et al. 2024)::

    LevirCCcaptions.json        {"images": [{"filepath": "train", "filename": "train_000001.png", "split": "train",
                                             "changeflag": 1, "sentences": [{"raw": " a road appears ."}, ...]}, ...]}
    images/train/A/train_000001.png  images/train/B/train_000001.png
    images/train/label/train_000001.png         LEVIR-MCI only: 0 background, 128 road, 255 building

A label is stored unchanged as the pair's mask; non-zero means changed. ``change_type`` is "none" if the flag is 0 and
unknown otherwise; ``meta["changeflag"]`` is the flag. In LEVIR-MCI some flags and labels contradict each other.

**Image-Editing-Request** (Tan et al. 2019), several of whose uids may share images, in two splits even::

    train.json  valid.json  test.json       (also in dataset/adobe/ or data/, as in the official repository)
    [{"img0": "a.jpg", "img1": "b.jpg", "sents": ["Remove the people", ...], "uid": "Reddit_1052"}, ...]

**CLEVR-DC** (Kim et al. 2021). In a sixth of the pairs nothing changed; no file lists them, so ``change_type`` is
unknown::

    bef/123.png  aft/123.png
    captions.json  {"123": ["...", ...], ...}       split.json  {"train": [123, ...], "val": [...], "test": [...]}

**OmniDiff** (the M3Diff paper, sections 3 and 5): real and rendered pairs with one long description each. Assumed: the
paper publishes no file format, but two parts, real (8,609 pairs) and render (6,989), each split into train, val and
test; a description of about 60 words per pair; one or more of twelve types of change. If the published files differ
from this simplest layout, adapt :func:`read_omnidiff`::

    real/train.json  real/val.json  real/test.json  render/train.json  render/val.json  render/test.json
    [{"id": "000001", "before": "images/1_a.jpg", "after": "images/1_b.jpg", "captions": ["..."],
      "types": ["addition", "color"], "scene": "street_01"}, ...]

``types`` and ``scene`` are optional. The pair's id is ``real/000001``; ``change_type`` is the type if there is one.

**Birds-to-Words** (Forbes et al. 2019): ``birds-to-words-v1.0.tsv``, eleven columns with a header, one description per
row. A pair is two photographs: ``647514_5595152``, the numbers that iNaturalist gives them (part of the image's
address). Its descriptions by several annotators, in rows of their own, are its references. The photographs are not part
of the data set; they are found under their numbers in any folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from idc.data.config import Format, ImportConfig
from idc.data.readers.annotations import Annotations, ReadPairs, Row, numbered_id
from idc.data.schema import NO_CHANGE
from idc.data.textfiles import split_lines

_MULTI = "change_multi_captions.json"
_LEVIR = "LevirCCcaptions.json"
SUBSETS = ("real", "render")
"""The parts of OmniDiff."""
_TYPES = (
    "viewpoint", "illumination", "addition", "disappearance", "removal", "substitution", "size", "color", "orientation",
    "pose", "OCR", "counting",
)  # fmt: skip
"""OmniDiff's twelve types of change (section 3.1)."""
_BIRDS = (
    "img1ObservationURL", "img1ImgURL", "img1Species", "img1Selection",
    "img2ObservationURL", "img2ImgURL", "img2Species", "img2Selection",
    "split", "annN", "description",
)  # fmt: skip
_BIRDS_META = ("img1Species", "img1Selection", "img2Species", "img2Selection", "img1ImgURL", "img2ImgURL")


def read_spot_the_diff(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of the configured protocol."""

    def pair(pair_id: str, split: str, sentences: list[str]) -> Row:
        images = {"before": f"{pair_id}.png", "after": f"{pair_id}_2.png"}
        source = f"Spot-the-Diff/{pair_id}"
        return {"pair_id": pair_id, **images, "captions": sentences, "split": split, "source": source}

    annotations.extra["protocol"] = config.spot_the_diff.protocol
    if config.spot_the_diff.protocol == "multi":
        splits = annotations.splits(annotations.need("splits.json"), numbered_id)
        captions = annotations.captions(annotations.need(_MULTI), splits)
        return [pair(pair_id, split, captions.get(pair_id, [])) for pair_id, split in splits.items()]
    if annotations.find(_MULTI) and not annotations.find("train.json", "annotations", "data"):
        raise ValueError(f"{annotations.root} has {_MULTI}: give spot_the_diff.protocol=multi")
    pairs: dict[str, Row] = {}
    for split, name in annotations.split_files("", "annotations/", "data/annotations/").items():
        for position, record in annotations.records(name):
            number = annotations.name_in(position, record, "img_id")
            sentences = annotations.texts_in(position, record.get("sentences"), "sentences")
            if number is None or sentences is None:
                continue
            if row := annotations.join(pairs, position, pair(number, split, [])):
                row["captions"] += sentences
    return pairs.values()


def read_levir(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    annotations.need(_LEVIR)
    for position, record in annotations.records(_LEVIR, "images"):
        file, split = (annotations.name_in(position, record, key) for key in ("filename", "split"))
        entries = record.get("sentences")
        raw = [e.get("raw") if isinstance(e, dict) else e for e in entries] if isinstance(entries, list) else entries
        sentences, flag = annotations.texts_in(position, raw, "sentences"), record.get("changeflag")
        if file is None or split is None or sentences is None:
            continue
        if flag not in (0, 1):
            annotations.reject(position, f"bad row: changeflag is {flag!r}, not 0 or 1")
            continue
        folder = str(record.get("filepath") or split)
        yield {
            "pair_id": PurePosixPath(file).stem,
            **{role: f"{folder}/{name}/{file}" for role, name in (("before", "A"), ("after", "B"), ("mask", "label"))},
            "captions": sentences,
            "split": split,
            "change_type": NO_CHANGE if flag == 0 else None,
            "source": f"LEVIR/{file}",
            "meta": {"changeflag": int(flag)},
        }


def read_image_editing_request(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    for split, name in annotations.split_files("", "dataset/adobe/", "data/").items():
        for position, record in annotations.records(name):
            pair_id, before, after = (annotations.name_in(position, record, key) for key in ("uid", "img0", "img1"))
            sentences = annotations.texts_in(position, record.get("sents"), "sents")
            if pair_id and before and after and sentences is not None:
                row = {"pair_id": pair_id, "before": before, "after": after, "captions": sentences, "split": split}
                yield {**row, "source": f"Image-Editing-Request/{position}"}


def read_clevr_dc(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    splits = annotations.splits(annotations.need("split.json"), numbered_id)
    if (name := annotations.find("captions.json")) is None:
        annotations.note("captions.json is missing: the pairs have no captions")
    captions = annotations.captions(name, splits) if name is not None else {}
    for pair_id, split in splits.items():
        names = [f"{pair_id}.png", f"{pair_id:0>6}.png"]
        images = {role: [f"{role[:3]}/{file}" for file in names] for role in ("before", "after")}  # bef/, aft/
        row = {"pair_id": pair_id, **images, "captions": captions.get(pair_id, []), "split": split}
        yield {**row, "source": f"CLEVR-DC/{pair_id}"}


def read_omnidiff(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of both parts, or of the one that is there."""
    there = [subset for subset in SUBSETS if annotations.find(subset)]
    if not there:
        raise ValueError(
            f"{annotations.root} has no folder {' and no folder '.join(SUBSETS)}; "
            "it does not have the layout of this format"
        )
    for subset in SUBSETS:
        if subset not in there:
            annotations.note(f"{subset} is missing")
    for subset in there:
        for split, name in annotations.split_files(f"{subset}/").items():
            for position, record in annotations.records(name):
                number, before, after = (
                    annotations.name_in(position, record, key) for key in ("id", "before", "after")
                )
                captions = annotations.texts_in(position, record.get("captions"), "captions")
                types = annotations.texts_in(position, record.get("types", []), "types")
                if not number or not before or not after or captions is None or types is None:
                    continue
                if strange := [name for name in types if name not in _TYPES]:
                    annotations.reject(position, f"bad row: {strange[0]!r} is not one of the types {', '.join(_TYPES)}")
                    continue
                scene = {"scene": record["scene"]} if "scene" in record else {}
                yield {
                    "pair_id": f"{subset}/{number}",
                    "before": [f"{subset}/{before}", before],
                    "after": [f"{subset}/{after}", after],
                    "captions": captions,
                    "split": split,
                    "change_type": types[0] if len(types) == 1 else None,
                    "source": f"OmniDiff/{position}",
                    "meta": {"subset": subset, "types": types, **scene},
                }


def read_birds_to_words(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    tables = [info.base_name for info in annotations.root.list_files() if info.base_name.endswith(".tsv")]
    if len(tables) != 1:
        which = f"several tables: {', '.join(tables)}; keep one of them" if tables else "no birds-to-words-v1.0.tsv; it"
        raise ValueError(
            f"{annotations.root} has {which}{'' if tables else ' does not have the layout of this format'}"
        )
    pairs: dict[str, Row] = {}
    for number, line in enumerate(split_lines(annotations.text(tables[0]))):
        position = f"{tables[0]}:{number}"
        cells = [
            cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell
            for cell in line.split("\t")
        ]
        if not line.strip() or tuple(cells) == _BIRDS:
            continue
        if len(cells) != len(_BIRDS):
            annotations.reject(position, f"bad row: {len(cells)} columns, not {len(_BIRDS)}")
            continue
        record = dict(zip(_BIRDS, cells, strict=True))
        first, second = (re.search(r"/photos/(\d+)", record[key]) for key in ("img1ImgURL", "img2ImgURL"))
        if first is None or second is None:
            annotations.reject(position, f"no pair id: {record['img1ImgURL']!r}, {record['img2ImgURL']!r}")
            continue
        pair_id = f"{first[1]}_{second[1]}"
        pair = {
            "pair_id": pair_id,
            "before": [f"{first[1]}{suffix}" for suffix in (".jpg", ".jpeg", ".png")],
            "after": [f"{second[1]}{suffix}" for suffix in (".jpg", ".jpeg", ".png")],
            "captions": [],
            "split": record["split"],
            "source": f"Birds-to-Words/{pair_id}",
            "meta": {key: record[key] for key in _BIRDS_META},
        }
        if row := annotations.join(pairs, position, pair):
            row["captions"].append(record["description"])
    return pairs.values()


READERS: dict[Format, ReadPairs] = {
    "spot_the_diff": read_spot_the_diff,
    "levir": read_levir,
    "image_editing_request": read_image_editing_request,
    "clevr_dc": read_clevr_dc,
    "omnidiff": read_omnidiff,
    "birds_to_words": read_birds_to_words,
}
