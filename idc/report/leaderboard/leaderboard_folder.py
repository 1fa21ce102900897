"""The leaderboard on disk: an index, a page per data set, the same tables as Markdown, and the
predictions and references of every run with their hashes.

    index.html  <data set>.html .md  runs/<data set>/<evaluation>/  SHA256SUMS  leaderboard.json
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from idc.report.leaderboard.boards import DataSetPage, published_files
from idc.report.leaderboard.leaderboard_page import SUMS, data_set_page, index_page, leaderboard_markdown
from idc.report.leaderboard.scored_runs import MARKER
from idc.report.leaderboard.side_by_side import NOTHING_MEASURED, MeasuredSystems
from idc.util.atomic import write_text


def write_leaderboard(
    out: Path, pages: Sequence[DataSetPage], measured: MeasuredSystems = NOTHING_MEASURED
) -> list[Path]:
    """Write all files; files of an earlier leaderboard in the folder that this one does not have are removed.

    Args:
        measured: further measurements of the captioners.

    Returns:
        the pages, the index first.

    Raises:
        ValueError: the folder holds other files.
    """
    before = _earlier(out)
    out.mkdir(parents=True, exist_ok=True)
    copied: dict[str, str] = {}
    for page in pages:
        for name, path in published_files(page):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)
            copied[name] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    texts = {"index.html": index_page(pages).html()}
    for page in pages:
        texts[f"{page.key}.html"] = data_set_page(page, copied, measured).html()
        texts[f"{page.key}.md"] = leaderboard_markdown(page)
    texts[SUMS] = "".join(f"{digest}  {name}\n" for name, digest in sorted(copied.items()))
    for name, text in texts.items():
        write_text(out / name, text)
    files = sorted([*texts, *copied])
    for name in before - set(files):
        (out / name).unlink(missing_ok=True)
    # The marker last: after a kill before this line, the old one still names the files that are to be removed.
    write_text(out / MARKER, json.dumps({"files": files}, indent=1) + "\n")
    return [out / name for name in texts if name.endswith(".html")]


def _earlier(out: Path) -> set[str]:
    """Files of the leaderboard that is in the folder."""
    if (out / MARKER).exists():
        return set(json.loads((out / MARKER).read_text(encoding="utf-8"))["files"])
    if out.exists() and any(out.iterdir()):
        raise ValueError(
            f"--out: {str(out)!r} is not empty and holds no leaderboard (no {MARKER}); choose another folder"
        )
    return set()
