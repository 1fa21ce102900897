"""One's own pairs: every documented layout, on any filesystem, with the caption of the right pair."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from idc.data.config import ImportJob, ValidateJob
from idc.data.images import FORMATS, IMAGE_SUFFIXES, decode_image, encode_png
from idc.data.importing import open_import
from idc.data.pipeline import run_local
from idc.data.rows import open_rows
from idc.data.store import Manifest, iter_rows, read_manifest, read_rejects
from idc.data.validation.run import validate
from tests.folders import read_chunks


def picture(value: int) -> bytes:
    return encode_png(np.full((6, 8, 3), value, np.uint8))


def put(folder: Path, names: dict[str, int | str | bytes]) -> Path:
    for name, content in names.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
        path.write_bytes(picture(int(content)) if data is None else data)  # type: ignore[arg-type]
    return folder


def import_job(source: object, out: Path, format: str, **more: Any) -> ImportJob:
    return ImportJob(source=str(source), out=str(out), format=format, **{"max_reject_share": 1.0, **more})  # type: ignore[arg-type]


def prepare(source: object, out: Path, format: str, **more: Any) -> Manifest:
    job = import_job(source, out, format, **more)
    folder, reader, stages = open_import(job)
    reader = pickle.loads(pickle.dumps(reader))
    return run_local(folder, reader, stages, progress=False, max_reject_share=job.max_reject_share, extra=reader.extra)


def imported(source: Path, format: str, **more: Any) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The captions of the pairs and the reasons of the rejects of what is imported into ``out`` beside the source."""
    prepare(source, source.parent / "out", format, **more)
    pairs = {row["pair_id"]: row["captions"] for row in iter_rows(source.parent / "out")}
    return pairs, dict(read_rejects(source.parent / "out"))


def metas(out: Path) -> dict[str, Any]:
    """The meta of every pair, as a strict reader of JSON takes it."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return {row["pair_id"]: json.loads(row["meta"], parse_constant=refuse) for row in iter_rows(out)}


def result(out: Path) -> dict[str, tuple[int, int, list[str]]]:
    """Grey value of before and after, and the captions, of every pair."""
    return {
        r["pair_id"]: (int(decode_image(r["before"])[0, 0, 0]), int(decode_image(r["after"])[0, 0, 0]), r["captions"])
        for r in iter_rows(out)
    }


FOLDERS: dict[str, dict[str, int | str | bytes]] = {
    "two folders": {
        "before/x.png": 1, "after/x.png": 2, "before/y.png": 3, "after/y.jpg": 3, "x.txt": "moved\n\ngone\n",
    },
    "A and B": {"A/x.png": 1, "B/x.png": 2, "A/y.png": 3, "B/y.png": 3, "captions/x.txt": "moved\ngone"},
    "endings": {"x_before.png": 1, "x_after.png": 2, "y_before.png": 3, "y_after.png": 3, "x.txt": "moved\ngone"},
    "A and B endings": {
        "x_A.png": 1, "x_B.png": 2, "y_A.png": 3, "y_B.png": 3, "captions.json": '{"x": ["moved", "gone"]}',
    },
    "file names in captions.json": {
        "before/x.png": 1, "after/x.png": 2, "before/y.png": 3, "after/y.png": 3,
        "captions.json": '{"x.png": {"captions": ["moved", "gone"], "change_type": "move", "split": "val"}}',
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", FOLDERS)
def test_folders(tmp_path: Path, layout: str) -> None:
    put(tmp_path / "in", {**FOLDERS[layout], "README.md": "about", ".hidden/z_before.png": 1})
    manifest = prepare(tmp_path / "in", tmp_path / "out", "folder")
    after_y = result(tmp_path / "out")["y"][1]
    assert abs(after_y - 3) <= 1
    assert result(tmp_path / "out") == {"x": (1, 2, ["moved", "gone"]), "y": (3, after_y, [])}
    assert (manifest.num_rejected, manifest.num_without_captions) == (0, 1)
    if layout == "file names in captions.json":
        row = next(row for row in iter_rows(tmp_path / "out") if row["pair_id"] == "x")
        assert (row["change_type"], row["split"]) == ("move", "val")


def test_split_folders_and_masks(tmp_path: Path) -> None:
    names: dict[str, int | str | bytes] = {
        f"{split}/{role}/1.png": value
        for value, split in enumerate(("train", "valid", "test"))
        for role in ("before", "after", "mask")
    }
    put(tmp_path / "in", {**names, "valid/captions.json": '{"1": "of val", "2": "of nobody"}'})
    manifest = prepare(tmp_path / "in", tmp_path / "out", "folder")
    assert manifest.rows_by_split == {"test": 1, "train": 1, "val": 1}
    rows = {r["pair_id"]: r for r in iter_rows(tmp_path / "out")}
    assert rows["valid/1"]["captions"] == ["of val"]
    assert rows["valid/1"]["split"] == "val"
    assert decode_image(rows["test/1"]["mask"])[0, 0, 0] == 2
    assert manifest.extra["captions_without_pair"] == 1
    assert "valid/2" in manifest.extra["notes"][0]


def test_folder_rejects(tmp_path: Path) -> None:
    put(tmp_path / "in", {"lost.png": 1, "notes.txt": "hello"})
    with pytest.raises(ValueError, match="has no pairs: put the images into before/ and after/"):
        prepare(tmp_path / "in", tmp_path / "out", "folder")
    images = ("before/x.png", "after/x.png", "before/y.png", "before/z.png", "before/z.jpg", "after/z.png")
    put(tmp_path / "in", dict.fromkeys(images, 1))
    (tmp_path / "in" / "before").joinpath(b"\xff.png".decode("utf-8", "surrogateescape")).write_bytes(picture(1))
    (tmp_path / "in" / "after").joinpath(b"\xff.png".decode("utf-8", "surrogateescape")).write_bytes(picture(1))
    prepare(tmp_path / "in", tmp_path / "out", "folder", chunk_size=2)
    assert list(result(tmp_path / "out")) == ["x"]
    assert read_rejects(tmp_path / "out") == [
        ("y", "missing partner: there is no after image for before/y.png"),
        ("z", "duplicate pair id: before/z.jpg, before/z.png"),
        ("\\xff", "not UTF-8: pair_id, \\xff"),
        ("lost.png", "unplaced image: it is neither a before nor an after image"),
    ]


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_every_image_that_can_be_read_is_read(tmp_path: Path, suffix: str) -> None:
    """Of each suffix a real file of its format, also in capitals."""
    [format] = [format for format, suffixes in FORMATS.items() if suffix in suffixes]
    for role, value in (("before", 40), ("after", 200)):
        (tmp_path / "in" / role).mkdir(parents=True)
        image = Image.fromarray(np.full((16, 24, 3), value, np.uint8))
        image.save(tmp_path / "in" / role / f"x{suffix.upper()}", "MPO" if suffix == ".mpo" else format)
    manifest = prepare(tmp_path / "in", tmp_path / "out", "folder")
    [(before, after, _)] = result(tmp_path / "out").values()
    assert (abs(before - 40) < 3, abs(after - 200) < 3, manifest.extra["notes"]) == (True, True, [])


def test_what_is_not_read_is_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path / "in", FOLDERS["two folders"])
    put(tmp_path / "in", {
        "before/z.heic": "heic", "after/z.heic": "heic", "before/x.svg": "<svg/>", "logo.svg": "<svg/>",
        "before/notes.docx": "words", "list.csv": "a,b", "README.txt": "words", "captions/q.txt": "of none",
        ".DS_Store": "mac", "_old/before/x.png": 9, "validation.json": "{}",
    })  # fmt: skip
    manifest = prepare(tmp_path / "in", tmp_path / "out", "folder")
    assert set(result(tmp_path / "out")) == {"x", "y"}
    [reject] = read_rejects(tmp_path / "out")
    assert (reject.row_id, reject.code) == ("z", "not an image")
    assert "none of PNG, JPEG" in reject.reason
    notes = "\n".join(manifest.extra["notes"])
    told = ["2 files that are none of PNG", "2 .svg", "2 files that are neither", "1 .docx", "2 files that are hidden"]
    for text in (*told, "2 files that are captions of no pair"):
        assert text in notes, notes
    validated = validate(ValidateJob(pairs=str(tmp_path / "in"), format="folder"), progress=False).result
    assert not validated.ok
    assert validated.notes == manifest.extra["notes"]


def table_images(folder: Path) -> None:
    put(folder, {f"images/{n}.png": n for n in range(1, 7)})


def test_csv(tmp_path: Path) -> None:
    table_images(tmp_path)
    other = (tmp_path / "images" / "2.png").as_uri()
    lines = [
        "\ufeffpair_id,before,after,captions,caption,change_type,split,camera",
        f'p1,images/1.png,{other},"a ""red"" cube, small|gone",,color,train,left',
        "",
        'p2,images/3.png,images/4.png,,"first, of p2",,validation,',
        "p3,images/5.png,images/6.png,,,,,",
        "p2,images/3.png,images/4.png,,second of p2,,,",
        "p1,images/1.png,images/4.png,,no,,,",
        ",images/1.png,images/4.png,,no,,,",
        "p4,images/1.png,images/9.png,,no,,,",
        "p5,images/1.png,images,,no,,,",
        "p8,images/1.png,images/2.png,,no,,,,,,",
    ]
    (tmp_path / "t.csv").write_bytes("\r\n".join(lines).encode())
    manifest = prepare(tmp_path / "t.csv", tmp_path / "out", "csv", chunk_size=2)
    assert result(tmp_path / "out") == {
        "p1": (1, 2, ['a "red" cube, small', "gone"]),
        "p2": (3, 4, ["first, of p2", "second of p2"]),
        "p3": (5, 6, []),
    }
    rows = {r["pair_id"]: r for r in iter_rows(tmp_path / "out")}
    assert json.loads(rows["p1"]["meta"]) == {"camera": "left"}
    assert (rows["p1"]["change_type"], rows["p1"]["source"], rows["p2"]["split"]) == ("color", "t.csv:2", "val")
    assert manifest.extra["notes"][0] == "columns kept in meta: camera"
    rejects = read_rejects(tmp_path / "out")
    assert [(r.row_id, r.code) for r in rejects] == [
        ("p1", "duplicate pair id"), ("t.csv:8", "no pair id"), ("p4", "missing file"), ("p5", "unreadable file"),
        ("t.csv:11", "bad row"),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
def test_rows_without_ids_are_named_by_their_number_as_in_captioning(tmp_path: Path, suffix: str) -> None:
    table_images(tmp_path)
    rows = [{"before": f"images/{n}.png", "after": f"images/{n + 1}.png", "caption": f"c{n}"} for n in range(1, 6)]
    rows[2]["after"] = "images/none.png"
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("\n".join(["before,after,caption", *(",".join(row.values()) for row in rows)]))
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(lines if suffix == ".jsonl" else json.dumps(rows, indent=1))
    manifest = prepare(path, tmp_path / "out", "auto", chunk_size=2)
    assert result(tmp_path / "out") == {str(n): (n + 1, n + 2, [f"c{n + 1}"]) for n in (0, 1, 3, 4)}
    assert [(r.row_id, r.code) for r in read_rejects(tmp_path / "out")] == [("2", "missing file")]
    assert any("named by their rows" in note for note in manifest.extra["notes"])
    captioned = [name for batch in read_chunks(open_rows(path)) for name in batch["pair_id"]]
    assert captioned == ["0", "1", "2", "3", "4"]


def test_jsonl(tmp_path: Path) -> None:
    table_images(tmp_path)
    pair = {"before": "images/1.png", "after": "images/2.png"}
    first = {"captions": ["one", " ", "two"], "meta": {"iou": 0.5}, "mask": "images/6.png", "n": 3}
    lines: list[Any] = [
        {"pair_id": "p1", **pair, **first},
        {"pair_id": "p2", **pair, "caption": "one", "split": "test"},
        {"pair_id": "p2", **pair, "caption": "two"},
        {"pair_id": 3, **pair},
        "not an object",
        {"pair_id": "p4", **pair, "captions": [1]},
        {"pair_id": "p5", **pair, "mask": "images/7.png"},
        {"pair_id": "p6", **pair, "meta": [1]},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n{broken\n\n"
    (tmp_path / "t.jsonl").write_bytes(text.encode() + b'{"pair_id": "p7", "caption": "\xff"}\n')
    prepare(tmp_path / "t.jsonl", tmp_path / "out", "jsonl", chunk_size=3)
    captions = {name: pair[2] for name, pair in result(tmp_path / "out").items()}
    assert captions == {"p1": ["one", "two"], "p2": ["one", "two"], "3": []}
    row = next(iter_rows(tmp_path / "out"))
    assert json.loads(row["meta"]) == {"iou": 0.5, "n": 3}
    assert decode_image(row["mask"])[0, 0, 0] == 6
    assert [(r.row_id, r.code) for r in read_rejects(tmp_path / "out")] == [
        ("t.jsonl:5", "bad row"), ("p4", "bad row"), ("p5", "missing file"), ("p6", "bad row"),
        ("t.jsonl:9", "bad row"), ("p7", "not UTF-8"),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["bytes", "paths", "structs"])
def test_parquet(tmp_path: Path, how: str) -> None:
    table_images(tmp_path)
    cell: Any = {
        "bytes": lambda n: picture(n),
        "paths": lambda n: f"images/{n}.png",
        "structs": lambda n: {"bytes": picture(n), "path": f"{n}.png"},
    }[how]
    rows = [
        {"pair_id": f"p{i}", "before": cell(i % 5 + 1), "after": cell(i % 5 + 2), "captions": [f"c{i}"]}
        for i in range(10)
    ]
    rows[7]["pair_id"] = "p2"
    rows[8]["after"] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet", row_group_size=2)
    prepare(tmp_path / "t.parquet", tmp_path / "out", "parquet", chunk_size=3)
    assert result(tmp_path / "out") == {f"p{i}": (i % 5 + 1, i % 5 + 2, [f"c{i}"]) for i in (0, 1, 2, 3, 4, 5, 6, 9)}
    assert [(r.row_id, r.code) for r in read_rejects(tmp_path / "out")] == [
        ("p2", "duplicate pair id"), ("p8", "missing file"),
    ]  # fmt: skip
    assert read_manifest(tmp_path / "out").num_chunks == 4


def test_a_table_may_name_uris(tmp_path: Path) -> None:
    with fsspec.open(f"memory://{tmp_path.name}/deep/1.png", "wb") as stream:
        stream.write(picture(1))
    host = f"memory://{tmp_path.name}"
    rows = ["pair_id,before,after", f"p,{host}/deep/1.png,{host}/deep/1.png", f"q,nothing://x/y.png,{host}/no.png"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    prepare(tmp_path / "t.csv", tmp_path / "refused", "csv")
    assert [r.code for r in read_rejects(tmp_path / "refused")] == ["outside the source"] * 2
    prepare(tmp_path / "t.csv", tmp_path / "out", "csv", allow_remote=True)
    assert result(tmp_path / "out") == {"p": (1, 1, [])}
    assert [r.code for r in read_rejects(tmp_path / "out")] == ["unreadable file"]
