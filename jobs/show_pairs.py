"""Show rendered pairs with several changes in one picture, each with its list of differences and a reference.

    python jobs/show_pairs.py pairs=data/several/pairs out=several.png
    python jobs/show_pairs.py pairs=data/several/pairs out=several.png show=30 columns=5

Prints how many pairs have how many differences, and how many differences are of each kind. Runs in this process.
"""

from __future__ import annotations

from idc.config import cli
from idc.report.pair_sheet import ShowPairsJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False, overwrite=False)
    from idc.atomic import write_bytes
    from idc.report.pair_sheet import pair_sheet

    try:
        picture, counts = pair_sheet(args.config)
        print(counts)
        print(f"written: {write_bytes(args.config.out, picture)}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"show_pairs: {error}") from None


if __name__ == "__main__":
    main()
