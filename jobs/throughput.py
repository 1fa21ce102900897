"""Measure captioners by turns in one run: caption tokens a second, and the number of parameters.

    python jobs/throughput.py artifacts.TwinCap=runs/demo/twincap-0/artifact \\
        artifacts.ProCap=runs/demo/finetune-0/artifact pairs=data/demo/pairs out=runs/demo/throughput.json

Run it alone on the machine. Given again with the same captioners and settings, it measures nothing. The leaderboard
shows the result: jobs/leaderboard.py --throughput FILE.
"""

from __future__ import annotations

from idc.captioning.throughput import ThroughputJob
from idc.config import cli


def main() -> None:
    args = cli(ThroughputJob, __doc__, local=False)
    from idc.captioning.throughput import run

    try:
        found = run(args.config, args.overwrite)
    except (ValueError, OSError) as error:
        raise SystemExit(f"throughput: {error}") from None
    width = max(map(len, found.captioners))
    for name, one in found.captioners.items():
        median, low, high = found.tokens_per_second(name)
        rounds = f"{low:,.0f} to {high:,.0f} in {len(one.seconds)} rounds"
        print(f"{name:{width}}  {one.size:>13} parameters  {median:>9,.0f} tokens a second ({rounds})")
    print(f"{found.pairs} pairs, {found.tokens} tokens each, {found.device}, {found.cores} cores: {args.config.out}")


if __name__ == "__main__":
    main()
