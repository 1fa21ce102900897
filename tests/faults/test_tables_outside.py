"""Tables and the files that they name: relative paths stay below the table's folder, absolute paths are read."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.config import AccessConfig, ValidateJob
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError
from idc.data.rows import open_rows
from idc.data.store import iter_rows, read_rejects
from idc.data.validation.run import validate
from tests.data.official_layouts import grey
from tests.data.readers.test_own import picture, prepare, put
from tests.faults.outside import CANARY, Listener, evil_names
from tests.folders import read_chunks


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
    found = validate(ValidateJob(pairs=str(path), format=format, pictures=0), progress=False)  # type: ignore[arg-type]
    assert found.result.usable_pairs == 2
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
    source = linked(tmp_path / "in", secret)
    rows = [{"before": "good.png", "after": name} for name in evil_names(secret, host).values()]
    outside, gone, read = "outside the source", "missing file", str(CANARY)
    for suffix in ("jsonl", "parquet"):
        table = table_of(rows, source / f"t.{suffix}")
        assert after_images(table) == [outside, outside, outside, read, read, *[outside] * 4]
        allowed = after_images(table, AccessConfig(allow_outside=True))
        assert allowed == [read, gone, gone, read, read, outside, outside, read, read]
    assert host.connections == 0
    put(tmp_path / "folder", {"a_before.png": 1, "a_after.png": 2})
    (tmp_path / "folder" / "b_before.png").symlink_to(secret)
    for follow in (False, True):
        found = open_rows(str(tmp_path / "folder"), access_config=AccessConfig(follow_links=follow))
        assert found.reader.access.links == follow


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
