"""Origin of the numbers of an evaluation: data set, command, commit."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idc.data.store import read_manifest
from idc.util.redaction import redacted

OWN, RENDERED = "own", "rendered"

ORIGIN = "origin.json"
"""Name of the file next to a training's artifact with its command and commit."""

_OWN_FORMATS = ("folder", "csv", "jsonl", "parquet")


def origin(pairs: str | None) -> dict[str, Any]:
    """The data set of a folder of pairs (if there is one), this command line, and this checkout's commit."""
    data = {} if pairs is None else {"data": describe_data(pairs)}
    return {**data, "command": command_line(), "commit": commit()}


def command_line() -> str:
    """The job's command line; empty in a process that is not one of the project's jobs: a Ray worker's arguments do not
    describe the run, and may hold secrets. Passwords are replaced."""
    script = Path(sys.argv[0])
    if script.suffix != ".py" or script.absolute().parent.name != "jobs":
        return ""
    return shlex.join(["python", f"jobs/{script.name}", *map(redacted, sys.argv[1:])])


def describe_data(pairs: str) -> dict[str, str]:
    """Describe a folder of pairs, or a file of references, which counts as own data.

    Returns:
        ``data_set``: the official layout that it was imported from, ``rendered``, or ``own``; ``fingerprint``; and
        ``variant``, in words, if it is a robustness set.
    """
    if Path(pairs).is_file():
        return {"data_set": OWN, "fingerprint": hashlib.sha256(Path(pairs).read_bytes()).hexdigest()[:20]}
    manifest = read_manifest(pairs)
    facts = {"fingerprint": manifest.fingerprint}
    if isinstance(altered := manifest.extra.get("robustness"), dict):
        facts["variant"] = _altered(altered)
        kind = altered.get("data_set", OWN)
    else:
        kind = str(manifest.config.get("format", RENDERED if "render" in manifest.config else OWN))
    return {"data_set": OWN if kind in _OWN_FORMATS else kind, **facts}


def _altered(altered: Mapping[str, Any]) -> str:
    """A robustness set in words: "fog, severity 5"."""
    kind, severity = str(altered.get("kind", "")), altered.get("severity")
    if kind == "replace_words":
        return f"words replaced {100 * float(severity or 0):.0f} %"
    if kind == "swap_order":
        return "order swapped"
    which = altered.get("which")
    only = f"{which} image only" if which in ("before", "after") else ""
    return ", ".join(filter(None, [kind.replace("_", " "), f"severity {severity}", only]))


UNKNOWN_COMMIT = "unknown"
"""Result of :func:`commit` outside a git checkout."""


def commit() -> str:
    """``$IDC_COMMIT``, else the checkout's commit (``+``: files differ from it); :data:`UNKNOWN_COMMIT` without git.

    ``ray job submit`` uploads the working folder without its ``.git``.
    """
    if from_environment := os.environ.get("IDC_COMMIT"):
        return from_environment
    root = Path(__file__).resolve().parents[2]
    try:
        name, changes = (
            subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True).stdout.strip()
            for args in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT
    return name + ("+" if changes else "")
