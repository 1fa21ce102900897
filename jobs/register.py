"""Register a captioner's artifact and its evaluation in an MLflow registry.

    python jobs/register.py artifact=runs/demo/finetune-0/artifact evaluation=runs/demo/finetune-0/evaluation \\
        tracking_uri=sqlite:///runs/demo/mlflow.db name=captioner

An artifact is registered once; running the job again prints its version and adds a new evaluation. The artifact is
loaded first, and the evaluation must be of it. jobs/promote.py promotes registered versions.
"""

from __future__ import annotations

from cluster.promotion_config import RegisterJob
from idc.config import cli, command


@command
def main() -> None:
    job = cli(RegisterJob, __doc__, local=False, overwrite=False).config
    from cluster.promotion import register
    from cluster.registry import uri_of
    from idc.next_command import after_registration
    from idc.systems import load_captioner
    from idc.training.artifact import read_artifact

    load_captioner(job.artifact)  # refuse artifacts that cannot caption
    print(register(job))
    if job.evaluation is not None:
        print(f"next: {after_registration(job.name, uri_of(job.tracking_uri, read_artifact(job.artifact).path))}")


if __name__ == "__main__":
    main()
