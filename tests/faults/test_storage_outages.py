"""Data jobs whose images or whose folder lie in object storage that refuses for a while: an error of the store is no
fault of a row. Against a real S3 server."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from moto.server import DomainDispatcherApplication

from idc.captioning.table import CaptionJob, caption_rows
from idc.config import command
from idc.data import importing, object_store
from idc.data.config import ImportConfig, ImportJob
from idc.data.files import locate
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError, encode_png
from idc.data.importing import open_import
from idc.data.object_store import StorageError
from idc.data.pipeline import ChunkResult, run_local
from idc.data.readers import open_reader
from idc.data.readers.default_splits import with_default_splits
from idc.data.rows import open_rows
from idc.data.store import Manifest, iter_rows, read_rejects
from idc.mining.image_collection import ImageCollection
from idc.report.page import write_texts
from tests.object_store import Store, store

PAIRS = 10
FAULTS = {"p2": "missing file", "p7": "not an image"}
QUIET = {"progress": False, "max_reject_share": 0.5}


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    """With a table of pairs and their images; one of these is missing, one is none."""
    with store() as bucket:
        bucket.request("PUT", "/idc/in/pairs.csv", table(["train", "val", "test"]))
        bucket.request("PUT", "/idc/in/no_splits.csv", table([""]))
        for number in range(PAIRS):
            for role, value in (("before", 10 * number), ("after", 255 - number)):
                data = encode_png(np.full((20, 30, 3), value, np.uint8))
                fault = FAULTS.get(f"p{number}") if role == "after" else None
                if fault != "missing file":
                    path = f"/idc/in/{role}/{number}.png"
                    bucket.request("PUT", path, b"<html>" * 9 if fault == "not an image" else data)
            bucket.request("PUT", f"/idc/in/captions/{number}.txt", b"a car has left")
        yield bucket


@pytest.fixture(autouse=True)
def answering(s3: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store answers again as soon as somebody waits for it, and when the test ends."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: s3.answer())
    monkeypatch.setattr(object_store, "time", clock)
    monkeypatch.setattr(object_store, "_outages", {})
    yield
    s3.answer()


def table(splits: list[str]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["pair_id", "before", "after", "caption", "split"])
    for number in range(PAIRS):
        split = splits[number % len(splits)]
        rows.writerow([f"p{number}", f"before/{number}.png", f"after/{number}.png", "a car has left", split])
    return text.getvalue().encode()


def import_job(out: str, source: str = "s3://idc/in/pairs.csv") -> ImportJob:
    return ImportJob(source=source, format="csv", out=out, chunk_size=2)


def imported(job: ImportJob, watch: Callable[[ChunkResult], None] | None = None) -> Manifest:
    folder, source, stages = open_import(job)
    return run_local(folder, source, stages, watch=watch, **QUIET)


def once(action: Callable[[], Any]) -> Callable[[ChunkResult], None]:
    """Called with results: the action, after the first one."""
    actions = [action]
    return lambda result: actions.pop()() if actions else None


def digest(out: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    return list(iter_rows(out)), {reject.row_id: reject.code for reject in read_rejects(out)}


@pytest.mark.parametrize(("status", "code"), [(None, ""), (503, "SlowDown")])
def test_an_import_waits_for_its_store(
    s3: Store, status: int | None, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Images and parts in a bucket that refuses from the second chunk on."""
    out = f"s3://idc/waits-{status}"
    imported(import_job(str(tmp_path / "undisturbed")))
    capfd.readouterr()
    manifest = imported(import_job(out), watch=once(lambda: s3.refuse(status, code)))
    assert digest(out) == digest(str(tmp_path / "undisturbed"))
    assert digest(out)[1] == FAULTS
    assert manifest.num_rows == PAIRS - len(FAULTS)
    said = capfd.readouterr().err
    assert said.count("does not answer, trying for 600 s") == 1, said
    assert said.count("answers again after") == 1, said


@pytest.mark.parametrize(("status", "code", "said"), [
    (None, "", "did not answer for"),
    (400, "ExpiredToken", "the credentials are not valid"),
    (403, "ExpiredToken", "access is denied|the credentials are not valid"),
    (403, "InvalidAccessKeyId", "access is denied|the credentials are not valid"),
])  # fmt: skip
@pytest.mark.parametrize("where", ["images", "parts"])
def test_an_import_ends_with_one_line_and_continues(
    s3: Store, where: str, status: int | None, code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage beyond the patience, or a token that has expired, records nothing; the same command reads the rest."""
    monkeypatch.setattr(object_store, "PATIENCE_S", 0)
    source = "s3://idc/in/pairs.csv"
    if where == "parts":
        (tmp_path / "pairs.csv").write_bytes(table(["train"]))
        for role in ("before", "after"):
            (tmp_path / role).mkdir()
            for number in range(PAIRS):
                (tmp_path / role / f"{number}.png").write_bytes(encode_png(np.full((9, 9, 3), number, np.uint8)))
        source = str(tmp_path / "pairs.csv")
    out = str(tmp_path / "out") if where == "images" else f"s3://idc/ends-{status}-{code}"
    job = import_job(out, source)
    refused = command(lambda: imported(job, watch=once(lambda: s3.refuse(status, code))))
    with pytest.raises(SystemExit, match=said) as ended:
        refused()
    assert "\n" not in str(ended.value)
    s3.answer()
    assert not [file for file in locate(out).list_files() if file.base_name.startswith("rejects")][1:]
    imported(job)
    assert digest(out)[1] == (FAULTS if where == "images" else {})


def test_captioned_rows_have_no_error_of_the_store(s3: Store, tmp_path: Path) -> None:
    s3.request("PUT", "/idc/in/bad.csv", b"before,after\nbefore/1.png,after/1.png\nbefore/3.png,after/none.png\n")
    job = CaptionJob(artifact="regions", input="s3://idc/in/bad.csv", out=str(tmp_path / "out"), chunk_size=1)

    def refusing(*arguments: Any, **options: Any) -> Manifest:
        s3.refuse(403, "ExpiredToken")
        return run_local(*arguments, **options, progress=False)

    with pytest.raises(StorageError, match="access is denied"):
        caption_rows(job, refusing)
    s3.answer()
    caption_rows(job, partial(run_local, progress=False))
    errors = [row["error"] for row in iter_rows(tmp_path / "out")]
    assert errors == [None, "after: missing file: after/none.png"]


def folder_captions(s3: Store) -> Callable[[], Any]:
    reader = open_reader("folder", "s3://idc/in", ImportConfig())
    return lambda: reader.read(0)


def prompts(s3: Store) -> Callable[[], Any]:
    s3.request("PUT", "/idc/pix/seeds.json", json.dumps([["0000001", ["1234"]]]).encode())
    reader = open_reader("instruct_pix2pix", "s3://idc/pix", ImportConfig())
    return lambda: reader.read(0)


def default_splits(s3: Store) -> Callable[[], Any]:
    """The rows are there, only their images are refused."""
    reader: Any = open_reader("csv", "s3://idc/in/no_splits.csv", ImportConfig())
    batches = [reader.read(chunk) for chunk in range(reader.num_chunks)]
    reader.read = batches.__getitem__
    return lambda: with_default_splits(reader, "csv", ImportConfig())


def collection(s3: Store) -> Callable[[], Any]:
    images = ImageCollection("s3://idc/in/before", 4)
    return lambda: images.read(0)


def table_rows(s3: Store) -> Callable[[], Any]:
    rows = open_rows("s3://idc/in/pairs.csv", chunk_size=4)
    return lambda: rows.read(1)


def stored_rows(s3: Store) -> Callable[[], Any]:
    if not (locate("s3://idc/stored") / "manifest.json").exists():
        imported(import_job("s3://idc/stored"))
    rows = iter_rows("s3://idc/stored")
    next(rows)
    return lambda: list(rows)


def parquet_rows(s3: Store) -> Callable[[], Any]:
    stored_rows(s3)
    rows = open_rows("s3://idc/stored", chunk_size=4)
    return lambda: rows.read(1)


def layout(s3: Store) -> Callable[[], Any]:
    return lambda: open_rows("s3://idc/in", chunk_size=4)


def pages(s3: Store) -> Callable[[], Any]:
    return lambda: write_texts("s3://idc/pages", {"page.html": "text"})


def json_lines(s3: Store) -> Callable[[], Any]:
    def written() -> None:
        with locate("s3://idc/rows.jsonl").replacing() as stream:
            stream.write(b"{}\n")

    return written


def continued(s3: Store) -> Callable[[], Any]:
    folder, _, _ = open_import(import_job("s3://idc/continued"))
    return folder.pending


@pytest.mark.parametrize("prepared", [
    folder_captions, prompts, default_splits, collection, table_rows, stored_rows, parquet_rows, layout, pages,
    json_lines, continued,
])  # fmt: skip
def test_no_reader_takes_a_refusal_for_a_fault_of_its_input(
    s3: Store, prepared: Callable[[Store], Callable[[], Any]]
) -> None:
    operation = prepared(s3)
    s3.refuse(403, "AccessDenied")
    with pytest.raises(StorageError, match="access is denied"):
        operation()


def test_what_a_name_is_to_blame_for_stays_a_fault_of_its_row(s3: Store) -> None:
    reader = open_reader("csv", "s3://idc/in/pairs.csv", ImportConfig()).reader
    for name in ("after/none.png", "x" * 3000):
        with pytest.raises(ImageError, match="missing file"):
            cell_bytes(name, reader)


@pytest.mark.parametrize("size", [20, 12 << 20])
def test_a_file_written_again_is_whole(s3: Store, size: int) -> None:
    """In one request and in several."""
    file = locate(f"s3://idc/again-{size}.bin")
    s3.refuse()
    file.write(b"x" * size)
    assert file.read() == b"x" * size


def test_a_file_is_whole_or_not_there(s3: Store) -> None:
    """Of a writer that fails nothing is seen, not even the beginning."""
    file = locate("s3://idc/whole.bin")
    file.write(b"")
    assert file.read() == b""
    with contextlib.suppress(KeyError), file.replacing() as stream:
        stream.write(b"half")
        raise KeyError
    assert file.read() == b""
    file.write(bytes(12 << 20))
    assert file.read() == bytes(12 << 20)


def test_requests_of_a_part(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part costs three requests: it is written, and its footer is read."""
    paths: list[str] = []
    answer = DomainDispatcherApplication.__call__

    def counted(self: Any, environ: dict[str, Any], start: Any) -> Any:
        paths.append(environ["PATH_INFO"])
        return answer(self, environ, start)

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", counted)
    manifest = imported(import_job("s3://idc/counted"))
    assert sum(path.startswith("/idc/counted/part-") for path in paths) == 3 * len(manifest.parts)
    assert not [path for path in paths if ".tmp-" in path]


def test_parts_in_a_bucket_are_larger(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rows of small parts, as many as have about 8 MB of images; on a disk, or with chunk_size, as asked."""
    lines = ["pair_id,before,after"]
    lines += [f"p{number},before/{number % 7}.png,before/{number % 9}.png" for number in range(100)]
    s3.request("PUT", "/idc/in/hundred.csv", "\n".join(lines).encode())

    def parts(out: str, **settings: Any) -> int:
        return len(imported(ImportJob(source="s3://idc/in/hundred.csv", out=out, **settings)).parts)

    assert parts(str(tmp_path / "disk")) == 4
    assert parts("s3://idc/joined") == 1
    assert digest("s3://idc/joined") == digest(str(tmp_path / "disk"))
    assert parts("s3://idc/chosen", chunk_size=32) == 4
    size = len(locate("s3://idc/in/before/5.png").read())
    monkeypatch.setattr(importing, "_PART_BYTES", 2 * size * 80)
    assert parts("s3://idc/eighty") == 2
