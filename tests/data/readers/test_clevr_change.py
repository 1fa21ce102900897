"""The official CLEVR-Change layout, whole, in part, and damaged."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ImportConfig
from idc.data.images import decode_image
from idc.data.readers import open_reader
from idc.data.store import iter_rows, read_rejects
from tests.data.readers.test_own import prepare, put

CAPTION_FILES = ("change_captions.json", "no_change_captions.json", "change_captions_by_IOU.json")
ROLES = {"images/CLEVR_default": 0, "sc_images/CLEVR_semantic": 100, "nsc_images/CLEVR_nonsemantic": 200}


def make(folder: Path, without: tuple[str, ...] = (), triples: range = range(6)) -> Path:
    """A data set whose ``splits.json`` lists triples 0 to 9, with the images of ``triples``."""
    files: dict[str, Any] = {f"{role}_{n:06d}.png": base + n for role, base in ROLES.items() for n in triples}
    files |= {
        "splits.json": json.dumps({"train": [5, 1, 2, 0, 6, 7], "val": [3], "test": [4, 8, 9]}),
        "type_mapping.json": json.dumps({"color": [f"{n:06d}.png" for n in range(5)], "drop": ["000005.png"]}),
        "change_captions.json": json.dumps({f"CLEVR_default_{n:06d}.png": [f"changed {n}", "x"] for n in range(10)}),
        "no_change_captions.json": json.dumps({f"CLEVR_default_{n:06d}.png": ["no change"] for n in range(10)}),
        "change_captions_by_IOU.json": json.dumps({str(n): n / 10 for n in range(10)}),
    }
    return put(folder, {name: content for name, content in files.items() if name not in without})


def test_two_pairs_of_every_triple(tmp_path: Path) -> None:
    manifest = prepare(make(tmp_path / "in"), tmp_path / "out", "clevr_change", chunk_size=4)
    rows = {r["pair_id"]: r for r in iter_rows(tmp_path / "out")}
    assert list(rows) == [f"{n:06d}{kind}" for n in range(6) for kind in ("c", "nc")]
    assert manifest.rows_by_split == {"test": 2, "train": 8, "val": 2}
    assert manifest.num_chunks == 3
    assert manifest.extra["absent_triples"] == 4
    assert manifest.num_without_captions == 0
    change, same = rows["000005c"], rows["000005nc"]
    assert [decode_image(change[role])[0, 0, 0] for role in ("before", "after")] == [5, 105]
    assert [decode_image(same[role])[0, 0, 0] for role in ("before", "after")] == [5, 205]
    assert (change["captions"], same["captions"]) == (["changed 5", "x"], ["no change"])
    assert (change["change_type"], same["change_type"]) == ("drop", "none")
    assert json.loads(change["meta"]) == {"triple": 5, "viewpoint_iou": 0.5}
    assert json.loads(same["meta"]) == {"triple": 5}
    assert (rows["000003c"]["split"], rows["000004nc"]["split"]) == ("val", "test")


def test_absent_files_are_noted(tmp_path: Path) -> None:
    absent = ("change_captions.json", "no_change_captions.json", "change_captions_by_IOU.json", "type_mapping.json")
    manifest = prepare(make(tmp_path / "in", absent), tmp_path / "out", "clevr_change")
    assert manifest.num_without_captions == 12
    notes = " ".join(manifest.extra["notes"])
    assert all(name in notes for name in absent)
    assert "4 of the 10 triples" in notes
    assert {r["change_type"] for r in iter_rows(tmp_path / "out", ["change_type"])} == {None, "none"}


def test_strict_rejects_what_is_absent(tmp_path: Path) -> None:
    manifest = prepare(make(tmp_path / "in"), tmp_path / "out", "clevr_change", strict=True)
    assert manifest.num_rows == 12
    assert manifest.reject_reasons == {"missing partner": 8}


def test_half_a_triple_loses_only_its_pair(tmp_path: Path) -> None:
    source = make(tmp_path / "in")
    (source / "sc_images/CLEVR_semantic_000001.png").unlink()
    (source / "nsc_images/CLEVR_nonsemantic_000002.png").write_bytes(b"")
    prepare(source, tmp_path / "out", "clevr_change")
    assert read_rejects(tmp_path / "out") == [
        ("000001c", "missing partner: sc_images/CLEVR_semantic_000001.png"),
        ("000002nc", "empty file: after, nsc_images/CLEVR_nonsemantic_000002.png"),
    ]
    assert "000001nc" in {r["pair_id"] for r in iter_rows(tmp_path / "out", ["pair_id"])}


def test_the_fingerprint_is_of_the_input(tmp_path: Path) -> None:
    source = str(make(tmp_path / "in"))
    one = open_reader("clevr_change", source, ImportConfig())
    assert open_reader("clevr_change", source, ImportConfig()).fingerprint == one.fingerprint
    copy = pickle.loads(pickle.dumps(one))
    assert copy.read(0) == one.read(0)
    (Path(source) / "change_captions.json").write_text('{"CLEVR_default_000001.png": ["other"]}')
    assert open_reader("clevr_change", source, ImportConfig()).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"holdout": [1]}', "'holdout' is not one of train, val, test"),
        ("{", r"splits\.json is not JSON"),
        ("[]", r"splits\.json holds a list"),
        ("{}", "it is empty"),
    ],
)
def test_without_any_split_nothing_can_be_read(tmp_path: Path, content: str, message: str) -> None:
    source = make(tmp_path / "in")
    (source / "splits.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        open_reader("clevr_change", source, ImportConfig())


@pytest.mark.parametrize(
    ("name", "content", "rejected"),
    [
        (
            "splits.json",
            '{"train": [0, 1, 2, 5, 6, 7, 8], "val": [1, "x", 3], "test": [4], "extra": [9]}',
            {
                "splits.json:val:0": "duplicate pair id: 1 is in train and in val",
                "splits.json:val:1": "no pair id: 'x'",
                "9": "bad split: 'extra' is not one of train, val, test",
                **{f"{name}:9": "bad split: triple 9 is in none of the splits" for name in CAPTION_FILES},
            },
        ),
        ("type_mapping.json", "[]", {"type_mapping.json": "bad file: type_mapping.json holds a list, not an object"}),
        (
            "type_mapping.json",
            '{"color": ["x", "000001.png"], "drop": ["000001.png"], "add": 3}',
            {
                "type_mapping.json:color:0": "bad row: 'x' names no triple",
                "type_mapping.json:drop:0": "bad row: triple 1 is in 'color' and in 'drop'",
                "type_mapping.json:add": "bad row: 'add' is no list of triples",
            },
        ),
        (
            "change_captions.json",
            '{"CLEVR_default_000000.png": ["a"], "x.png": ["b"], "CLEVR_default_000001.png": 3}',
            {
                "change_captions.json:x.png": "bad row: 'x.png' names no triple",
                "000001c": "bad row: captions is 3, not a list of texts",
            },
        ),
    ],
)
def test_damaged_entries_are_rejected_and_the_rest_is_read(
    tmp_path: Path, name: str, content: str, rejected: dict[str, str]
) -> None:
    source = make(tmp_path / "in")
    (source / name).write_text(content)
    manifest = prepare(source, tmp_path / "out", "clevr_change", chunk_size=4)
    assert dict(read_rejects(tmp_path / "out")) == rejected
    assert manifest.num_rows == 12 - ("000001c" in rejected)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no splits\.json"):
        open_reader("clevr_change", tmp_path, ImportConfig())
    with pytest.raises(ValueError, match="has no images named"):
        open_reader("clevr_change", make(tmp_path / "in", triples=range(0)), ImportConfig(strict=True))


def test_annotations_alone(tmp_path: Path) -> None:
    """Without images, and with images that are not to be read, all triples of the annotations are there."""
    for number, (triples, images) in enumerate([(range(0), True), (range(6), False)]):
        out = tmp_path / f"out{number}"
        manifest = prepare(make(tmp_path / f"in{number}", triples=triples), out, "clevr_change", images=images)
        assert (manifest.num_rows, manifest.extra["images"], manifest.extra["absent_triples"]) == (20, False, 0)
        assert "annotations alone" in manifest.extra["notes"][-1]
        row = next(r for r in iter_rows(out) if r["pair_id"] == "000009c")
        assert (row["before"], row["after"], row["mask"], row["captions"]) == (b"", b"", None, ["changed 9", "x"])
        with pytest.raises(ValueError, match="annotations alone"):
            list(iter_rows(out, ["pair_id", "before"]))
