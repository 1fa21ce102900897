"""Promote a candidate to champion if a paired test on the same held-out pairs shows that it is not worse.

    python jobs/promote.py status=true tracking_uri=sqlite:///runs/demo/mlflow.db
    python jobs/promote.py version=3 metric=CIDEr margin=0.05 dry_run=true tracking_uri=sqlite:///runs/demo/mlflow.db
    python jobs/promote.py rollback=true tracking_uri=sqlite:///runs/demo/mlflow.db

Not worse: the lower end of the 95 % interval of the difference (candidate - champion, paired bootstrap over the pairs)
is at least -margin times the champion's score. The first champion is promoted without a comparison; --force promotes in
any case. Applications that serve models:/captioner@champion switch automatically. Status 1: the candidate was refused.
"""

from __future__ import annotations

from cluster.promotion_config import PromoteJob
from idc.config import cli, command


@command
def main() -> None:
    job = cli(PromoteJob, __doc__, local=False, overwrite=False).config
    from cluster.promotion import describe_promotion, promote, status
    from idc.next_command import after_promotion

    if job.status:
        print(status(job))
        return
    print(describe_promotion(promote(job), job))
    if not job.dry_run:
        print(f"next: {after_promotion(job.name, job.alias, job.tracking_uri)}")


if __name__ == "__main__":
    main()
