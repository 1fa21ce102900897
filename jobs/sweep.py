"""Run a table of a paper as a sweep: rows times seeds, next to the paper's rows.

    python jobs/sweep.py --config jobs/configs/procap/sweeps/table02.yaml --config jobs/configs/procap/sweeps/small.yaml
    python jobs/sweep.py --config jobs/configs/procap/sweeps/table03.yaml \\
        --config jobs/configs/procap/sweeps/small.yaml "seeds=[0]" trials.concurrent=1
    python jobs/sweep.py --config jobs/configs/procap/sweeps/search.yaml --config jobs/configs/procap/sweeps/small.yaml

The second file is the size: small.yaml for the pairs and the tokenizer of `make demo`, paper.yaml for the paper's data
sets. The same command continues a killed sweep. Writes <runs>/<name>/report.html, table.md and sweep.json.
"""

from __future__ import annotations

from pathlib import Path

from cluster.config import OnCluster
from idc.config import cli, command
from idc.sweep.config import SweepJob


class Job(OnCluster, SweepJob):
    """A sweep, and the cluster to run it on."""


@command
def main() -> None:
    args = cli(Job, __doc__)
    from cluster.tune import run_sweep
    from idc.report.sweep_page import sweep_markdown, write_sweep

    job = args.config
    result = run_sweep(job, job.cluster, local=args.local, overwrite=args.overwrite)
    page = write_sweep(Path(job.runs) / job.name, result)
    print(f"{sweep_markdown(result)}\n{page}")
    if result.failed:
        raise SystemExit(f"{job.name}: {len(result.failed)} of {result.trials} trials failed")


if __name__ == "__main__":
    main()
