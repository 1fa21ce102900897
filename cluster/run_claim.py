"""A run's claim on its folder: which config it is of, and when another run may take it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.tracking import flat
from idc.evaluation.provenance import ORIGIN, command_line, commit
from idc.training.config import OPERATIONAL, TrainConfig
from idc.training.run_storage import CHECKPOINTS, RunFolder

CONFIG, RESULT, FATAL = "config.json", "result.json", "fatal.json"
_LOCK = ".lock"
"""File that is locked as long as a process works on a run; the lock ends with the process."""


def claim(run: RunFolder, record: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Return the result of the run in its folder if it is complete; otherwise claim the folder for this run.

    Raises:
        ValueError: if another run is there.
    """
    if run.exists(CONFIG):
        saved = run.read(CONFIG)
        if isinstance(saved.get("train"), dict):  # a setting that is newer than the run had its default
            saved["train"] = {**TrainConfig(steps=1).model_dump(mode="json"), **saved["train"]}
        differing = _differing(saved, record)
        if differing and not overwrite and not _without_progress(run):
            shown = "\n  ".join(differing[:12])
            raise ValueError(
                f"{run} holds a run of another config; take another run name, or --overwrite it. Differing:\n  {shown}"
            )
        if differing:
            run.clear(last=CONFIG)
        elif run.exists(RESULT):
            result: dict[str, Any] = run.read(RESULT)
            if not result["has_artifact"] or run.exists("artifact"):
                return result
            run.remove(RESULT)
        run.remove(FATAL)
    elif not run.is_empty():
        raise ValueError(f"{run} is not empty and not a training run (it has no {CONFIG}); take another run name")
    run.write(CONFIG, record)
    run.write(ORIGIN, {"command": command_line(), "commit": commit()})
    return None


def _without_progress(run: RunFolder) -> bool:
    """Whether a run has ended before its first checkpoint, so that nothing is lost if another takes its name. A run on
    object storage has no lock, so only one that was stopped by a fatal error counts."""
    if run.exists(RESULT) or run.exists("artifact"):
        return False
    if run.local is None:
        return run.exists(FATAL) and not run.exists(CHECKPOINTS)
    from idc.training.context import complete_checkpoints

    return _has_ended(run.local) and not complete_checkpoints(run.local / CHECKPOINTS)


@contextmanager
def working_on(folder: Path | None) -> Iterator[None]:
    """Lock a run's folder, if it is on a file system, against other runs. On several machines the file system must
    support flock (NFS 4 does)."""
    if folder is None:
        yield
        return
    with (folder / _LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _has_ended(folder: Path) -> bool:
    """Whether no process works on a run. One without a lock file is about to begin."""
    try:
        with (folder / _LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def _differing(saved: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """One line per dotted key whose values differ, except settings that do not change what is learned."""
    old, new = flat(saved), flat(record)
    operational = tuple(f"train.{field}" for field in OPERATIONAL)

    def matters(key: str) -> bool:
        return not any(key == field or key.startswith(field + ".") for field in operational)

    absent = "(absent)"
    return [
        f"{key}: saved {old.get(key, absent)!r}, now {new.get(key, absent)!r}"
        for key in sorted(old.keys() | new.keys())
        if matters(key) and old.get(key, absent) != new.get(key, absent)
    ]
