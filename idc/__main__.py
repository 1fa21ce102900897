"""``idc NAME ...`` runs ``python jobs/NAME.py ...``; ``idc serve ...`` runs ``python -m serve.app ...``.

In a checkout the commands are the repository's own files. In an installed package they are in ``idc/_commands``, in
the same layout, because ``cluster``, ``jobs`` and ``serve`` are too general as names in site-packages. Only the
processes of a command have that folder on their path.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

from idc.util.model_faults import did_you_mean
from idc.util.program import PROGRAM, commands_folder

GROUPS = {
    "data": ("render", "import_dataset", "validate", "mine_pairs", "describe_pairs", "build_changeimti"),
    "parts": ("train_tokenizer", "train_pair_encoder"),
    "systems": (
        "pretrain_procap", "finetune_procap", "pretrain_namc", "finetune_namc", "finetune_sft", "finetune_m3diff",
        "train_guide", "finetune_changevg", "train_adpo", "train_grpo", "train_twincap", "finetune_rewards",
    ),
    "search": ("sweep",),
    "evaluate": ("evaluate", "compare", "calibrate", "robustness", "leaderboard", "export"),
    "release": ("register", "promote", "convert", "wrap_vlm", "merge_vlm"),
    "use": ("caption", "demo", "serve", "mcp"),
}  # fmt: skip
"""Group of `idc --help` -> its commands; those of none are shown last."""


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands by name: what to run with Python."""
    scripts = {path.stem.replace("_", "-"): [str(path)] for path in sorted((folder / "jobs").glob("*.py"))}
    # Without -P, a folder "serve" in the working directory would be imported instead.
    return scripts | {"serve": ["-P", "-m", "serve.app"]}


def main() -> None:
    folder = commands_folder()
    by_name = commands(folder)
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `idc --help | head` ends without a traceback
        print(help_text(folder))
    elif name == "--path":
        print(folder)
    elif name == "serve" and find_spec("fastapi") is None:
        raise SystemExit("idc serve: the packages of the HTTP server are not installed; pip install 'idc[serve]'")
    elif (command := by_name.get(name.replace("_", "-"))) is not None:
        # Child processes (Ray's and their workers) find the packages as the command does.
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), PROGRAM: "idc"}
        os.execv(sys.executable, [sys.executable, *command, *arguments])
    else:
        print(f"idc: no such command: {name!r}{did_you_mean(name, list(by_name))}; `idc` lists all", file=sys.stderr)
        raise SystemExit(2)


def grouped(folder: Path) -> dict[str, dict[str, str]]:
    """Group -> name of a command -> what it does, the first sentence of its docstring."""
    described = {}
    for name, command in commands(folder).items():
        path = folder / "serve" / "app.py" if name == "serve" else Path(command[0])
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        described[name] = " ".join(doc.partition("\n\n")[0].split())
    groups = {group: [name.replace("_", "-") for name in names] for group, names in GROUPS.items()}
    groups["other"] = [name for name in described if not any(name in names for names in groups.values())]
    return {group: {name: described[name] for name in names} for group, names in groups.items() if names}


def help_text(folder: Path) -> str:
    """The commands in their groups."""
    lines = ["idc NAME ...: run a command; idc NAME --help: its options and settings; idc --path: where they are"]
    for group, members in grouped(folder).items():
        lines += ["", group]
        for name, does in members.items():
            lines.append(textwrap.fill(f"  {name:<22} {does}", 120, subsequent_indent=" " * 25))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
