"""Make a candidate the champion if it is not worse, by the paired test of the evaluator on the same held-out pairs.

    python jobs/promote.py status=true tracking_uri=sqlite:///runs/demo/mlflow.db
    python jobs/promote.py tracking_uri=sqlite:///runs/demo/mlflow.db
    python jobs/promote.py version=3 metric=CIDEr margin=0.05 dry_run=true tracking_uri=sqlite:///runs/demo/mlflow.db
    python jobs/promote.py rollback=true tracking_uri=sqlite:///runs/demo/mlflow.db

Not worse: the lower end of the 95 % interval of the difference (candidate - champion, paired bootstrap over the pairs)
is at least -margin times the champion's score. So a loss of more than the margin has to be ruled out; where the pairs
are too few for that the champion stays, and the job says how many would probably do. The first champion is compared
with nobody. --force promotes in any case. Why the alias was moved is written into the registry. Applications that serve
models:/captioner@champion take over by themselves. Status 1: the candidate was refused, and why; promoting the champion
again changes nothing, status 0.
"""

from __future__ import annotations

from cluster.promotion import PromoteJob
from idc.config import cli


def main() -> None:
    job = cli(PromoteJob, __doc__, local=False, overwrite=False).config
    from cluster.promotion import describe, promote, status

    try:
        print(status(job) if job.status else describe(promote(job), job))
    except (ValueError, OSError) as error:
        raise SystemExit(f"promote: {error}") from None


if __name__ == "__main__":
    main()
