"""Small examples of the layouts that keep their images in files of their own kind: InstructPix2Pix and ProCap's
HDF5. The others are in :mod:`tests.data.small_sets`."""

from __future__ import annotations

import io
import json
from typing import Any

import h5py
import numpy as np

from tests.data.official_layouts import Expected, Official, more


def instruct_pix2pix() -> Official:
    """20 examples, the first of two seeds: 18 are train, then one val, one test."""
    seeds = [[f"{n:07d}", ["11", "22"] if n == 0 else [str(n)]] for n in range(20)]
    files: dict[str, int | str | bytes] = {"seeds.json": json.dumps(seeds)}
    pairs: Expected = {}
    for n, (name, of) in enumerate(seeds):
        prompt = {"input": f"a house {n}", "edit": f"make house {n} red", "output": f"a red house {n}"}
        files[f"{name}/prompt.json"] = json.dumps(prompt)
        for seed in of:
            files[f"{name}/{seed}_0.jpg"], files[f"{name}/{seed}_1.jpg"] = n, 100 + n
            split = "train" if n < 18 else "val" if n == 18 else "test"
            pairs[f"{name}_{seed}"] = (split, n, 100 + n, [f"make house {n} red"])

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["0000000/22_1.jpg"]
        files["0000001/prompt.json"] = '{"edit": "make'
        files["0000002/prompt.json"] = '{"input": "x"}'
        del files["0000003/prompt.json"]
        entries: list[Any] = json.loads(files["seeds.json"])
        entries[4:8] = [entries[8], "0000005", ["0000006"], [7, ["7"]]]
        files["seeds.json"] = json.dumps(entries)
        return {
            "0000000_22": "missing file", "0000001_1": "bad file", "0000002_2": "bad row", "0000003_3": "missing file",
            "seeds.json:5": "bad row", "seeds.json:6": "bad row", "seeds.json:7": "bad row",
            "seeds.json:8": "duplicate pair id",
        }  # fmt: skip

    lost = {"0000000_22", "0000001_1", "0000002_2", "0000003_3", *(f"000000{n}_{n}" for n in (4, 5, 6, 7))}
    return Official("instruct_pix2pix", files, pairs, damage, lost)


def frames(first: int, last: int, count: int = 9) -> np.ndarray:
    values = np.linspace(first, last, count).round().astype(np.uint8)
    return np.broadcast_to(values[:, None, None, None], (count, 3, 6, 8))


def hdf5(videos: dict[str, np.ndarray]) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for key, video in videos.items():
            file[key] = video
    return stream.getvalue()


def procap_hdf5() -> Official:
    """CLEVR-Change's two files; val and test find their frames in the file of train."""
    names = ["000000.png", "000001.png", "000002.png", "000003.png"]
    split = {"000000.png": "train", "000001.png": "train", "000002.png": "val", "000003.png": "test"}
    files: dict[str, int | str | bytes] = {}
    pairs: Expected = {}
    for kind, letter, base in (("nsc_videos", "nc", 200), ("sc_videos", "c", 100)):
        files[f"train/video/{kind}.h5"] = hdf5({name: frames(n, base + n) for n, name in enumerate(names)})
        for of in ("train", "val", "test"):
            told = {name: [f"{kind} {name[:6]} said", "twice"] for name in names if split[name] == of}
            files[f"{of}/txt/{kind}.json"] = json.dumps(told)
        for n, name in enumerate(names):
            pairs[f"{name[:6]}{letter}"] = (split[name], n, base + n, [f"{kind} {name[:6]} said", "twice"])
    order = {name: n for n, name in enumerate(("train", "val", "test"))}
    pairs = dict(sorted(pairs.items(), key=lambda pair: order[pair[1][0]]))

    def damage(files: dict[str, Any]) -> dict[str, str]:
        files["train/video/sc_videos.h5"] = hdf5({
            "000000.png": frames(0, 100), "000001.png": frames(1, 101)[:, :1], "000003.png": frames(3, 103),
            "000009.png": frames(9, 99),
        })  # fmt: skip
        files["train/txt/sc_videos.json"] = more(files["train/txt/sc_videos.json"], '"8": 3')
        files["val/txt/nsc_videos.json"] = more(files["val/txt/nsc_videos.json"], '"000000.png": ["again"]')
        files["extra/txt/sc_videos.json"] = '{"000009.png": ["x"]}'
        files["test/txt/nsc_videos.json"] = "nothing"
        return {
            "000001c": "bad row", "000002c": "missing file", "000009c": "bad split",
            "train/txt/sc_videos.json:8": "bad row", "val/txt/nsc_videos.json:000000.png": "duplicate pair id",
            "test/txt/nsc_videos.json": "bad file",
        }  # fmt: skip

    return Official("procap_hdf5", files, pairs, damage, {"000001c", "000002c", "000003nc"})


OFFICIAL = {make.__name__: make for make in (instruct_pix2pix, procap_hdf5)}
