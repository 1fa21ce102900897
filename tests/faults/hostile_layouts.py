"""Hostile data sets in official layouts, shards and HDF5 files: each with what must come of it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np

from tests.data.container_sets import OFFICIAL as MORE
from tests.data.container_sets import frames
from tests.data.official_layouts import Official
from tests.data.readers.test_own import picture
from tests.data.small_sets import OFFICIAL
from tests.faults.hostile import HOST, OUTSIDE, Content, Hostile, Surroundings, fifo, link

AWAY = {
    "above": "../outside/canary.png",
    "anywhere": f"{OUTSIDE}/canary.png",
    "by URI": f"file://{OUTSIDE}/canary.png",
    "on a host": f"s3://bucket/x?scheme=http&endpoint_override={HOST}&y=/away.png",
}
"""Names that lead out of the source."""
DEEP = "[" * 100_000 + "]" * 100_000


def changed(official: Official, files: dict[str, Any], lost: dict[str, str] | None = None, **outcome: Any) -> Hostile:
    """The layout with some files replaced; ``lost`` are the rejects: row id -> code."""
    lost = lost or {}
    pairs = () if "error" in outcome else tuple(name for name in official.pairs if name not in lost)
    return Hostile(
        official.format, {**official.files, **files}, pairs=pairs, rejects=lost, settings=official.settings, **outcome
    )


def text_of(official: Official, name: str) -> str:
    content = official.files[name]
    assert isinstance(content, str)
    return content


# ------------------------------------------------------------------------------------------------ names that lead away


def away_entries() -> dict[str, Hostile]:
    """Every layout whose annotations name files, with a name that leads out of it.

    A reader that looks for ``real/NAME`` or ``train/A/NAME`` looks below its source for an absolute path, too, where
    there is nothing.
    """
    out = {}
    for how, name in AWAY.items():
        below = "missing file" if how == "anywhere" else "outside the source"
        editing = official("image_editing_request")
        train = json.loads(text_of(editing, "train.json"))
        train.append({"img0": name, "img1": "0b.jpg", "sents": ["x"], "uid": "away"})
        out[f"image_editing_request: {how}"] = changed(
            editing, {"train.json": json.dumps(train)}, {"away": "outside the source"}
        )
        omnidiff = official("omnidiff")
        real = json.loads(text_of(omnidiff, "real/train.json"))
        real.append({**real[0], "id": "away", "before": name})
        out[f"omnidiff: {how}"] = changed(omnidiff, {"real/train.json": json.dumps(real)}, {"real/away": below})
        levir = official("levir_mci")
        content = json.loads(text_of(levir, "LevirCCcaptions.json"))
        content["images"].append({**content["images"][0], "filename": name, "filepath": "train"})
        out[f"levir: {how}"] = changed(
            levir, {"LevirCCcaptions.json": json.dumps(content)}, {PurePosixPath(name).stem: below}
        )
        generated = official("instruct_pix2pix")
        seeds = json.loads(text_of(generated, "seeds.json"))
        seeds[0][1].append(name)
        out[f"instruct_pix2pix: {how}"] = changed(
            generated, {"seeds.json": json.dumps(seeds)}, {f"0000000_{name}": below}
        )
    return out


# ------------------------------------------------------------------------------------------ files that are no such


ANNOTATIONS = {
    "clevr_change": "splits.json",
    "clevr_dc": "captions.json",
    "spot_the_diff": "val.json",
    "spot_the_diff_multi": "splits.json",
    "image_editing_request": "valid.json",
    "levir_mci": "LevirCCcaptions.json",
    "levir_joined": "levir_cc_captions.json",
    "birds_to_words": "birds-to-words-v1.0.tsv",
    "birds_tokenised": "val.json",
    "omnidiff": "real/val.json",
    "instruct_pix2pix": "seeds.json",
    "procap_hdf5": "val/txt/sc_videos.json",
}
"""A file of each layout that is replaced."""


ONE_OF_SEVERAL = ("spot_the_diff", "image_editing_request", "birds_tokenised", "omnidiff")
"""Layouts in which a file of a split may be absent: a FIFO in its place is no such file, which a note says."""


def official(name: str) -> Official:
    return {**OFFICIAL, **MORE}[name]()


def annotation_entries() -> dict[str, Hostile]:
    """An annotation file that leads outside or never ends is refused; with a byte order mark it is read."""
    out = {}
    for name, file in ANNOTATIONS.items():
        layout = official(name)
        out[f"{name}: annotations outside"] = changed(
            layout, {file: link(f"{OUTSIDE}/canary.json")}, error="out of the source|is not the layout|has no"
        )
        if name in ONE_OF_SEVERAL:
            part = file.rpartition("/")[0]
            left = tuple(i for i, pair in layout.pairs.items() if pair[0] != "val" or not i.startswith(part))
            entry = Hostile(layout.format, {**layout.files, file: fifo}, left, named=("no annotations of val",))
        else:
            entry = changed(layout, {file: fifo}, error="not a regular file|has no")
        out[f"{name}: annotations are a FIFO"] = entry
        out[f"{name}: a byte order mark"] = changed(layout, {file: "\ufeff" + text_of(layout, file)})
    return out


def spot(val: str, lost: dict[str, str], **outcome: Any) -> Hostile:
    """Spot-the-Diff with another ``val.json``, whose pair is 3."""
    layout = official("spot_the_diff")
    pairs = tuple(name for name in layout.pairs if name != "3" or not lost)
    return Hostile(layout.format, {**layout.files, "val.json": val}, pairs=pairs, rejects=lost, **outcome)


def damaged_entries() -> dict[str, Hostile]:
    """One of three files, in every way that JSON can be wrong; and the damage that the readers' own tests make."""
    file = {"val.json": "bad file"}
    out = {
        "empty": spot("", file),
        "a number": spot("5", file),
        "an object": spot("{}", file),
        "deep": spot(DEEP, file),
        "markup": spot("<!doctype html><p>404", file),
        "nothing": spot("null", file),
        "a deep entry": spot(f'[{{"img_id": 3, "sentences": [], "x": {DEEP}}}]', {"val.json:0": "bad row"}),
        "digits": spot('[{"img_id": ' + "1" * 5_000 + ', "sentences": []}]', {"val.json:0": "bad row"}),
        "NaN": spot('[{"img_id": NaN, "sentences": []}]', {"val.json:0": "bad row"}),
        "a key twice": spot('[{"img_id": 3, "img_id": 9, "sentences": []}]', {"val.json:0": "bad row"}),
        "half a character": spot('[{"img_id": 3, "sentences": ["\\ud83d"]}]', {"3": "not UTF-8"}),
        "an id that leads away": spot(
            '[{"img_id": "../outside/canary", "sentences": ["x"]}]', {"../outside/canary": "outside the source"}
        ),
    }
    found = {f"spot_the_diff: {name}": entry for name, entry in out.items()}
    for name, make in {**OFFICIAL, **MORE}.items():
        layout = make()
        files = dict(layout.files)
        rejects = layout.damage(files)
        pairs = tuple(pair for pair in layout.pairs if pair not in layout.lost)
        found[f"{name}: damaged"] = Hostile(layout.format, files, pairs, rejects, settings=layout.settings)
    return found


# ------------------------------------------------------------------------------------------------ shards and HDF5


def tar(members: dict[str, bytes | Callable[[tarfile.TarInfo], None]]) -> bytes:
    """A shard; a function makes another kind of member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if callable(content):
                content(info)
                file.addfile(info)
            else:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def kind(type_: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def make(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = type_, target

    return make


SAMPLE: dict[str, Any] = {
    "good.before.png": picture(1),
    "good.after.png": picture(2),
    "good.json": b'{"split": "train"}',
}


def shard_entries() -> dict[str, Hostile]:
    def shard(members: dict[str, Any], **outcome: Any) -> Hostile:
        return Hostile("webdataset", {"train-0.tar": tar({**SAMPLE, **members})}, **outcome)

    def x(text: bytes, code: str = "bad row") -> Hostile:
        members = {"x.before.png": picture(3), "x.after.png": picture(4), "x.json": text}
        return shard(members, pairs=("good",), rejects={"x": code})

    def linked(type_: bytes, target: str) -> Hostile:
        members = {"x.before.png": kind(type_, target), "x.after.png": picture(4)}
        rejects = {"train-0.tar:x.before.png": "unreadable file", "x": "missing partner"}
        return shard(members, pairs=("good",), rejects=rejects)

    whole = tar(SAMPLE)
    names = {f"{prefix}x.{role}.png": picture(5) for prefix in ("../../", "/etc/") for role in ("before", "after")}
    out = {
        "names that lead away": shard(names, pairs=("good", "../../x", "/etc/x")),
        "a link": linked(tarfile.SYMTYPE, "/etc/passwd"),
        "a hard link": linked(tarfile.LNKTYPE, "/etc/passwd"),
        "a device": linked(tarfile.CHRTYPE, ""),
        "a FIFO": linked(tarfile.FIFOTYPE, ""),
        "a member cut": Hostile(
            "webdataset", {"train-0.tar": whole[:1024] + tar({"x.before.png": bytes(5000)})[:2000]},
            rejects={"train-0.tar": "bad file", "good": "missing partner"},
        ),
        "no tar": Hostile("webdataset", {"train-0.tar": b"I am no tar" * 200}, error="has no samples"),
        "compressed": Hostile("webdataset", {"train-0.tar": b"\x1f\x8b\x08\0" + bytes(2000)}, error="has no samples"),
        "empty": Hostile("webdataset", {"train-0.tar": b""}, error="has no samples"),
        "a good shard and no tar": Hostile(
            "webdataset", {"train-0.tar": whole, "train-1.tar": b"no tar" * 200}, ("good",), {"train-1.tar": "bad file"}
        ),
        "a sample twice": Hostile(
            "webdataset",
            {"train-0.tar": whole, "train-1.tar": whole},
            ("good",),
            {"train-1.tar:good": "duplicate pair id"},
        ),
        "a key twice": x(b'{"caption": "one", "caption": "two"}'),
        "no JSON": x(b"{"),
        "a list": x(b"[]"),
        "deep": x(DEEP.encode()),
        "NaN": x(b'{"iou": NaN}'),
        "digits": x(b'{"iou": ' + b"1" * 5_000 + b"}"),
        "half a character": x(b'{"caption": "\\ud83d"}', "not UTF-8"),
        "a strange split": x(b'{"split": "everything"}', "bad split"),
        "captions of numbers": x(b'{"captions": [1]}'),
    }  # fmt: skip
    out["a mask by name"] = shard(
        {
            "x.before.png": picture(3),
            "x.after.png": picture(4),
            "x.json": b'{"mask": "/etc/passwd", "error": "bad file: no"}',
        },
        pairs=("good", "x"),
    )
    return {f"webdataset: {name}": entry for name, entry in out.items()}


def hdf5_entries() -> dict[str, Hostile]:
    """Links inside HDF5 files can lead to any file of the machine."""

    def made(make: Callable[[h5py.File, str], None]) -> Content:
        def write(path: Path, around: Surroundings) -> None:
            with h5py.File(path, "w") as file:
                file["76"] = frames(1, 2)
                make(file, str(around.outside))

        return write

    def raw(file: h5py.File, outside: str) -> None:
        shape = (2, 3, 6, 8)
        file.create_dataset("77", shape, np.uint8, external=[(f"{outside}/canary.bin", 0, int(np.prod(shape)))])

    def far(file: h5py.File, outside: str) -> None:
        file["77"] = h5py.ExternalLink(f"{outside}/canary.h5", "76")

    def virtual(file: h5py.File, outside: str) -> None:
        layout = h5py.VirtualLayout((9, 3, 6, 8), np.uint8)
        layout[:] = h5py.VirtualSource(f"{outside}/canary.h5", "76", (9, 3, 6, 8))
        file.create_virtual_dataset("77", layout)

    def loop(file: h5py.File, outside: str) -> None:
        file["77"] = h5py.SoftLink("/77")

    def huge(file: h5py.File, outside: str) -> None:
        file.create_dataset("77", (2, 3, 2**20, 2**20), np.uint8, chunks=(1, 1, 64, 64))

    text = '{"76": ["x"], "77": ["x"]}'
    outcomes = {
        "a file outside as pixels": (raw, "outside the source"),
        "a link to another file": (far, "outside the source"),
        "frames of another file": (virtual, "outside the source"),
        "a loop": (loop, "outside the source"),
        "frames without end": (huge, "too many pixels"),
    }
    return {
        f"procap_hdf5: {name}": Hostile(
            "procap_hdf5", {"train/txt/spot_videos.json": text, "train/video/spot_videos.h5": made(make)},
            ("76",), {"77": code},
        )
        for name, (make, code) in outcomes.items()
    }  # fmt: skip


def entries() -> dict[str, Hostile]:
    """By name."""
    return away_entries() | annotation_entries() | damaged_entries() | shard_entries() | hdf5_entries()
