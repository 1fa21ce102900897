"""Data sets whose names lead elsewhere: no file outside of the source is read, no host is asked, every row says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ImportConfig
from idc.data.readers import open_reader
from idc.data.store import iter_rows, read_rejects
from tests.data.official_layouts import grey
from tests.data.readers.test_own import prepare, put
from tests.faults.outside import CANARY, Listener, evil_names


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


def folder(name: str) -> dict[str, Any]:
    return {"captions.json": json.dumps({"good": ["a"], "evil": {"mask": name}}), "evil_before.png": 3,
            "evil_after.png": 4, "good_before.png": 3, "good_after.png": 4}  # fmt: skip


LAYOUTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "spot_the_diff": spot,
    "omnidiff": omnidiff,
    "cdvqa": cdvqa,
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
