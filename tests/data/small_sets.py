"""The official layouts of data sets as tiny folders, each with damage that a reader must survive."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.data.official_layouts import Expected, Files, Official, more

SPLITS = ("train", "train", "val", "test", "test")


def clevr_change() -> Official:
    names = [f"CLEVR_default_{n:06d}.png" for n in range(5)]
    files: Files = {
        "splits.json": json.dumps({"train": [0, 1], "val": [2], "test": [3, 4]}),
        "type_mapping.json": json.dumps({"color": ["000000.png", "000003.png"], "drop": ["000001.png"]}),
        "change_captions.json": json.dumps({name: [f"cube {n} is red"] for n, name in enumerate(names)}),
        "no_change_captions.json": json.dumps({name: ["there is no change"] for name in names}),
        "change_captions_by_IOU.json": json.dumps({str(n): 0.5 for n in range(5)}),
    }
    pairs: Expected = {}
    for n in range(5):
        files[f"images/CLEVR_default_{n:06d}.png"] = n
        files[f"sc_images/CLEVR_semantic_{n:06d}.png"] = 100 + n
        files[f"nsc_images/CLEVR_nonsemantic_{n:06d}.png"] = 200 + n
        pairs[f"{n:06d}c"] = (SPLITS[n], n, 100 + n, [f"cube {n} is red"])
        pairs[f"{n:06d}nc"] = (SPLITS[n], n, 200 + n, ["there is no change"])

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["sc_images/CLEVR_semantic_000001.png"]
        files["splits.json"] = json.dumps({"train": [0, 1, "x"], "val": [2, 0], "test": [3, 4], "extra": [7]})
        files["type_mapping.json"] = more(files["type_mapping.json"], '"add": ["000000.png"]')
        entries = '"CLEVR_default_000008.png": ["cube 8"], "y.png": ["cube"]'
        files["change_captions.json"] = more(files["change_captions.json"], entries)
        return {
            "000001c": "missing partner", "splits.json:train:2": "no pair id", "splits.json:val:1": "duplicate pair id",
            "7": "bad split", "type_mapping.json:add:0": "bad row", "change_captions.json:8": "bad split",
            "change_captions.json:y.png": "bad row",
        }  # fmt: skip

    return Official("clevr_change", files, pairs, damage, {"000001c"})


def clevr_dc() -> Official:
    captions = {str(n): [f"ball {n} moved", "it moved"] for n in range(5)}
    files: Files = {f"{folder}/{n}.png": base + n for folder, base in (("bef", 0), ("aft", 90)) for n in range(5)}
    files["split.json"] = json.dumps({"train": [0, 1], "val": [2], "test": [3, 4]})
    files["captions.json"] = json.dumps(captions)
    pairs: Expected = {str(n): (SPLITS[n], n, 90 + n, captions[str(n)]) for n in range(5)}

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["aft/1.png"]
        files["split.json"] = json.dumps({"train": [0, 1, 1], "val": [2, None], "test": [3, 4], "extra": [5]})
        files["captions.json"] = more(files["captions.json"], '"8": ["x"], "z": ["x"]')
        return {
            "1": "missing file", "split.json:train:2": "duplicate pair id", "split.json:val:1": "no pair id",
            "5": "bad split", "captions.json:8": "bad split", "captions.json:z": "no pair id",
        }  # fmt: skip

    return Official("clevr_dc", files, pairs, damage, {"1"})


def spot_the_diff() -> Official:
    def rows(*entries: tuple[Any, list[str]]) -> str:
        return json.dumps([{"img_id": number, "sentences": sentences} for number, sentences in entries])

    files: Files = {f"resized_images/{n}.png": n for n in range(1, 6)}
    files |= {f"resized_images/{n}_2.png": 50 + n for n in range(1, 6)}
    files["train.json"] = rows(("1", ["a car is gone", " "]), ("2", ["the dog moved"]), ("1", ["the car left"]))
    files["val.json"] = rows((3, [""]))
    files["test.json"] = rows(("4", ["man number 4 is here"]), ("5", ["man number 5 is here"]))
    pairs: Expected = {
        "1": ("train", 1, 51, ["a car is gone", "the car left"]), "2": ("train", 2, 52, ["the dog moved"]),
        "3": ("val", 3, 53, []), "4": ("test", 4, 54, ["man number 4 is here"]),
        "5": ("test", 5, 55, ["man number 5 is here"]),
    }  # fmt: skip

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["resized_images/2_2.png"]
        bad = '{"img_id": [6], "sentences": []}, {"img_id": null, "sentences": []}, {"img_id": "7", "sentences": "x"}'
        files["train.json"] = more(files["train.json"], bad)
        bad = '{"img_id": "1", "sentences": ["x"]}, ["x"], {"sentences": ["x"]}'
        files["test.json"] = more(files["test.json"], bad)
        files["val.json"] += "<html>"
        return {
            "2": "missing file", **{f"train.json:{n}": "bad row" for n in (3, 4, 5)},
            "test.json:2": "duplicate pair id", "test.json:3": "bad row", "test.json:4": "bad row",
            "val.json": "bad file",
        }  # fmt: skip

    return Official("spot_the_diff", files, pairs, damage, {"2", "3"})


def spot_the_diff_multi() -> Official:
    captions = {n: [f"{n} men left. a car is gone"] for n in range(1, 5)}
    files: Files = {f"{n}{end}.png": base + n for n in captions for end, base in (("", 0), ("_2", 50))}
    files["splits.json"] = json.dumps({"train": [1], "val": [2], "test": [3, 4]})
    files["change_multi_captions.json"] = json.dumps({f"{n:06d}.png": texts for n, texts in captions.items()})
    pairs: Expected = {str(n): (SPLITS[n], n, 50 + n, texts) for n, texts in captions.items()}

    def damage(files: dict[str, Any]) -> dict[str, str]:
        files["3.png"] = b""
        files["splits.json"] = json.dumps({"train": [1], "val": [2, 1, "no id"], "test": [3, 4], "extra": [9]})
        name = "change_multi_captions.json"
        files[name] = more(files[name], '"000006.png": ["x"], "000007.png": "x", "8x.png": ["x"]')
        return {
            "3": "empty file", "splits.json:val:1": "duplicate pair id", "splits.json:val:2": "no pair id",
            "9": "bad split", f"{name}:000006.png": "bad split", f"{name}:000007.png": "bad split",
            f"{name}:8x.png": "no pair id",
        }  # fmt: skip

    return Official("spot_the_diff", files, pairs, damage, {"3"}, {"spot_the_diff": {"protocol": "multi"}})


def image_editing_request() -> Official:
    def row(n: int, sents: list[str]) -> dict[str, Any]:
        return {"img0": f"{n}a.jpg", "img1": f"{n}b.jpg", "sents": sents, "uid": f"Reddit_{n}"}

    texts = [["Remove the man. "], ["brighter"], ["a", "b", "c"], ["crop it", "crop", "cut"], ["crop", "it", "now"]]
    files: Files = {f"images/{n}{end}.jpg": base + n for n in range(5) for end, base in (("a", 0), ("b", 30))}
    for name, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        files[f"{name}.json"] = json.dumps([row(n, texts[n]) for n in range(5) if SPLITS[n] == split], indent=4)
    pairs: Expected = {
        f"Reddit_{n}": (SPLITS[n], n, 30 + n, [text.strip() for text in texts[n]]) for n in range(5)
    }  # fmt: skip

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["images/1b.jpg"]
        files["test.json"] = more(files["test.json"], f"[], {json.dumps(row(3, ['again']))}")
        files["train.json"] = more(files["train.json"], '{"img0": "3a.jpg", "sents": ["x"], "uid": "Reddit_8"}, 5')
        files["valid.json"] = more(files["valid.json"], json.dumps({**row(4, []), "sents": ["x", None], "uid": "R"}))
        return {
            "Reddit_1": "missing file", "test.json:2": "bad row", "Reddit_3": "duplicate pair id",
            "train.json:2": "bad row", "train.json:3": "bad row", "valid.json:1": "bad row",
        }  # fmt: skip

    return Official("image_editing_request", files, pairs, damage, {"Reddit_1"})


def levir_mci() -> Official:
    name_of_file = "LevirCCcaptions.json"

    def row(split: str, n: int, flag: int) -> dict[str, Any]:
        text = " a road appears ." if flag else " no change has occurred ."
        sentences = [{"raw": text, " tokens": text.split()}, {"raw": f" picture {n} ."}]
        name = f"{split}_{n:06d}.png"
        return {"filepath": split, "filename": name, "split": split, "changeflag": flag, "sentences": sentences}

    rows = [row(split, n, n % 2) for n, split in enumerate(SPLITS, start=1)]
    files: Files = {name_of_file: json.dumps({"images": rows, "dataset": "LEVIR"})}
    pairs: Expected = {}
    for n, entry in enumerate(rows, start=1):
        split, name = entry["split"], entry["filename"]
        files |= {f"images/{split}/A/{name}": n, f"images/{split}/B/{name}": 20 + n}
        files[f"images/{split}/label/{name}"] = 255 * entry["changeflag"]
        captions = [sentence["raw"].strip() for sentence in entry["sentences"]]
        pairs[name.removesuffix(".png")] = (split, n, 20 + n, captions)

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["images/train/B/train_000001.png"]
        del files["images/val/label/val_000003.png"]
        extra = [
            {**row("test", 6, 0), "changeflag": 7}, {**row("test", 7, 0), "split": "extra"}, row("train", 2, 0),
            {**row("test", 8, 0), "sentences": [{"tokens": ["x"]}]},
        ]  # fmt: skip
        head, _, tail = files[name_of_file].partition('], "dataset"')
        entries = ", ".join(["[]", *map(json.dumps, extra), '{"filepath": "test"}'])
        files[name_of_file] = f'{head}, {entries}], "dataset"{tail}'
        return {
            "train_000001": "missing file", "val_000003": "missing file", "test_000007": "bad split",
            "train_000002": "duplicate pair id", **{f"{name_of_file}:{n}": "bad row" for n in (5, 6, 9, 10)},
        }  # fmt: skip

    return Official("levir", files, pairs, damage, {"train_000001", "val_000003"})


def birds_to_words() -> Official:
    table = "birds-to-words-v1.0.tsv"
    columns = [f"img{n}{name}" for n in (1, 2) for name in ("ObservationURL", "ImgURL", "Species", "Selection")]

    def line(one: int, two: int, split: str, annotator: int, text: str) -> str:
        cells = [
            cell
            for n in (one, two)
            for cell in (f"https://b/observations/{n}", f"https://b/photos/{n}/large.jpg?1", "Parus major", "base")
        ]
        return "\t".join([*cells, split, str(annotator), text])

    lines = [
        "\t".join([*columns, "split", "annN", "description"]),
        line(10, 11, "train", 1, 'Animal 1 is "red", not blue.'), line(12, 13, "val", 1, '"Animal 2 ""sings""."'),
        line(10, 11, "train", 2, "Animal 1 is bigger."), line(12, 11, "test", 1, "Animal 2 is much bigger."),
        line(13, 11, "train", 1, '"Both are birds.'),
    ]  # fmt: skip
    files: Files = {table: "\n".join(lines) + "\n"}
    files |= {"images/10.jpg": 10, "images/11.jpeg": 11, "images/12.jpg": 12, "images/13.png": 13}
    pairs: Expected = {
        "10_11": ("train", 10, 11, ['Animal 1 is "red", not blue.', "Animal 1 is bigger."]),
        "12_13": ("val", 12, 13, ['Animal 2 "sings".']), "12_11": ("test", 12, 11, ["Animal 2 is much bigger."]),
        "13_11": ("train", 13, 11, ['"Both are birds.']),
    }  # fmt: skip

    def damage(files: dict[str, Any]) -> dict[str, str]:
        bad = [
            "cut\toff", line(10, 12, "extra", 1, "x"), line(12, 11, "train", 2, "x"),
            line(10, 11, "train", 3, "x").replace("/photos/10/", "/none/"), line(10, 99, "test", 1, "x"),
        ]  # fmt: skip
        files[table] += "\n".join(bad) + "\n"
        return {
            f"{table}:6": "bad row", "10_12": "bad split", f"{table}:8": "duplicate pair id",
            f"{table}:9": "no pair id", "10_99": "missing file",
        }  # fmt: skip

    return Official("birds_to_words", files, pairs, damage)


def omnidiff() -> Official:
    def row(n: int, **other: Any) -> dict[str, Any]:
        text = f"The lamp number {n} was moved to the left of the desk."
        images = {"before": f"images/{n}_a.jpg", "after": f"images/{n}_b.jpg"}
        return {"id": f"{n:06d}", **images, "captions": [text], **other}

    files: Files = {}
    pairs: Expected = {}
    for subset, base in (("real", 0), ("render", 40)):
        for n, split in enumerate(("train", "val", "test"), start=base):
            entry = row(n, types=["addition"], scene="desk")
            files[f"{subset}/{split}.json"] = json.dumps([entry])
            files |= {f"{subset}/images/{n}_a.jpg": n, f"{subset}/images/{n}_b.jpg": 100 + n}
            pairs[f"{subset}/{n:06d}"] = (split, n, 100 + n, entry["captions"])

    def damage(files: dict[str, Any]) -> dict[str, str]:
        del files["render/images/41_b.jpg"]
        files["real/train.json"] = more(files["real/train.json"], f"[], {json.dumps(row(0))}")
        strange, bare = row(7, types=["explosion"]), {**row(8), "captions": "text"}
        files["real/val.json"] = more(files["real/val.json"], f"{json.dumps(strange)}, {json.dumps(bare)}, null")
        files["render/test.json"] = more(files["render/test.json"], '{"before": "a.jpg"}')
        return {
            "render/000041": "missing file", "real/train.json:1": "bad row", "real/000000": "duplicate pair id",
            **{f"real/val.json:{n}": "bad row" for n in (1, 2, 3)}, "render/test.json:1": "bad row",
        }  # fmt: skip

    return Official("omnidiff", files, pairs, damage, {"render/000041"})


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


OFFICIAL: dict[str, Callable[[], Official]] = {
    make.__name__: make
    for make in (
        clevr_change, clevr_dc, spot_the_diff, spot_the_diff_multi, image_editing_request, levir_mci, birds_to_words,
        omnidiff, instruct_pix2pix,
    )
}  # fmt: skip
"""By the name of the test."""
