"""Folders that cannot be written, and parts that are damaged or foreign: one line with the file and what to do."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.config import ValidateJob
from idc.data.images import encode_png
from idc.data.importing import open_import
from idc.data.pipeline import FolderSource, run_local
from idc.data.rows import open_rows
from idc.data.store import MappedRows, iter_rows, read_manifest
from idc.data.validation.run import validate
from tests.data.readers.test_own import import_job, prepare, put
from tests.folders import read_chunks

_LIMIT = 60_000


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pairs of noise; a part of four has more than :data:`_LIMIT` bytes."""
    random = np.random.default_rng(0)
    names = [f"train/{role}/{n}.png" for n in range(8) for role in ("before", "after")]
    noise = {name: encode_png(random.integers(0, 256, (64, 64, 3), np.uint8)) for name in names}
    return put(tmp_path_factory.mktemp("images"), {**noise})


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk, writing more fails in the middle of a file (with EFBIG in place of ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_an_import_and_the_same_command_continues(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        largest_file(_LIMIT),
        pytest.raises(ValueError, match=rf"^{out} cannot be written \(File too large\); .*choose another folder$"),
    ):
        prepare(images, out, "folder", chunk_size=4)
    assert sorted(path.name for path in out.iterdir() if path.name[:8] != ".running") == ["manifest.json"]
    assert prepare(images, out, "folder", chunk_size=4).num_rows == 8


def test_a_folder_that_may_not_be_written(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in ("/sys/pairs", "/proc/pairs", tmp_path / "file", tmp_path / "file" / "pairs"):
        with pytest.raises(ValueError, match=rf"^{out} cannot be written \(.*\); .*choose another folder"):
            open_import(import_job(images, Path(out), "folder"))


def cut(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:1000])


def empty(part: Path) -> None:
    part.write_bytes(b"")


def a_table_of_others(part: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3, 4]}), part)


def fewer_rows(part: Path) -> None:
    pq.write_table(pq.read_table(part).slice(0, 2), part)


def other_types(part: Path) -> None:
    table = pq.read_table(part)
    pq.write_table(table.set_column(table.schema.get_field_index("before"), "before", pa.array(["x.png"] * 4)), part)


def gone(part: Path) -> None:
    part.unlink()


READERS: dict[str, Callable[[str], object]] = {
    "a job on chunks": lambda path: read_chunks(FolderSource(path)),
    "a stream": lambda path: list(iter_rows(path)),
    "a stream of one column": lambda path: list(iter_rows(path, ["captions"])),
    "captioning": lambda path: read_chunks(open_rows(path)),
    "validation": lambda path: validate(ValidateJob(pairs=path, pictures=0), progress=False),
    "training": MappedRows,
}


@pytest.mark.parametrize("damage", [cut, empty, a_table_of_others, fewer_rows, other_types, gone])
def test_a_part_that_is_not_what_was_written(damage: Callable[[Path], None], images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out", "folder", chunk_size=4)
    damage(tmp_path / "out" / "part-00001.parquet")
    for name, read in READERS.items():
        with pytest.raises(ValueError, match=r"out/part-00001\.parquet .*; (copy|build) (it|the folder) again"):
            pytest.fail(f"{name} read {read(str(tmp_path / 'out'))}")


def test_a_part_of_others_in_an_import_that_continues(images: Path, tmp_path: Path) -> None:
    folder, source, stages = open_import(import_job(images, tmp_path / "out", "folder", chunk_size=4))
    a_table_of_others(tmp_path / "out" / "part-00001.parquet")
    with pytest.raises(ValueError, match=r"out/part-00001\.parquet is not a part that this job wrote; delete the file"):
        run_local(folder, source, stages, progress=False)
    assert not read_manifest(tmp_path / "out").complete
