"""The hostile import set through the real import: every row is a pair or a reject, and nothing is read outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from idc.data.store import iter_rows, read_manifest, read_rejects
from tests.data.readers.test_own import prepare
from tests.faults import hostile_folders, hostile_tables
from tests.faults.conftest import Listener
from tests.faults.hostile import CANARY, Hostile, Surroundings, write_canaries

ENTRIES = {**hostile_folders.entries(), **hostile_tables.entries()}
LONGEST_S = 60
"""An entry that has not ended by then hangs; each takes a fraction of a second."""


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


@pytest.mark.parametrize("name", ENTRIES)
def test_every_row_has_its_outcome(name: str, tmp_path: Path, host: Listener) -> None:
    entry = ENTRIES[name]
    around = Surroundings(write_canaries(tmp_path / "outside"), host.address)
    source, out = entry.write(tmp_path / "in", around), tmp_path / "out"
    told = ""
    with bounded(name):
        if entry.error is not None:
            with pytest.raises(ValueError, match=entry.error) as refused:
                prepare(source, out, entry.format, **entry.settings)
            told = str(refused.value)
        else:
            prepare(source, out, entry.format, **entry.settings)
            told = check_outcome(entry, out, around)
    assert host.connections == 0
    assert CANARY.decode() not in told
    for path in (path for path in tmp_path.rglob("*") if path.is_file() and out in path.parents):
        assert CANARY not in path.read_bytes()


def check_outcome(entry: Hostile, out: Path, around: Surroundings) -> str:
    """The rows that came out; returns all that was stored and said, as text."""
    rows, rejects, manifest = list(iter_rows(out)), read_rejects(out), read_manifest(out)
    assert sorted(row["pair_id"] for row in rows) == sorted(entry.pairs), rejects
    expected = sorted((around.put_into(row_id), code) for row_id, code in entry.rejects.items())
    assert sorted((reject.row_id, reject.code) for reject in rejects) == expected, rejects
    assert (manifest.num_rows, manifest.num_rejected) == (len(rows), len(rejects))
    notes = "\n".join(manifest.extra["notes"])
    assert [name for name in entry.named if name not in notes] == []
    return f"{rows!r} {rejects!r} {manifest!r}"
