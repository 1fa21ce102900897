"""Folders behind URIs: the cache, and what is said about a store that cannot be used; against a real S3 server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from idc.data import remote_copies
from idc.data.files import Location, locate
from idc.data.object_store import Unreachable, with_retries
from idc.data.remote_copies import check_writable, local_folder, sizes, upload_files
from tests.object_store import Store, store


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with store() as made:
        yield made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(folder: str, **files: bytes) -> None:
    for name, data in files.items():
        (locate(f"s3://idc/{folder}") / name).write(data)


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.startswith("."))


def test_a_folder_is_fetched_once_and_again_when_it_changed(s3: Store, cache: Path) -> None:
    put("a/artifact", config=b"1", weights=b"22")
    first = local_folder("s3://idc/a/artifact")
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {"config": b"1", "weights": b"22"}
    assert first.name == "artifact"
    before = (first / "weights").stat()
    assert local_folder("s3://idc/a/artifact/") == first
    assert (first / "weights").stat() == before
    put("a/artifact", weights=b"33")  # the same size, perhaps in the same second
    second = local_folder("s3://idc/a/artifact")
    assert second != first
    assert (second / "weights").read_bytes() == b"33"
    assert len(entries(cache)) == 2
    assert local_folder(cache) == cache
    assert local_folder(cache.as_uri()) == cache


def test_processes_that_fetch_at_the_same_time_share_one_copy(s3: Store, cache: Path) -> None:
    put("b/artifact", config=b"1", weights=os.urandom(1 << 20))
    code = "from idc.data.remote_copies import local_folder; print(local_folder('s3://idc/b/artifact'))"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {process.communicate()[0] for process in processes}
    assert len(found) == 1
    assert len(entries(cache)) == 1
    assert not list(cache.glob(".*.partial"))


def test_a_folder_that_changes_while_it_is_read_is_refused(
    s3: Store, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("c", config=b"1")
    versions = iter(range(100))
    real = remote_copies.copy_file

    def changing(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        put("c", config=str(next(versions)).encode())

    monkeypatch.setattr(remote_copies, "copy_file", changing)
    with pytest.raises(ValueError, match="s3://idc/c changed while it was read, three times"):
        local_folder("s3://idc/c")
    assert entries(cache) == []


@pytest.mark.slow
def test_without_an_answer_only_a_stale_copy_is_used(s3: Store) -> None:
    put("e", config=b"1")
    found = local_folder("s3://idc/e")
    s3.refuse()
    try:
        assert local_folder("s3://idc/e", stale=True, patience_s=0) == found
        with pytest.raises(ValueError, match=r"s3://idc/e did not answer for \d+ s; check the net"):
            local_folder("s3://idc/e", patience_s=0)
    finally:
        s3.answer()


def test_a_missing_folder_and_a_name_that_leads_out_are_refused(s3: Store) -> None:
    with pytest.raises(ValueError, match="s3://idc/none holds no files"):
        local_folder("s3://idc/none")
    s3.request("PUT", "/idc/f/x/%2E%2E/%2E%2E/evil", b"")
    if sizes_names := [name for name in raw_names("f") if ".." in name]:
        with pytest.raises(ValueError, match=r"whose name leads out of the folder"):
            local_folder("s3://idc/f")
    assert sizes_names or raw_names("f") == []


def raw_names(folder: str) -> list[str]:
    return [file.path for file in locate(f"s3://idc/{folder}").scan().files]


def test_the_config_of_a_folder_is_written_last(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "a", "z"):
        (tmp_path / name).write_text(name)
    put("g", **{"config.json": b"old"})
    target = locate("s3://idc/g")
    seen: list[tuple[str, bool]] = []
    real = remote_copies.copy_file

    def copy(source: Location, *args: object) -> None:
        seen.append((source.name, "config.json" in sizes(target, 0)))
        real(source, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(remote_copies, "copy_file", copy)
    upload_files(tmp_path, ["a", "config.json", "z"], target, 0)
    assert sorted(seen[:2]) == [("a", False), ("z", False)]
    assert seen[2] == ("config.json", False)
    assert sizes(target, 0) == {"a": 1, "config.json": 11, "z": 1}


@pytest.mark.parametrize(("uri", "environment", "said"), [
    ("s3://none/runs", {}, "runs=s3://none/runs: there is no such bucket; create it"),
    ("s4://idc/runs", {}, "runs: 's4://idc/runs': no filesystem for the scheme 's4'"),
    ("s3://", {}, "runs: 's3://' names no bucket"),
    ("s3://key:secret@idc/runs", {}, "runs: credentials in a URI would be stored with the run; set AWS_ACCESS_KEY_ID"),
    ("s3://idc/runs?scheme=http", {}, r"runs: s3://idc/runs\?...: options in a URI are not taken; set AWS_ENDPOINT_U"),
    ("s3://idc/runs", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
     r"runs=s3://idc/runs did not answer for \d+ s; check the network and AWS_ENDPOINT_URL \(.*connect"),
    ("s3://idc/runs", {"AWS_ENDPOINT_URL": "http://no.such.host.invalid"},
     r"runs=s3://idc/runs did not answer for \d+ s; check the network and AWS_ENDPOINT_URL"),
])  # fmt: skip
def test_a_store_that_cannot_be_used_is_one_clear_line(
    s3: Store, uri: str, environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{said}") as caught:
        check_writable(uri, "runs")
    assert "\n" not in str(caught.value)


def test_wrong_credentials_are_named(tmp_path: Path) -> None:
    """A server that checks signatures, in a process of its own: the setting is of the whole process."""
    code = (
        "import os; os.environ['INITIAL_NO_AUTH_ACTION_COUNT'] = '1'\n"
        "from tests.object_store import store\n"
        "from idc.data.remote_copies import check_writable\n"
        "with store():\n"
        "    check_writable('s3://idc/runs', 'runs')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StorageError: runs=s3://idc/runs: the credentials are not valid; set AWS_ACCESS_KEY_ID" in ended.stderr


def test_a_usable_store_is_left_as_it_was(s3: Store, tmp_path: Path) -> None:
    check_writable("s3://idc/usable/runs", "runs")
    check_writable(str(tmp_path), "runs")
    assert list(tmp_path.iterdir()) == []
    assert raw_names("usable") == []


def test_a_local_fault_is_not_waited_for(tmp_path: Path) -> None:
    calls = []

    def full() -> None:
        calls.append(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        with_retries(full, "s3://idc/x", 100)
    assert calls == [1]
    with pytest.raises(Unreachable):
        with_retries(lambda: (_ for _ in ()).throw(OSError("curlCode: 7")), "s3://idc/x", 0)
