"""Write one self-contained HTML page of a run.

    python jobs/report.py out=runs/report.html evaluations=[runs/captioner/evaluation] pairs=data/pairs \\
        procedures=data/procedures tokenizer=runs/tokenizer/tokenizer runs.tokenizer=runs/tokenizer \\
        "runs.stage 1=runs/pretrain" "runs.stage 2=runs/captioner"

Several evaluations count as seeds: the page shows their mean and deviation.
"""

from __future__ import annotations

from idc.config import cli
from idc.report.config import ReportJob


def main() -> None:
    args = cli(ReportJob, __doc__, local=False, overwrite=False)
    from idc.report.collect import collect
    from idc.report.run import write_report
    from idc.systems.procap.report_parts import imagination, reconstruction

    job = args.config
    reconstruct = reconstruction(job.tokenizer) if job.tokenizer is not None else None
    imagine = imagination(job.imagine) if job.imagine is not None else None
    path = write_report(job.out, collect(job, reconstruct, imagine))
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main()
