"""Run benchmarks, most of them ratios of two things measured in turns in one run.

    make bench                                     the cheap parts in ten minutes, compared with the record
    python jobs/benchmark.py                       uses the pairs, tokenizer and procedures of `make demo`
    python jobs/benchmark.py --local "parts=[decoding]"    needs neither data nor Ray, like the next three
    python jobs/benchmark.py --local "parts=[scoring]"
    python jobs/benchmark.py --local "parts=[captioning,official]"
    python jobs/benchmark.py --local --config jobs/configs/benchmark/gpu.yaml
    python jobs/benchmark.py "parts=[serving]"     needs the load generator: apt-get install hey
    python jobs/benchmark.py "parts=[batch]"       captioning a table with jobs/caption.py
    python jobs/benchmark.py "parts=[scale]"       what an item costs in each stage, and a driver of 32 nodes: 9 GiB
    python jobs/benchmark.py "parts=[train_overhead]" procedures=data/mine/procedures train_overhead.rounds=5
    python jobs/benchmark.py --local "parts=[decoding]" record=true

Prints a table per part and stores machine, commit, command and raw numbers in <out>/PART.json. With record=true also in
benchmarks/records/PART.json, which BENCHMARKS.md is generated from; with compare=true it prints what became worse than
that record by more than the spread (the rule: benchmarks/compare.py). Run it on an otherwise idle machine.

Exit status: 0; 1 if compare=true found something worse or a part could not be measured; 2 if the settings were refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.compare import comparison_summary
from benchmarks.job import WITHOUT_RAY, BenchmarkJob, run_benchmark
from benchmarks.page import machine_text, run_text
from idc.config import cli, refuse

Job = BenchmarkJob


def main() -> None:
    args = cli(Job, __doc__, overwrite=False)
    if args.local and not set(args.config.parts) <= WITHOUT_RAY:
        refuse([f"--local: without Ray only these parts can be measured: {', '.join(sorted(WITHOUT_RAY))}"])
    try:
        result = run_benchmark(args.config, str(Path(__file__).with_name("caption.py")))
    except ValueError as error:
        raise SystemExit(f"benchmark: {error}") from None
    for name, measured_run in result.runs.items():
        print(f"\n{name}: {machine_text(measured_run)}\n{run_text(measured_run, measured_run)}")
    for part, lacking in result.skipped.items():
        print(f"skipped: {part}: {'; '.join(lacking)}", file=sys.stderr)
    for note in result.notes:
        print(f"note: {note}; do not publish these numbers", file=sys.stderr)
    if args.config.compare:
        print(f"\n{comparison_summary(result.compared, result.unknown)}")
        if any(comparison.outcome == "worse" and comparison.counts for comparison in result.compared):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
