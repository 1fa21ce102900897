"""Compare our runs with the published rows of five papers: one page per data set, and Markdown.

    python jobs/leaderboard.py --runs "runs/*" runs/sweeps/steps --out runs/leaderboard

Uses every folder below the given ones with an evaluation (evaluation.json) or scored answers (answers.json); seeds of
one setting form one row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, metavar="FOLDER", help="folders or glob patterns")
    parser.add_argument("--out", default="runs/leaderboard", help="output folder (default: runs/leaderboard)")
    args = parser.parse_args()
    if "://" in args.out:
        parser.error(f"argument --out: must be on a disk, got {args.out!r}")
    from idc.config import enter_root
    from idc.report.leaderboard.boards import gather_boards
    from idc.report.leaderboard.leaderboard_page import write_leaderboard

    enter_root()
    try:
        pages = gather_boards(args.runs)
        index = write_leaderboard(Path(args.out), pages)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    scored = sum(len(page.scored) for page in pages)
    print(f"{scored} evaluations, {len(pages)} data sets: {index}")


if __name__ == "__main__":
    main()
