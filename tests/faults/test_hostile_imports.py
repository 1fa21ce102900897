"""Hostile data sets through the real import: every row is a pair or a reject, and nothing outside the source is read.

Plain mistakes in captions, tables and annotations: ``tests/data/readers``; images: ``tests/data/test_images.py``.
"""

from __future__ import annotations

import io
import json
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.images import encode_png
from idc.data.store import iter_rows, read_manifest, read_rejects
from tests.data.readers.test_own import picture, prepare
from tests.data.small_sets import OFFICIAL
from tests.faults.conftest import Listener

OUTSIDE = "@OUTSIDE@"
"""In texts: a folder next to the source with ``canary.png``, ``canary.txt`` and ``canary.json``."""
HOST = "@HOST@"
"""In texts: host and port of a listener that nobody may connect to."""
MARK = b"CANARY-5d41402abc4b"
"""In every file outside the source; must not be in anything that an import writes or says."""
LONGEST_S = 60
"""An entry that has not ended by then hangs; each takes a fraction of a second."""


@dataclass(frozen=True)
class Surroundings:
    """What lies around a hostile source: a folder of canaries, and a listener as ``host:port``."""

    outside: Path
    host: str

    def put_into(self, text: str) -> str:
        """The text with their names in it."""
        return text.replace(OUTSIDE, str(self.outside)).replace(HOST, self.host)


Content = int | str | bytes | Callable[[Path, Surroundings], object]
"""A grey image of that value, text, bytes, or what makes something else at the path."""


@dataclass(frozen=True)
class Hostile:
    """Files and what must come of them: ``pairs`` and ``rejects`` are all rows, or else it is one clear error.

    Attributes:
        files: name -> content, below the folder of the source.
        source: what is imported, inside that folder.
        rejects: row id -> code.
        error: pattern of the error that refuses the whole source.
        named: what the notes must name: files that are not read.
    """

    format: str
    files: Mapping[str, Content]
    pairs: tuple[str, ...] = ()
    rejects: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    named: tuple[str, ...] = ()
    source: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, around: Surroundings) -> Path:
        """Make the files; returns the path to import."""
        folder.mkdir()
        for name, content in self.files.items():
            path = folder / os.fsdecode(os.fsencode(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path, around)
            elif isinstance(content, str):
                path.write_bytes(around.put_into(content).encode("utf-8", "surrogateescape"))
            else:
                path.write_bytes(picture(content) if isinstance(content, int) else content)
        return folder / self.source if self.source else folder


def fifo(path: Path, around: Surroundings) -> None:
    """A named pipe that nobody writes to: opening it to read never ends."""
    os.mkfifo(path)


def folder(path: Path, around: Surroundings) -> None:
    """A folder where a file is expected."""
    path.mkdir()


def link(target: str) -> Content:
    """A symbolic link."""
    return lambda path, around: path.symlink_to(around.put_into(target))


# -- folders, each with the pair `good`, which must come out whatever else there is ----------------------------------

GOOD: dict[str, Content] = {"before/good.png": 1, "after/good.png": 2}
PAIR: dict[str, Content] = {**GOOD, "before/x.png": 5, "after/x.png": 6}
NAMES = {
    "a new line": "x\ny", "markup": "<script>alert(1)<x>", "a shell": "$(touch pwned)`id`;|&",
    "right to left": "x\u202egnp", "a colon": "s3:x", "a control": "x\x01\x1b[31m",
}  # fmt: skip
"""Stems that a file may have; each is its pair's id as it is."""


def folders() -> dict[str, Hostile]:
    entries = {
        f"name: {name}": Hostile("folder", {**GOOD, f"before/{stem}.png": 5, f"after/{stem}.png": 6}, ("good", stem))
        for name, stem in NAMES.items()
    }
    twins = {f"{role}/{name}.png": 5 for role in ("before", "after") for name in ("caf\u00e9", "cafe\u0301")}
    entries["name: twins in unicode"] = Hostile(
        "folder", {**GOOD, **twins}, ("good",), {"caf\u00e9": "duplicate pair id"}
    )
    befores: dict[str, tuple[Content, str]] = {
        "link: to itself": (link("x.png"), "unreadable file"),
        "link: to a device": (link("/dev/null"), "outside the source"),
        "a folder for an image": (folder, "missing partner"),
    }
    for name, (content, code) in befores.items():
        entries[name] = Hostile("folder", {**PAIR, "before/x.png": content}, ("good",), {"x": code})
    linked = {**PAIR, "a/to-b": link("../b"), "b/to-a": link("../a")}
    entries["link: two folders in each other"] = Hostile("folder", linked, ("good", "x"))
    rejects = {"root": "outside the source"}
    entries["link: the whole machine"] = Hostile("folder", {**PAIR, "root": link("/")}, ("good", "x"), rejects)
    captions = {**PAIR, "captions.json": link(f"{OUTSIDE}/canary.json")}
    entries["link: captions.json outside"] = Hostile("folder", captions, error="out of the source")
    return entries


def annotations() -> dict[str, Hostile]:
    """Spot-the-Diff with a file of annotations that leads outside, never ends, or is nested without end."""
    layout = OFFICIAL["spot_the_diff"]()

    def of(content: Content, **outcome: Any) -> Hostile:
        files = {**layout.files, "val.json": content}
        return Hostile(layout.format, files, settings=layout.settings, **outcome)

    left = tuple(name for name in layout.pairs if name != "3")
    return {
        "annotations outside": of(link(f"{OUTSIDE}/canary.json"), error="out of the source|is not the layout|has no"),
        "annotations are a FIFO": of(fifo, pairs=left, named=("no annotations of val",)),
        "annotations of depth": of("[" * 100_000 + "]" * 100_000, pairs=left, rejects={"val.json": "bad file"}),
    }


# -- tables, each with the row `good` in front and `q` at the end, which must come out -------------------------------

IMAGES: dict[str, Content] = {"1.png": 1, "2.png": 2, "folder/3.png": 3}
FIELDS = {"before": "1.png", "after": "2.png", "caption": "x", "split": "train"}


def csv(**fields: str) -> Hostile:
    """The row `p` with these cells."""
    rows = [{"pair_id": name, **FIELDS, **(fields if name == "p" else {})} for name in ("good", "p", "q")]
    text = "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows), ""])
    return Hostile("csv", {**IMAGES, "pipe.png": fifo, "t.csv": text}, source="t.csv")


def jsonl(*lines: str) -> Hostile:
    rows = [json.dumps({"pair_id": name, **FIELDS}) for name in ("good", "q")]
    return Hostile("jsonl", {**IMAGES, "t.jsonl": "\n".join([rows[0], *lines, rows[1], ""])}, source="t.jsonl")


def parquet(names: list[Any] | pa.Array) -> bytes:
    out = io.BytesIO()
    columns = {"pair_id": list("abcd"), "before": names, "after": ["1.png"] * 4, "captions": [["x"]] * 4}
    pq.write_table(pa.table({**columns, "split": ["train"] * 4}), out)
    return out.getvalue()


def tables() -> dict[str, Hostile]:
    def on_a_host(path: Path, around: Surroundings) -> None:
        names = [around.put_into(f"s3://b/x?endpoint_override={HOST}"), *["1.png"] * 3]
        path.write_bytes(parquet([{"bytes": None, "path": name} for name in names]))

    rejected: dict[str, tuple[Hostile, str, str]] = {
        "csv: a NUL in a name": (csv(before="1.png\0.txt"), "p", "unreadable file"),
        "csv: a name of 100,000 letters": (csv(before="x" * 100_000), "p", "unreadable file"),
        "csv: text from elsewhere": (csv(before=f"{OUTSIDE}/canary.txt"), "p", "not an image"),
        "csv: a device": (csv(before="/dev/null"), "p", "unreadable file"),
        "csv: a FIFO": (csv(before="pipe.png"), "p", "unreadable file"),
        "csv: a share": (csv(before=f"file://{HOST}/x.png"), "p", "unreadable file"),
        "csv: a chain of schemes": (csv(before=f"simplecache::http://{HOST}/x.png"), "p", "outside the source"),
        "jsonl: an id twice in a row": (
            jsonl('{"pair_id": "p", "pair_id": "q", "before": "1.png", "after": "2.png"}'), "t.jsonl:2", "bad row",
        ),
        "jsonl: an image that is an object": (
            jsonl(json.dumps({"pair_id": "p", **FIELDS, "before": {"path": "1.png"}})), "p", "bad row",
        ),
        "jsonl: a mask on a host": (
            jsonl(json.dumps({"pair_id": "p", **FIELDS, "mask": f"s3://b/x.png?endpoint_override={HOST}"})), "p",
            "outside the source",
        ),
    }  # fmt: skip
    entries = {
        name: Hostile(entry.format, entry.files, ("good", "q"), {row: code}, source=entry.source)
        for name, (entry, row, code) in rejected.items()
    }
    liar = {"t.parquet": b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1"}
    host = {**IMAGES, "t.parquet": on_a_host}
    parts: dict[str, Content] = {**IMAGES, "a.parquet": parquet(["1.png"] * 4)}
    parts["b.parquet"] = parquet(["1.png"] * 4)[:-20]
    return entries | {
        "csv: a FIFO for the table": Hostile("csv", {"t.csv": fifo}, error="t.csv is not a file", source="t.csv"),
        "csv: a folder for the table": Hostile("csv", IMAGES, error="folder is not a file", source="folder"),
        "parquet: a footer that lies": Hostile("parquet", liar, error="not a Parquet file", source="t.parquet"),
        "parquet: a part that is cut": Hostile("parquet", parts, error="b.parquet is not a Parquet file"),
        "parquet: a struct on a host": Hostile(
            "parquet", host, tuple("bcd"), {"a": "outside the source"}, source="t.parquet"
        ),
    }


# -- the import --------------------------------------------------------------------------------------------------------

ENTRIES = {**folders(), **annotations(), **tables()}


@contextmanager
def bounded(name: str) -> Iterator[None]:
    """What blocks in a system call is interrupted."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{name!r} hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write_canaries(folder: Path) -> Path:
    """Valid files that an import would read if it were led there."""
    folder.mkdir()
    image = encode_png(np.full((6, 8, 3), 77, np.uint8))
    text = b"tEXt" + b"Comment\0" + MARK
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    (folder / "canary.png").write_bytes(image[:33] + chunk + image[33:])
    (folder / "canary.txt").write_bytes(MARK + b"\n")
    (folder / "canary.json").write_bytes(b'{"x": ["%s"]}' % MARK)
    return folder


@pytest.mark.parametrize("name", ENTRIES)
def test_every_row_has_its_outcome(name: str, tmp_path: Path, host: Listener) -> None:
    entry = ENTRIES[name]
    around = Surroundings(write_canaries(tmp_path / "outside"), host.address)
    source, out = entry.write(tmp_path / "in", around), tmp_path / "out"
    with bounded(name):
        if entry.error is not None:
            with pytest.raises(ValueError, match=entry.error) as refused:
                prepare(source, out, entry.format, **entry.settings)
            said = str(refused.value)
        else:
            prepare(source, out, entry.format, **entry.settings)
            said = check_outcome(entry, out)
    assert host.connections == 0
    assert MARK.decode() not in said
    for path in (path for path in tmp_path.rglob("*") if path.is_file() and out in path.parents):
        assert MARK not in path.read_bytes()


def check_outcome(entry: Hostile, out: Path) -> str:
    """The rows that came out; returns all that was stored and said, as text."""
    rows, rejects, manifest = list(iter_rows(out)), read_rejects(out), read_manifest(out)
    assert sorted(row["pair_id"] for row in rows) == sorted(entry.pairs), rejects
    assert sorted((reject.row_id, reject.code) for reject in rejects) == sorted(entry.rejects.items()), rejects
    assert (manifest.num_rows, manifest.num_rejected) == (len(rows), len(rejects))
    notes = "\n".join(manifest.extra["notes"])
    assert [name for name in entry.named if name not in notes] == []
    return f"{rows!r} {rejects!r} {manifest!r}"
