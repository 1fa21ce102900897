"""Fit the probability that anything changed at all on held-out pairs, and keep it in the artefact.

    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs
    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs split=val report_split=test

Adds `calibration.json` to the artefact, or replaces it; captions, and evaluations of them, stay as they are. Prints how
good the probability is. The same captioner, pairs and settings a second time: nothing is done. Runs in this process.
"""

from __future__ import annotations

from functools import partial

from idc.calibration import CalibrateJob
from idc.config import cli


def main() -> None:
    args = cli(CalibrateJob, __doc__, flags=("overwrite",))
    from idc.calibration import calibrate, finished, table
    from idc.systems import load_captioner

    job = args.config
    try:
        found = None if args.overwrite else finished(job)
        if found is not None:
            print(f"done before: {job.artifact}")
        print(table(found or calibrate(job, partial(load_captioner, job.artifact, job.device))))
    except (OSError, ValueError) as error:
        raise SystemExit(f"calibrate: {error}") from None


if __name__ == "__main__":
    main()
