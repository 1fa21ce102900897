"""Show rendered pairs in one picture: those with several changes, or satellite pairs, with their lists and a reference.

    python jobs/show_pairs.py pairs=data/several/pairs out=several.png
    python jobs/show_pairs.py pairs=data/several/pairs out=several.png show=30 columns=5
    python jobs/show_pairs.py pairs=data/satellite/pairs out=satellite.png columns=2 beside=data/real/pairs

Prints how many pairs have how many changes, and how many changes are of each kind. With beside, satellite pairs of
another folder are shown between them. Runs in this process.
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
