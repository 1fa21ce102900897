"""Run benchmarks, each a ratio of two things measured in turns in one run.

    python jobs/benchmark.py                       uses the pairs, tokenizer and procedures of `make demo`
    python jobs/benchmark.py --local "parts=[decoding]"    needs neither data nor Ray, like the next three
    python jobs/benchmark.py --local "parts=[scoring]"
    python jobs/benchmark.py --local "parts=[captioning,official]"
    python jobs/benchmark.py --local --config jobs/configs/benchmark/gpu.yaml
    python jobs/benchmark.py "parts=[serving]"     needs the load generator: apt-get install hey
    python jobs/benchmark.py "parts=[batch]"       100,000 pairs with jobs/caption.py, killed half way: about an hour
    python jobs/benchmark.py "parts=[train_overhead]" procedures=data/mine/procedures train_overhead.rounds=5

Prints a table and writes <out>/benchmark.json (raw numbers, device, commit, command) and <out>/benchmark.md, whose rows
go into BENCHMARKS.md. Run it on an otherwise idle machine; the four default parts took fourteen minutes on two cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.job import WITHOUT_RAY, BenchmarkJob, run
from idc.config import cli, refuse

Job = BenchmarkJob


def main() -> None:
    args = cli(Job, __doc__, overwrite=False)
    if args.local and not set(args.config.parts) <= WITHOUT_RAY:
        refuse([f"--local: without Ray only these parts can be measured: {', '.join(sorted(WITHOUT_RAY))}"])
    try:
        record = run(args.config, str(Path(__file__).with_name("caption.py")))
    except ValueError as error:
        raise SystemExit(f"benchmark: {error}") from None
    print(record.table())
    if note := record.load_note():
        print(note, file=sys.stderr)


if __name__ == "__main__":
    main()
