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
    from idc.captioning.throughput import measure_throughput

    try:
        result = measure_throughput(args.config, args.overwrite)
    except (ValueError, OSError) as error:
        raise SystemExit(f"throughput: {error}") from None
    width = max(map(len, result.captioners))
    for name, timing in result.captioners.items():
        median, low, high = result.tokens_per_second(name)
        rounds = f"{low:,.0f} to {high:,.0f} in {len(timing.seconds)} rounds"
        print(f"{name:{width}}  {timing.size:>13} parameters  {median:>9,.0f} tokens a second ({rounds})")
    print(
        f"{result.pairs} pairs, {result.tokens} tokens each, {result.device}, {result.cores} cores: {args.config.out}"
    )


if __name__ == "__main__":
    main()
