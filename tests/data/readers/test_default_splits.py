"""Default splits: pairs that share an image, directly or over others, are in one split: an import passes its check."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idc.data.config import ValidateJob
from idc.data.importing import open_import
from idc.data.pipeline import run_local
from idc.data.store import Manifest, iter_rows
from idc.data.validation.run import validate
from tests.data.readers.test_own import import_job, picture, prepare, put


def table(
    folder: Path, pairs: list[tuple[object, object]], split: dict[int, str] | None = None, first: int = 0
) -> Path:
    """A CSV of pairs of images, each of which is one grey value from ``first`` on; pair ``i`` is called ``p{i}``."""
    values = sorted({str(value) for pair in pairs for value in pair})
    put(folder, {f"{value}.png": number for number, value in enumerate(values, first)})
    lines = [f"p{i},{one}.png,{two}.png,{(split or {}).get(i, '')}" for i, (one, two) in enumerate(pairs)]
    (folder / "t.csv").write_text("\n".join(["pair_id,before,after,split", *lines]))
    return folder / "t.csv"


def splits_of(out: Path) -> dict[str, str]:
    return {row["pair_id"]: row["split"] for row in iter_rows(out, ["pair_id", "split"])}


def imported(source: Path, out: Path, **settings: Any) -> tuple[Manifest, dict[str, str]]:
    manifest = prepare(source, out, "csv", **{"chunk_size": 3, **settings})
    result = validate(ValidateJob(pairs=str(out)), progress=False).result
    assert (result.num_leaks, result.problems) == (0, {})
    return manifest, splits_of(out)


def test_a_sequence_is_one_group(tmp_path: Path) -> None:
    """The after image of a pair is the before image of the next: 12 sequences of 8 pairs, in mixed order."""
    pairs = [(10 * n + step, 10 * n + step + 1) for step in range(8) for n in range(12)]
    manifest, splits = imported(table(tmp_path, pairs), tmp_path / "out", val_share=0.25, test_share=0.25)
    assert all(len({splits[f"p{12 * step + n}"] for step in range(8)}) == 1 for n in range(12))
    assert set(manifest.rows_by_split) == {"train", "val", "test"}
    assert manifest.extra["default_splits"] == {"pairs": 96, "groups": 12}


def test_other_names_of_the_same_bytes(tmp_path: Path) -> None:
    """Shared images are found by content, also where the import stores both as PNG."""
    pairs = [(f"a{n}", f"b{n}") for n in range(30)] + [(f"c{n}", f"d{n}") for n in range(30)]
    source = table(tmp_path, pairs)
    for n in range(30):
        (tmp_path / f"c{n}.png").write_bytes((tmp_path / f"b{n}.png").read_bytes())
        for name, format in ((f"d{n}", "TIFF"), (f"a{(n + 1) % 30}", "BMP")):
            stream = io.BytesIO()
            Image.fromarray(np.full((4, 4), 200 + n, np.uint8)).save(stream, format)
            (tmp_path / f"{name}.png").write_bytes(stream.getvalue())
    _, splits = imported(source, tmp_path / "out", val_share=0.3, test_share=0.3)
    assert len(set(splits.values())) == 1, "a chain over all pairs"


def test_given_splits_draw_the_others_and_damaged_images_connect_nothing(tmp_path: Path) -> None:
    pairs = [(1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (8, 9), (10, 11), (11, "bad"), ("bad", 12), (13, "gone")]
    source = table(tmp_path, pairs, {2: "test", 3: "valid", 5: "train", 6: "nonsense"})
    (tmp_path / "bad.png").write_bytes(picture(9)[:30])
    (tmp_path / "gone.png").unlink()
    manifest, splits = prepare(source, tmp_path / "out", "csv", chunk_size=2), splits_of(tmp_path / "out")
    assert manifest.reject_reasons["bad split"] == 1
    assert manifest.num_rejected == 4
    assert splits == {"p0": "test", "p1": "test", "p2": "test", "p3": "val", "p4": "val", "p5": "train"}


def test_a_group_that_is_too_large_is_in_the_largest_split(tmp_path: Path) -> None:
    """Half of the pairs have one before image: as val or test they would be far more than the shares asked for."""
    notes: list[str] = []
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        pairs = [("hub", n) for n in range(20)] + [(f"x{n}", f"y{n}") for n in range(20)]
        source = table(folder / "in", pairs, first=61 * attempt)
        manifest, splits = imported(source, folder / "out", val_share=0.4, test_share=0.1)
        assert {splits[f"p{n}"] for n in range(20)} == {"train"} < set(splits.values())
        notes += manifest.extra["notes"]
    assert set(notes) == {"1 groups of pairs that share images exceed their split: put into train"}


def test_the_order_of_the_pairs_and_the_chunks_do_not_matter_and_without_images_the_names_count(tmp_path: Path) -> None:
    pairs: list[tuple[object, object]] = [(n, n + 100) for n in range(40)]
    _, forward = imported(table(tmp_path / "a", pairs), tmp_path / "a" / "out", chunk_size=4)
    _, backward = imported(table(tmp_path / "b", pairs[::-1]), tmp_path / "b" / "out", chunk_size=9)
    assert {f"p{39 - int(name[1:])}": split for name, split in backward.items()} == forward
    assert set(forward.values()) == {"train", "val", "test"}
    pairs = [(n, n + 1) for n in range(0, 60, 2)] + [(n + 1, n + 100) for n in range(0, 60, 2)]
    prepare(table(tmp_path, pairs), tmp_path / "out", "csv", images=False, val_share=0.3, test_share=0.3)
    splits = splits_of(tmp_path / "out")
    assert all(splits[f"p{n}"] == splits[f"p{n + 30}"] for n in range(30))
    assert len(set(splits.values())) == 3


@pytest.mark.parametrize("first", range(0, 200, 40))
def test_a_small_set_has_validation_and_test_pairs(tmp_path: Path, first: int) -> None:
    """Of six groups with the default shares most draws leave a split without pairs; of two, one is for training."""
    pairs = [(2 * n, 2 * n + 1) for n in range(6)]
    _, splits = imported(table(tmp_path, pairs, first=first), tmp_path / "out")
    assert set(splits.values()) == {"train", "val", "test"}
    assert max(map(list(splits.values()).count, ("val", "test"))) <= 3
    _, splits = imported(table(tmp_path / "two", pairs[:2], first=first), tmp_path / "two" / "out")
    assert ("train" in splits.values(), len(set(splits.values()))) == (True, 2)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_sixty_pairs_have_validation_pairs_of_both_kinds(tmp_path: Path, first: int) -> None:
    """Half changed, said by the change type or by the captions alone; drawn by the pairs, not by their order."""
    kinds = {f"p{n}": n % 2 == 0 for n in range(60)}
    source = table(tmp_path, [(2 * n, 2 * n + 1) for n in range(60)], first=first)
    lines = source.read_text().splitlines()
    typed = [
        lines[0] + ",change_type",
        *(f"{line},{'add' if n % 2 == 0 else 'none'}" for n, line in enumerate(lines[1:])),
    ]
    source.write_text("\n".join(typed))
    manifest, splits = imported(source, tmp_path / "typed")
    counts = Counter(kinds[name] for name, split in splits.items() if split == "val")
    assert counts == {True: 7, False: 7}
    assert manifest.extra["notes"] == []
    captioned = [
        lines[0] + ",captions",
        *(f"{line},{'new car' if n % 2 == 0 else 'same'}" for n, line in enumerate(lines[1:])),
    ]
    source.write_text("\n".join([captioned[0], *captioned[:0:-1]]))
    job = import_job(source, tmp_path / "captioned", "csv", chunk_size=7)
    run_local(*open_import(job, says_no_change=lambda text: text == "same"), progress=False)
    assert splits_of(tmp_path / "captioned") == splits


def test_a_validation_split_that_stays_small_or_of_one_kind_is_said(tmp_path: Path) -> None:
    source = table(tmp_path, [(2 * n, 2 * n + 1) for n in range(48)])
    lines = source.read_text().splitlines()
    source.write_text("\n".join([lines[0] + ",change_type,captions", *(f"{line},add,a car" for line in lines[1:])]))
    manifest, _ = imported(source, tmp_path / "out")
    assert manifest.rows_by_split["val"] == 10
    (note,) = manifest.extra["notes"]
    assert note.startswith("few validation pairs (10 changed): what is best by them may be so by chance")
    source.write_text("\n".join([lines[0] + ",captions", *(f"{line},a car" for line in lines[1:13])]))
    manifest, _ = imported(source, tmp_path / "few")
    assert any(note.startswith("few validation pairs (3 unspecified)") for note in manifest.extra["notes"])
