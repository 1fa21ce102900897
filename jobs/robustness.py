"""The robustness table of a captioner, as NAMC's table 10: clean, words replaced, images corrupted, order swapped.

    python jobs/robustness.py --config jobs/configs/robustness/demo.yaml
    python jobs/robustness.py artifact=runs/captioner/artifact pairs=data/pairs sets=data/robust out=runs/robust --local

The first uses the results of `make demo`. The sets are made first (as by jobs/corrupt.py) and captioned in this
process; the word rows are a sweep (as by jobs/sweep.py). Finished parts are not repeated. Writes <out>/table.md
and robustness.json.
"""

from __future__ import annotations

from functools import partial

from cluster.config import ClusterConfig
from idc.config import cli
from idc.report.config import RobustnessJob


class Job(RobustnessJob):
    """The robustness table, and the cluster to compute it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from cluster.tune import run_sweep
    from idc.report.robustness.robustness_job import run_robustness

    job, local, overwrite = args.config, args.local, args.overwrite
    words = partial(run_sweep, cluster=job.cluster, local=local, overwrite=overwrite)
    try:
        table, result = run_robustness(job, partial(run_chunks, local, job.cluster, job=job), words, overwrite)
    except ValueError as error:
        raise SystemExit(f"robustness: {error}") from None
    print(f"{table.read_text(encoding='utf-8')}\n{table}")
    if result is not None and result.failed:
        raise SystemExit(f"robustness: {len(result.failed)} of {result.trials} trainings have no result")


if __name__ == "__main__":
    main()
