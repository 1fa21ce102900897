"""Listing folders and opening what is in them: loops, special files, and what a reader may reach."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from pyarrow import fs

from idc.data import files
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError
from idc.data.store import iter_rows, read_rejects
from tests.data.readers.test_own import picture, prepare, put


def names(tree: files.Tree, root: Path) -> list[str]:
    return [os.path.relpath(file.path, root) for file in tree.files]


def test_links_out_of_a_folder_are_followed_only_if_asked_for(tmp_path: Path) -> None:
    root = put(tmp_path / "in", {"a.png": 1, "real/c.png": 3})
    put(tmp_path / "disk", {"b.png": 2})
    (root / "again").symlink_to("real")  # sorts before the folder, which keeps its real name
    (root / "disk").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "back").symlink_to(root)
    tree = files.locate(root).scan()
    assert (names(tree, root), tree.outside) == (["a.png", "real/c.png"], [str(root / "disk")])
    tree = files.locate(root).scan(follow_links=True)
    assert (names(tree, root), tree.outside) == (["a.png", "disk/b.png", "real/c.png"], [])


def test_a_file_whose_writing_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), files.locate(tmp_path / "a").replacing() as stream:
        stream.write(None)
    assert not list(tmp_path.iterdir())


def test_a_name_that_no_store_takes_is_that_of_no_file_before_any_request() -> None:
    with pytest.raises(FileNotFoundError, match="a name of more than 1024 bytes"):
        files.locate("memory://bucket/" + "a" * 1025).read()


def test_dots_and_links_that_leave_a_source_are_refused_each_for_itself(tmp_path: Path) -> None:
    """``follow_links`` permits links and not names with ``..``, which are refused on stores without links too."""
    root = put(tmp_path / "in", {"a.png": 1})
    put(tmp_path, {"secret.png": 2})
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    followed = files.Reader(files.locate(root), files.Access(links=True))
    assert followed.read("link.png") == picture(2)
    store = files.Location(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "in", "in")
    for reader in (files.Reader(files.locate(root)), followed, files.Reader(store, files.Access(links=True))):
        assert reader.read("a.png") == picture(1)
        with pytest.raises(files.OutsideSource, match="names in this layout are those of files below the source"):
            reader.read("../secret.png")
    with pytest.raises(files.OutsideSource):
        files.Reader(files.locate(root)).read(str(tmp_path / "secret.png"))
    with pytest.raises(files.OutsideSource, match="a link leads out of the source"):
        files.Reader(files.locate(root)).read("link.png")


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """Opening a FIFO waits for a writer; a device may never end."""
    source = put(tmp_path / "in", {f"before/{name}.png": 1 for name in ("fifo", "socket", "device", "gone", "good")})
    put(source, {"after/good.png": 2, "good.txt": "fine", "notes/x.md": "a"})
    os.mkfifo(source / "after" / "fifo.png")
    os.mkfifo(source / "fifo.txt")
    (source / "after" / "device.png").symlink_to("/dev/zero")
    (source / "after" / "gone.png").symlink_to("gone.png")
    with socket.socket(socket.AF_UNIX) as listener:
        place = Path.cwd()
        os.chdir(source / "after")  # the path of a socket is short
        try:
            listener.bind("socket.png")
        finally:
            os.chdir(place)
        prepare(source, tmp_path / "out", "folder", follow_links=True)
    assert [row["pair_id"] for row in iter_rows(tmp_path / "out")] == ["good"]
    assert {reject.row_id: reject.code for reject in read_rejects(tmp_path / "out")} == {
        "fifo": "unreadable file", "socket": "unreadable file", "device": "unreadable file", "gone": "unreadable file",
    }  # fmt: skip
    with pytest.raises(OSError, match="not a regular file"):
        files.locate(source / "after" / "fifo.png").read()


def test_a_location_is_resolved_once_and_names_what_the_user_wrote(tmp_path: Path) -> None:
    place = files.locate(f"{tmp_path}/in/")
    assert (place.path, str(place / "a/x.png")) == (f"{tmp_path}/in", f"{tmp_path}/in/a/x.png")
    assert files.locate(place) is place
    assert (place.name, place.parent.path, (place / "/abs").path) == ("in", str(tmp_path), "/abs")
    assert (files.locate("/").path, (files.locate("/") / "x").path, files.locate("/x").parent.path) == ("/", "/x", "/")
    assert not place.exists()
    (tmp_path / "in").mkdir()
    (place / "x").write(b"12")
    assert ((place / "x").read(), place.is_folder(), (place / "x").is_file()) == (b"12", True, True)
    assert [place.relative(file.path) for file in place.list_files()] == ["x"]
    with (tmp_path / "x.png").open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(ImageError, match="too many bytes"):
        cell_bytes("x.png", files.Reader(files.locate(tmp_path)))
    remote = files.locate("memory://bucket/deep/t.csv")
    assert (remote.local, remote.name, remote.parent.path) == (None, "t.csv", "bucket/deep")
    assert str(remote.parent / "x.png") == "memory://bucket/deep/x.png"
