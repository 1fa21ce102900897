"""Put a captioner's artifact into an MLflow registry, with its evaluation.

    python jobs/register.py artifact=runs/demo/finetune-0/artifact evaluation=runs/demo/finetune-0/evaluation
    python jobs/register.py artifact=runs/demo/finetune-0/artifact evaluation=runs/demo/finetune-0/evaluation \\
        tracking_uri=sqlite:///runs/demo/mlflow.db name=captioner

An artifact is registered once; a second time the job says which version it is, and adds the evaluation if that is
another one. The artifact is loaded, and the evaluation must be of it, before anything is written. What was registered
is promoted by jobs/promote.py.
"""

from __future__ import annotations

from cluster.promotion import RegisterJob
from idc.config import cli


def main() -> None:
    job = cli(RegisterJob, __doc__, local=False, overwrite=False).config
    from cluster.promotion import register
    from idc.systems import load_captioner

    try:
        load_captioner(job.artifact)  # only what captions images may be registered
        print(register(job))
    except (ValueError, OSError) as error:
        raise SystemExit(f"register: {error}") from None


if __name__ == "__main__":
    main()
