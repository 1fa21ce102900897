"""Makes every mistake of :mod:`tests.mutants.mistakes` in a copy of the program, and runs the test that must fail.

    python -m tests.mutants.runner                      # all: some minutes of a core
    python -m tests.mutants.runner "wrong mask" "MIR"   # those whose names have one of these in them

Prints a line for each: the mistake, where it is made, and the test that fails. Exit status 1 if a mistake survives.
Large libraries are imported once; every mistake then has a process of its own, forked from this one, which imports the
program anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutants.mistakes import MISTAKES, Mistake

ROOT = Path(__file__).parents[2]


def main(parts: Sequence[str]) -> int:
    """Number of mistakes that survive."""
    import torch
    import transformers.models.clip.modeling_clip  # noqa: F401

    torch.set_num_threads(1)
    for name in [name for name in sys.modules if name.split(".")[0] in ("idc", "tests")]:
        del sys.modules[name]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("idc", "cluster", "jobs", "serve", "benchmarks", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for mistake in MISTAKES:
            if not parts or any(part in mistake.name for part in parts):
                survived += not fails(mistake, copy)
    return survived


def fails(mistake: Mistake, copy: Path) -> bool:
    """Whether the mistake's test fails in a copy with it."""
    file, output = copy / mistake.file, copy / "output.txt"
    text = file.read_text()
    file.write_text(text.replace(mistake.old, mistake.new))
    process = os.fork()
    if not process:
        _run(mistake.test, copy, output)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    file.write_text(text)
    failed = [line.split()[1] for line in output.read_text().splitlines() if line.startswith("FAILED ")]
    line = text[: text.index(mistake.old)].count("\n") + 1
    caught = code == pytest.ExitCode.TESTS_FAILED
    print(f"{mistake.name} | {mistake.file}:{line} | {failed[0] if caught and failed else f'exit {code}'}", flush=True)
    return caught


def _run(test: str, copy: Path, output: Path) -> NoReturn:
    """In the child: the test, then the end of this process."""
    os.chdir(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.dont_write_bytecode = True
    with output.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test])
    os._exit(code)


if __name__ == "__main__":
    raise SystemExit(min(1, main(sys.argv[1:])))
