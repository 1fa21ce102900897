"""The hashes of an artifact's files (``hashes.json``): a changed, missing or additional file is found when it is read.

They find damage, and files that were exchanged one by one. Whoever can write the whole folder can write its hashes too:
that an artifact is the one that was registered is shown by the registry's hash of all of it
(:func:`idc.training.artifact.artifact_identity`), which serving compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from idc.atomic import write_text
from idc.data.textfiles import decode_text, parse_json
from idc.training.hashing import file_hash

HASHES = "hashes.json"
_SHOWN = 5


def write_hashes(folder: Path, names: Iterable[str], pending: Iterable[str] = ()) -> None:
    """Write the hashes of these files, atomically. Those of ``pending`` are about to be replaced: they are left open
    until the next call, so that a process that is killed in between leaves an artifact that can be read."""
    waiting = set(pending)
    hashes = {name: None if name in waiting else file_hash(folder / name) for name in sorted({*names, *waiting})}
    write_text(folder / HASHES, json.dumps({"sha256": hashes}, indent=1) + "\n")


def remove_unfinished(folder: Path, names: Iterable[str]) -> None:
    """Remove files that a killed process had begun to add: they are pending, and not among the artifact's ``names``."""
    if (folder / HASHES).is_file():
        for name in {name for name, digest in _read(folder / HASHES).items() if digest is None} - set(names):
            (folder / name).unlink(missing_ok=True)


def check_hashes(folder: Path, names: Iterable[str]) -> bool:
    """Compare the files of an artifact with its hashes. Files of a MiB and more are read once per process.

    Args:
        names: the artifact's files, by its config.json; all of them exist.

    Returns:
        False for an artifact without hashes, as earlier versions of the program wrote them.

    Raises:
        ValueError: naming the files that were changed, added or removed.
    """
    if not (folder / HASHES).is_file():
        return False
    hashes = _read(folder / HASHES)
    every = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    # Hidden files are left by file managers and file systems; nothing reads them.
    there = {
        path.as_posix()
        for path in every
        if path.as_posix() in hashes or not any(part.startswith(".") for part in path.parts)
    } - {HASHES}
    changed = [
        name for name, digest in hashes.items() if digest and name in there and file_hash(folder / name) != digest
    ]
    faults = {
        "changed": changed,
        "missing": sorted(name for name, digest in hashes.items() if digest and name not in there),
        "not part of it": sorted((there | set(names)) - hashes.keys()),
    }
    differences = [
        f"{', '.join(files[:_SHOWN])} {'is' if len(files) == 1 else 'are'} {what}"
        for what, files in faults.items()
        if files
    ]
    if differences:
        raise ValueError(
            f"artifact {folder} differs from its {HASHES}: {'; '.join(differences)}. It is damaged, or was altered "
            "after it was written: copy the artifact again"
        )
    return True


def _read(path: Path) -> Mapping[str, str | None]:
    try:
        hashes = parse_json(decode_text(path.read_bytes()))["sha256"]
        if not all(isinstance(digest, str | None) for digest in hashes.values()):
            raise TypeError("a hash is no text")
        if outside := [name for name in hashes if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise ValueError(f"{outside[0]} is not below the folder")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); copy the artifact again") from None
    return hashes
