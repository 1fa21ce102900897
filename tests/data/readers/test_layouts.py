"""``format=auto``: every layout is recognised by its files, and no other is taken in its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ValidateJob
from idc.data.readers.layouts import find_layout
from idc.data.validation.run import validate
from tests.data import container_sets
from tests.data.official_layouts import Official
from tests.data.readers import test_more_readers as more_readers
from tests.data.readers.test_own import FOLDERS, prepare, put
from tests.data.small_sets import OFFICIAL


def found(path: Path) -> tuple[str, dict[str, Any]]:
    layout = find_layout(str(path))
    return layout.format, {name: section.model_dump() for name, section in layout.settings.items()}


def expected(official: Official) -> tuple[str, dict[str, Any]]:
    settings = {"spot_the_diff": {"protocol": "single"}} if official.format == "spot_the_diff" else {}
    return official.format, {**settings, **official.settings}


@pytest.mark.parametrize("name", [*OFFICIAL, *container_sets.OFFICIAL])
def test_official_layouts_whole_and_damaged(name: str, tmp_path: Path) -> None:
    official = {**OFFICIAL, **container_sets.OFFICIAL}[name]()
    assert found(official.write(tmp_path / "whole")) == expected(official)
    damaged, _ = official.write_damaged(tmp_path / "damaged")
    assert found(damaged) == expected(official)


def test_questions_and_saved_sets(tmp_path: Path) -> None:
    folders = {
        "cdvqa": more_readers.cdvqa(tmp_path / "cdvqa"),
        "qag360k": more_readers.qag360k(tmp_path / "qag360k"),
        "hugging_face": more_readers.saved(tmp_path / "saved", more_readers.hugging_rows()),
    }
    assert {name: found(folder)[0] for name, folder in folders.items()} == {name: name for name in folders}


@pytest.mark.parametrize("layout", FOLDERS)
def test_a_folder_of_pairs(layout: str, tmp_path: Path) -> None:
    assert found(put(tmp_path, {**FOLDERS[layout], "README.md": "about"})) == ("folder", {})


def test_files(tmp_path: Path) -> None:
    names = {"t.csv": "csv", "t.TSV": "csv", "t.jsonl": "jsonl", "t.parquet": "parquet"}
    put(tmp_path, dict.fromkeys([*names, "t.dat"], "x"))
    put(tmp_path, {"parts/0.parquet": "x"})
    assert {name: found(tmp_path / name)[0] for name in names} == names
    assert found(tmp_path / "parts") == ("parquet", {})
    with pytest.raises(ValueError, match=r"no format has the suffix '\.dat'; give format="):
        find_layout(str(tmp_path / "t.dat"))
    with pytest.raises(ValueError, match="no such file or folder"):
        find_layout(str(tmp_path / "nowhere"))


def test_the_images_of_an_official_layout_are_no_folder_of_pairs(tmp_path: Path) -> None:
    """LEVIR's images are in A and B, as those of one's own folder may be."""
    assert found(OFFICIAL["levir_mci"]().write(tmp_path / "levir"))[0] == "levir"
    shutil.rmtree(tmp_path / "levir" / "images" / "test")
    (tmp_path / "levir" / "LevirCCcaptions.json").unlink()
    assert found(tmp_path / "levir")[0] == "folder"


def test_where_two_fit_both_are_named(tmp_path: Path) -> None:
    single, multi = OFFICIAL["spot_the_diff"](), OFFICIAL["spot_the_diff_multi"]()
    single.write(tmp_path / "spot")
    multi.write(tmp_path / "spot")
    protocols = r"protocol=multi \(change_multi.*protocol=single \(train.json"
    with pytest.raises(ValueError, match=rf"several formats match its files, give one of: .*{protocols}"):
        validate(ValidateJob(pairs=str(tmp_path / "spot")), progress=False)
    put(tmp_path / "own", {"before/x.png": 1, "after/x.png": 2, "pairs.csv": "pair_id,before,after\nx,1.png,2.png\n"})
    with pytest.raises(ValueError, match=r"format=folder \(before/x.png, after/x.png\); format=csv \(pairs.csv\)"):
        find_layout(str(tmp_path / "own"))


def test_where_none_fits(tmp_path: Path) -> None:
    put(tmp_path, {"a/1.png": 1, "x/2.png": 2, "splits.json": '{"train": [1]}', "train.json": '[{"question": "?"}]'})
    with pytest.raises(ValueError, match="no format matches its files"):
        find_layout(str(tmp_path))


def test_a_table_in_a_folder_is_named(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"images/1.png": 1, "pairs.jsonl": '{"pair_id": "x", "before": "images/1.png", "after": "images/1.png"}'},
    )
    with pytest.raises(ValueError, match=r"give the table itself: .*/pairs.jsonl"):
        find_layout(str(tmp_path))


def test_an_import_recognises_the_format_and_stores_it(tmp_path: Path) -> None:
    put(tmp_path / "disk", {"before/x.png": 1, "after/x.png": 2})
    (tmp_path / "in").mkdir()
    for role in ("before", "after"):
        (tmp_path / "in" / role).symlink_to(tmp_path / "disk" / role)
    with pytest.raises(ValueError, match=r"in/after is a link .*; follow_links=true follows it"):
        prepare(tmp_path / "in", tmp_path / "out", "auto")
    manifest = prepare(tmp_path / "in", tmp_path / "out", "auto", follow_links=True)
    assert (manifest.num_rows, manifest.config["format"]) == (1, "folder")
    assert prepare(tmp_path / "in", tmp_path / "out", "folder", follow_links=True) == manifest, "the same import"
    with pytest.raises(ValueError, match="is a data set folder already"):
        prepare(tmp_path / "out", tmp_path / "again", "auto")
