"""Every official layout, tiny: through import, validation and evaluation; without images; damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.data.config import ImportConfig
from idc.data.importing import open_import
from idc.data.readers import open_reader
from idc.data.store import iter_rows
from tests.conftest import Command
from tests.data.official_layouts import check_annotations_alone, check_damaged, found, grey, more, round_trip
from tests.data.readers.test_own import import_job, prepare, put
from tests.data.small_sets import OFFICIAL, levir_mci, omnidiff, spot_the_diff


@pytest.mark.parametrize("name", OFFICIAL)
def test_round_trip(name: str, tmp_path: Path) -> None:
    round_trip(OFFICIAL[name](), tmp_path)


@pytest.mark.parametrize("name", OFFICIAL)
def test_annotations_alone(name: str, tmp_path: Path) -> None:
    check_annotations_alone(OFFICIAL[name](), tmp_path)


@pytest.mark.parametrize("name", OFFICIAL)
def test_damage_is_reported_row_by_row(name: str, tmp_path: Path) -> None:
    check_damaged(OFFICIAL[name](), tmp_path)


@pytest.mark.parametrize(
    "format", sorted({*(make().format for make in OFFICIAL.values()), "cdvqa", "qag360k", "vidic"})
)
def test_another_folder_is_refused(format: str, tmp_path: Path) -> None:
    put(tmp_path / "in", {"x.png": 1, "notes.md": "x"})
    with pytest.raises(ValueError, match="layout"):
        open_reader(format, str(tmp_path / "in"), ImportConfig())  # type: ignore[arg-type]


def test_levir_masks_flags_and_types(tmp_path: Path) -> None:
    official = levir_mci()
    prepare(official.write(tmp_path / "in"), tmp_path / "out", "levir")
    rows = {row["pair_id"]: row for row in iter_rows(tmp_path / "out")}
    assert [grey(row["mask"]) for row in rows.values()] == [255, 0, 255, 0, 255]
    assert [json.loads(row["meta"])["changeflag"] for row in rows.values()] == [1, 0, 1, 0, 1]
    assert [row["change_type"] for row in rows.values()] == [None, "none", None, "none", None]
    assert json.loads(rows["val_000003"]["meta"])["before"] == "val/A/val_000003.png"
    labels = [file for file in official.files if "/label/" in file]
    for file in labels:
        del official.files[file]
    manifest = prepare(official.write(tmp_path / "cc"), tmp_path / "cc_out", "levir")
    assert manifest.num_rejected == 0
    assert {row["mask"] for row in iter_rows(tmp_path / "cc_out")} == {None}


def test_omnidiff_keeps_the_parts_apart(tmp_path: Path) -> None:
    """Also where both have files of the same names."""
    official = omnidiff()
    entry = {"id": "1", "before": "images/a.jpg", "after": "images/b.jpg", "captions": ["x"], "types": ["pose", "OCR"]}
    for n, subset in enumerate(("real", "render")):
        official.files[f"{subset}/train.json"] = json.dumps([entry])
        official.files |= {f"{subset}/images/a.jpg": 60 + n, f"{subset}/images/b.jpg": 70 + n}
    prepare(official.write(tmp_path / "in"), tmp_path / "out", "omnidiff")
    pairs = found(tmp_path / "out")
    assert (pairs["real/1"][1:3], pairs["render/1"][1:3]) == ((60, 70), (61, 71))
    rows = {row["pair_id"]: row for row in iter_rows(tmp_path / "out")}
    assert rows["render/1"]["change_type"] is None
    assert rows["render/000041"]["change_type"] == "addition"
    meta = json.loads(rows["render/1"]["meta"])
    assert (meta["subset"], meta["types"]) == ("render", ["pose", "OCR"])


def test_other_annotations_images_or_protocol_are_other_inputs(tmp_path: Path) -> None:
    source = spot_the_diff().write(tmp_path / "in")
    prepare(source, tmp_path / "out", "spot_the_diff")
    multi = {"spot_the_diff": {"protocol": "multi"}}
    folder = put(tmp_path / "own", {"a_before.png": 1, "a_after.png": 2})
    prepare(folder, tmp_path / "own out", "folder")
    assert open_import(import_job(folder, tmp_path / "own out", "folder", **multi))[0].complete, "of another format"
    (source / "change_multi_captions.json").write_text("{}")
    (source / "splits.json").write_text('{"test": [4]}')
    for more_images, settings in ((False, {"images": False}), (False, multi), (True, {})):
        put(source, {"resized_images/6.png": 1} if more_images else {})
        with pytest.raises(ValueError, match="another configuration or other inputs"):
            open_import(import_job(source, tmp_path / "out", "spot_the_diff", **settings))


def test_the_job_as_a_user_runs_it(tmp_path: Path, command: Command) -> None:
    source, out = spot_the_diff().write(tmp_path / "in"), tmp_path / "out"
    given = "--format", "spot_the_diff", "--source", source, "--out", out, "--local", "--max-reject-share=0"
    for _ in range(2):
        done = command("import_dataset", *given)
        assert (done.returncode, "5 pairs" in done.stdout) == (0, True), done.stderr
    (source / "test.json").write_text(more((source / "test.json").read_text(), "3"))
    again = command("import_dataset", *given)
    assert again.returncode == 1
    assert "other inputs" in again.stderr
