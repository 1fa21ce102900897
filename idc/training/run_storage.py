"""A run's folder, on the disk or on object storage, where the loop works on a copy of it on this machine's disk.

    config.json origin.json log.jsonl best/... artifact/... result.json
    checkpoints/step_00000020/<parts of all ranks>, complete

A checkpoint counts when its file ``complete`` is there, which rank 0 writes after the parts of all ranks; it is deleted
before anything else of that checkpoint. Whatever else lies in ``checkpoints`` is the user's. What the checkpoint refers
to (log, best weights) is uploaded before it, and deleted after the next one. So a run may be killed at any time, and
goes on from the folder on any other machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from idc.data.object_store import with_retries
from idc.data.remote_copies import download_files, remove, remove_folder, resolve_uri, sizes, upload_files
from idc.util.atomic import write_bytes

CHECKPOINTS, COMPLETE = "checkpoints", "complete"


class RunFolder:
    """A run's folder: its JSON files, and which checkpoints are complete. Picklable.

    Args:
        path: the folder, a path or a URI; it need not exist.
        patience_s: how long object storage may not answer.

    Raises:
        ValueError: the URI cannot be used.
    """

    def __init__(self, path: Path | str, patience_s: float = 60.0) -> None:
        text = os.fspath(path)
        if "://" not in text:
            text = str(Path(text).absolute())
        self.location = resolve_uri(text, "runs")
        self.patience_s = patience_s

    def __reduce__(self) -> tuple[type[RunFolder], tuple[str, float]]:
        return RunFolder, (self.location.text, self.patience_s)

    def __str__(self) -> str:
        return self.location.text

    @property
    def local(self) -> Path | None:
        """The folder on the disk; None on object storage."""
        return None if self.location.local is None else Path(self.location.local)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder in it."""
        return with_retries((self.location / name).exists, str(self), self.patience_s)

    def is_empty(self) -> bool:
        """Whether nothing is there, or the folder is not."""
        if self.local is not None:
            return not self.local.is_dir() or not any(self.local.iterdir())
        return not sizes(self.location, self.patience_s)

    def read(self, name: str) -> Any:
        """A JSON file of it."""
        return json.loads(with_retries((self.location / name).read, str(self), self.patience_s))

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file, atomically; the folder is made if need be."""
        data = (json.dumps(value, indent=1) + "\n").encode()
        if self.local is not None:
            write_bytes(self.local / name, data)
        else:
            with_retries(lambda: (self.location / name).write(data), str(self), self.patience_s)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        remove(self.location / name, self.patience_s)

    def clear(self, last: str) -> None:
        """Delete the folder; on object storage the file ``last`` goes after all others, so that a killed delete is seen
        for what it is."""
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
            return
        for name in sorted(sizes(self.location, self.patience_s), key=lambda name: name == last):
            remove(self.location / name, self.patience_s)

    def complete_checkpoints(self) -> list[str]:
        """Names of the complete checkpoints, oldest first."""
        names = (name.split("/") for name in sizes(self.location / CHECKPOINTS, self.patience_s))
        return sorted(parts[0] for parts in names if is_checkpoint(parts[0]) and parts[1:] == [COMPLETE])

    def complete(self, name: str, keep_last: int) -> None:
        """Mark a checkpoint complete, once the parts of all ranks are there; delete all but the newest."""
        marker = self.location / CHECKPOINTS / name / COMPLETE
        with_retries(lambda: marker.write(b""), str(self), self.patience_s)
        for old in self.complete_checkpoints()[:-keep_last]:
            self.withdraw(old)

    def withdraw(self, name: str) -> None:
        """Delete a checkpoint, if there is anything of it."""
        folder = self.location / CHECKPOINTS / name
        remove(folder / COMPLETE, self.patience_s)
        if folder.local is not None:
            shutil.rmtree(folder.local, ignore_errors=True)  # NFS keeps a file that is open
        else:
            remove_folder(folder, self.patience_s)


def checkpoint_name(step: int) -> str:
    return f"step_{step:08d}"


def is_checkpoint(name: str) -> bool:
    return re.fullmatch(r"step_\d+", name) is not None


class RunCopy:
    """One process's copy of a run's folder on object storage.

    Args:
        folder: the folder there.
        is_main: of rank 0, which uploads and downloads all files; the others download what is small.

    Attributes:
        scratch: the copy, a new folder on this machine's disk, removed by :meth:`close`.
    """

    def __init__(self, folder: RunFolder, is_main: bool) -> None:
        self.folder = folder
        self.is_main = is_main
        self.scratch, self._lock = _new_scratch(folder.location.text)
        names = [
            name
            for name in sizes(folder.location, folder.patience_s)
            if name.partition("/")[0] not in (CHECKPOINTS, "artifact") and (is_main or "/" not in name)
        ]
        download_files(folder.location, names, self.scratch, folder.patience_s)
        self._stored = {name: self._state(name) for name in names}
        """File that is stored as it is here -> its size and time here."""

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._lock.release()
        self.scratch.with_name(f".{self.scratch.name}.lock").unlink(missing_ok=True)

    def push(self, patience_s: float | None = None) -> None:
        """Rank 0 uploads the files that are new or have changed, and deletes those that are gone."""
        if not self.is_main:
            return
        patience_s = self.folder.patience_s if patience_s is None else patience_s
        here = {
            name: self._state(name)
            for path in sorted(self.scratch.rglob("*"))
            if path.is_file()
            and (name := path.relative_to(self.scratch).as_posix()).partition("/")[0] != CHECKPOINTS
            and not any(part.startswith(".") for part in name.split("/"))
        }
        changed = [name for name, state in here.items() if self._stored.get(name) != state]
        upload_files(self.scratch, changed, self.folder.location, patience_s)
        for name in self._stored.keys() - here.keys():
            remove(self.folder.location / name, patience_s)
        self._stored = here

    def upload_part(self, part: Path) -> None:
        """Upload this rank's part of a checkpoint, which then is no longer here."""
        names = [path.relative_to(part).as_posix() for path in sorted(part.rglob("*")) if path.is_file()]
        upload_files(part, names, self.folder.location / CHECKPOINTS / part.name, self.folder.patience_s)
        shutil.rmtree(part)

    def fetch(self, name: str) -> Path:
        """Download a checkpoint."""
        target, source = self.scratch / CHECKPOINTS / name, self.folder.location / CHECKPOINTS / name
        if not target.exists():
            download_files(source, sizes(source, self.folder.patience_s), target, self.folder.patience_s)
        return target

    def _state(self, name: str) -> tuple[int, int]:
        info = (self.scratch / name).stat()
        return info.st_size, info.st_mtime_ns


def scratch_root() -> Path:
    """This user's folder, on this machine's disk, for the copies of runs on object storage; made if need be.

    Raises:
        ValueError: it belongs to somebody else.
    """
    root = Path(tempfile.gettempdir()) / f"idc-runs-{os.getuid()}"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if root.stat().st_uid != os.getuid():
        raise ValueError(f"{root} belongs to another user; set TMPDIR to a folder of your own")
    return root


def _new_scratch(uri: str) -> tuple[Path, FileLock]:
    """A new folder on the local disk, with a lock that is held as long as its process lives; removes the folders of
    processes of this run that were killed."""
    base = scratch_root()
    stem = hashlib.sha256(uri.encode()).hexdigest()[:12]
    for left in base.glob(f"{stem}-*"):
        lock = FileLock(base / f".{left.name}.lock", blocking=False)
        with suppress(OSError), lock:
            shutil.rmtree(left, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)
    name = f"{stem}-{os.getpid()}-{os.urandom(4).hex()}"
    held = FileLock(base / f".{name}.lock", thread_local=False)  # another thread may release it
    held.acquire()
    (base / name).mkdir()
    return base / name, held
