"""Our runs beside the published rows of five papers: a page for each data set, as Markdown, CSV and LaTeX too.

    python jobs/leaderboard.py --runs runs/demo
    python jobs/leaderboard.py --runs "runs/*" runs/sweeps/steps --out runs/leaderboard
    python jobs/leaderboard.py --runs old/run --data-set data/pairs=clevr_change

Every folder with an evaluation (evaluation.json) or scored answers (answers.json) below the given ones is taken; seeds
of one setting make one row. Their predictions, with the references, are copied beside the pages, with their hashes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, metavar="FOLDER", help="folders, or patterns of folders")
    parser.add_argument("--out", default="runs/leaderboard", help="where to write (default: runs/leaderboard)")
    parser.add_argument(
        "--data-set", nargs="+", default=[], metavar="PAIRS=NAME",
        help="names the data set of a folder of pairs that is no longer there, as the evaluation names the folder",
    )  # fmt: skip
    args = parser.parse_args()
    from idc.config import enter_root
    from idc.report.leaderboard.boards import gather
    from idc.report.leaderboard.leaderboard_folder import write_leaderboard

    if faulty := [text for text in args.data_set if "=" not in text]:
        parser.error(f"--data-set: {faulty[0]!r} is not of the form PAIRS=NAME")
    enter_root()
    try:
        pages = gather(args.runs, dict(text.rsplit("=", 1) for text in args.data_set))
        written = write_leaderboard(Path(args.out), pages)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    scored = sum(len(page.scored) for page in pages)
    print(f"{scored} evaluations, {len(written) - 1} data sets: {written[0]}")


if __name__ == "__main__":
    main()
