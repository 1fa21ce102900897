"""Compare our runs with the published rows of five papers: one page per data set, and Markdown.

    python jobs/leaderboard.py --runs "runs/*" runs/sweeps/steps --out runs/leaderboard
    python jobs/leaderboard.py --runs runs/one/evaluation runs/two/evaluation --throughput runs/throughput.json \\
        --robustness runs/one/robustness runs/two/robustness

Uses every folder below the given ones with an evaluation (evaluation.json) or scored answers (answers.json); seeds of
one setting form one row. Adds paired tests of the best setting against the others, speed and robustness, and copies the
predictions and references next to the pages, with their hashes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, metavar="FOLDER", help="folders or glob patterns")
    parser.add_argument("--out", default="runs/leaderboard", help="output folder (default: runs/leaderboard)")
    parser.add_argument("--throughput", metavar="FILE", help="speed of captioners, measured by jobs/evaluate.py")
    parser.add_argument(
        "--robustness", nargs="+", default=[], metavar="FOLDER", help="robustness tables, folders of jobs/robustness.py"
    )
    args = parser.parse_args()
    from idc.config import enter_root
    from idc.report.leaderboard.boards import gather_boards
    from idc.report.leaderboard.leaderboard_folder import write_leaderboard
    from idc.report.leaderboard.side_by_side import read_measured

    enter_root()
    try:
        pages = gather_boards(args.runs)
        measured = read_measured(args.throughput, args.robustness)
        written = write_leaderboard(Path(args.out), pages, measured)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    scored = sum(len(page.scored) for page in pages)
    print(f"{scored} evaluations, {len(written) - 1} data sets: {written[0]}")


if __name__ == "__main__":
    main()
