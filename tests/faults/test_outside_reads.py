"""Data sets whose names lead elsewhere: no file outside of the source is read, no host is asked, every row says why."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.config import AccessConfig, ImportConfig, ValidateJob
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError
from idc.data.readers import open_reader
from idc.data.rows import open_rows
from idc.data.store import iter_rows, read_rejects
from idc.data.validation.run import validate
from tests.data.official_layouts import grey
from tests.data.readers.test_own import picture, prepare, put
from tests.faults.conftest import CANARY, Listener, evil_names
from tests.folders import read_chunks


def spot(name: str) -> dict[str, Any]:
    return {"train.json": json.dumps([{"img_id": n, "sentences": ["a"]} for n in ("good", name.removesuffix(".png"))])}


def omnidiff(name: str) -> dict[str, Any]:
    rows = [("good", "good.png", "good_2.png"), ("evil", "good.png", name)]
    return {"real/train.json": json.dumps([{"id": i, "before": a, "after": b, "captions": ["a"]} for i, a, b in rows])}


def cdvqa(name: str) -> dict[str, Any]:
    return {
        "Train_questions.json": json.dumps({"questions": []}),
        "Train_answers.json": json.dumps({"answers": []}),
        "Train_images.json": json.dumps({"images": [{"id": 1, "file_name": "g.png"}, {"id": 2, "file_name": name}]}),
        "im1/g.png": 1,
        "im2/g.png": 2,
    }


def vidic(name: str) -> dict[str, Any]:
    rows = [("good.mp4", "good_2.mp4"), ("good.mp4", name)]
    return {"checklist.json": json.dumps([{"index": n, "video1_path": a, "video2_path": b, "structured_analysis": {}}
                                          for n, (a, b) in enumerate(rows)])}  # fmt: skip


def folder(name: str) -> dict[str, Any]:
    return {"captions.json": json.dumps({"good": ["a"], "evil": {"mask": name}}), "evil_before.png": 3,
            "evil_after.png": 4, "good_before.png": 3, "good_after.png": 4}  # fmt: skip


LAYOUTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "spot_the_diff": spot,
    "omnidiff": omnidiff,
    "cdvqa": cdvqa,
    "vidic": vidic,
    "folder": folder,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_in_annotation_files(layout: str, tmp_path: Path, secret: Path, host: Listener) -> None:
    for n, name in enumerate(evil_names(secret, host).values()):
        source, out = tmp_path / f"in{n}", tmp_path / f"out{n}"
        put(source, {"good.png": 1, "good_2.png": 2} if layout != "folder" else {})
        put(source, LAYOUTS[layout](name))
        (source / "out.png").symlink_to(secret)
        (source / "out").symlink_to(secret.parent)
        prepare(source, out, layout)
        rows = list(iter_rows(out))
        images = [row[role] for row in rows for role in ("before", "after", "mask") if row[role]]
        assert CANARY not in map(grey, images), name
        assert len(rows) == 1, (name, [row["pair_id"] for row in rows])
        codes = {reject.code for reject in read_rejects(out) if reject.row_id not in ("out", "out.png")}
        allowed = {"outside the source", "missing file", "duplicate pair id", "unplaced image"}
        assert codes <= allowed, (name, codes)
        assert ("outside the source" in codes) or "://" not in name, name
    assert host.connections == 0


def test_a_linked_folder_is_named_and_read_if_it_is_allowed(tmp_path: Path) -> None:
    real = put(tmp_path / "disk", {"before/a.png": 1, "after/a.png": 2})
    source = put(tmp_path / "in", {"b_before.png": 3, "b_after.png": 4})
    (source / "linked").symlink_to(real)
    prepare(source, tmp_path / "out", "folder")
    assert [(r.row_id, r.code) for r in read_rejects(tmp_path / "out")] == [("linked", "outside the source")]
    prepare(source, tmp_path / "links", "folder", follow_links=True)
    assert {row["pair_id"] for row in iter_rows(tmp_path / "links")} == {"b", "linked/a"}
    put(tmp_path / "links-alone", {}).mkdir()
    for role in ("before", "after"):
        (tmp_path / "links-alone" / role).symlink_to(real / role)
    with pytest.raises(ValueError, match=r"before is outside the source: .*follow_links=true"):
        open_reader("folder", str(tmp_path / "links-alone"), ImportConfig())
    official = put(tmp_path / "spot", {"train.json": json.dumps([{"img_id": "good", "sentences": ["a"]}])})
    (official / "images").symlink_to(put(tmp_path / "images", {"good.png": 1, "good_2.png": 2}))
    manifest = prepare(official, tmp_path / "spot-out", "spot_the_diff")
    assert (manifest.has_images, manifest.reject_reasons) == (False, {"outside the source": 1})
    assert any("follow_links=true" in note for note in manifest.extra["notes"])
    assert prepare(official, tmp_path / "spot-links", "spot_the_diff", follow_links=True).has_images


def test_a_manifest_names_parts_of_its_own_folder(tmp_path: Path) -> None:
    for name, value in (("mine", 1), ("other", CANARY)):
        prepare(put(tmp_path / f"{name}-in", {"a_before.png": value, "a_after.png": value}), tmp_path / name, "folder")
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    for place in ("../other/", f"{tmp_path}/other/"):
        manifest["parts"][0]["file"] = place + "part-00000.parquet"
        (tmp_path / "mine" / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ValueError, match="not a manifest of this project"):
            list(iter_rows(tmp_path / "mine"))


def table_of(rows: list[dict[str, str]], path: Path) -> Path:
    """A table in the format of its suffix."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def linked(folder: Path, secret: Path) -> Path:
    """A folder with an image and links out of it, to a file and to a folder."""
    put(folder, {"good.png": 1})
    (folder / "out.png").symlink_to(secret)
    (folder / "out").symlink_to(secret.parent)
    return folder


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_relative_names_in_tables_stay_below_their_folder(
    format: str, tmp_path: Path, secret: Path, host: Listener
) -> None:
    source = linked(tmp_path / "in", secret)
    names = evil_names(secret, host)
    names |= {"credentials": f"s3://me:secret@{host.address}/x.png", "inside": "x/../good.png"}
    names |= {"up from a linked folder": "out/../elsewhere/secret.png"}
    rows = [{"pair_id": key, "before": "good.png", "after": name} for key, name in names.items()]
    path = table_of(rows, source / f"t.{format}")
    prepare(path, tmp_path / "out", format)
    assert {row["pair_id"] for row in iter_rows(tmp_path / "out")} == {"absolute", "file URI"}
    rejects = {reject.row_id: reject.reason for reject in read_rejects(tmp_path / "out")}
    assert rejects["inside"].startswith("missing file"), "there is no folder x"
    for key in ("relative", "relative, deeper", "relative, from a folder of images"):
        assert "allow_outside=true" in rejects[key]
    for key in ("a link", "a linked folder", "up from a linked folder"):
        assert "follow_links=true" in rejects[key]
    assert "allow_remote=true" in rejects["HTTP"]
    assert "options and credentials" in rejects["S3 with a host of its own"]
    assert host.connections == 0
    report = validate(ValidateJob(pairs=str(path), format=format, pictures=0), progress=False)  # type: ignore[arg-type]
    assert report.result.usable_pairs == 2
    prepare(path, tmp_path / "links", format, follow_links=True)
    of_links = {"a link", "a linked folder", "up from a linked folder"}
    assert {row["pair_id"] for row in iter_rows(tmp_path / "links")} == {"absolute", "file URI", *of_links}
    prepare(path, tmp_path / "outside", format, allow_outside=True)
    read = {row["pair_id"] for row in iter_rows(tmp_path / "outside")}
    assert read == {"absolute", "file URI", "relative", *of_links}
    prepare(path, tmp_path / "remote", format, allow_remote=True)
    rejects = {reject.row_id: reject.reason for reject in read_rejects(tmp_path / "remote")}
    for key in ("S3 with a host of its own", "credentials"):
        assert "options and credentials" in rejects[key], "not even with the setting"


def test_the_input_of_captions_follows_the_same_rules(tmp_path: Path, secret: Path, host: Listener) -> None:
    rows = [{"before": "good.png", "after": name} for name in evil_names(secret, host).values()]
    table = table_of(rows, linked(tmp_path / "in", secret) / "t.jsonl")
    outside, gone, read = "outside the source", "missing file", str(CANARY)
    assert after_images(table) == [outside, outside, outside, read, read, *[outside] * 4]
    allowed = after_images(table, AccessConfig(allow_outside=True))
    assert allowed == [read, gone, gone, read, read, outside, outside, read, read]
    assert host.connections == 0


def after_images(table: Path, config: AccessConfig | None = None) -> list[str]:
    """The grey value of each row's after image, or the code of its fault."""
    rows = open_rows(str(table), access_config=config)
    codes = []
    for batch in read_chunks(rows):
        for cell in batch["after"]:
            try:
                codes.append(str(grey(cell_bytes(cell, rows.reader))))
            except ImageError as error:
                codes.append(error.code)
    return codes


def test_a_reject_has_nothing_of_what_the_file_contains(tmp_path: Path) -> None:
    words = b"hunter2 is the password"
    put(
        tmp_path / "in", {"good.png": 1, "secret.txt": words, "p.ppm": b"P6 " + words, "q.png": picture(1)[:33] + words}
    )
    names = ["secret.txt", "p.ppm", "q.png"]
    rows = [{"pair_id": str(n), "before": "good.png", "after": name} for n, name in enumerate(names)]
    (tmp_path / "in" / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare(tmp_path / "in" / "t.jsonl", tmp_path / "out", "jsonl")
    reasons = [reject.reason for reject in read_rejects(tmp_path / "out")]
    assert len(reasons) == 3
    assert not any(word in reason for reason in reasons for word in ("hunter", "unter2", "passw"))
