"""Write one self-contained HTML page of a run.

    python jobs/report.py out=runs/report.html evaluations=[runs/captioner/evaluation] pairs=data/pairs \\
        procedures=data/procedures runs.tokenizer=runs/tokenizer \\
        "runs.stage 1=runs/pretrain" "runs.stage 2=runs/captioner"

Several evaluations count as seeds: the page shows their mean and deviation. Another captioner's evaluations of the same
pairs are shown next to them: "compare.ProCap=[runs/other/evaluation]".
"""

from __future__ import annotations

from idc.config import cli
from idc.report.config import ReportJob


def main() -> None:
    args = cli(ReportJob, __doc__, local=False, overwrite=False)
    from idc.report.collect import collect
    from idc.report.run import write_run_page

    try:
        report = collect(args.config)
    except (OSError, ValueError) as error:
        raise SystemExit(f"report: {error}") from None
    path = write_run_page(args.config.out, report)
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main()
