"""The table of docs/commands.md, of the docstrings of the jobs: ``python -m tests.docs.commands_page`` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from idc.__main__ import grouped
from tests.docs.checks import ROOT

PAGE = ROOT / "docs" / "commands.md"
_TABLE = re.compile(r"(?<=^## Jobs\n\n).*?(?=^## )", re.MULTILINE | re.DOTALL)


def with_table(page: str, folder: Path = ROOT) -> str:
    """The text of the page, with the table of the commands of ``folder``."""
    lines = ["| command | does |", "|---|---|"]
    for group, members in grouped(folder).items():
        lines.append(f"| **{group}** | |")
        lines += [f"| `{name}` | {does} |" for name, does in members.items()]
    return _TABLE.sub(lambda _: "\n".join([*lines, "", ""]), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
