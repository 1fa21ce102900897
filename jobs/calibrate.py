"""Fit on held-out pairs the probability that anything changed at all, and on the training images how much a pair looks
like them; keep both in the artifact.

    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs
    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs split=val report_split=test
    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs outside=[photographs,pairs.csv]

Adds `calibration.json` and `familiarity.safetensors` to the artifact, or replaces them; captions, and evaluations of
them, stay as they are. Prints how good the probability is, and how many held-out pairs (false alarms) and pairs of the
inputs in `outside` get the warning that they do not look like the training images. The same captioner, pairs and
settings a second time: nothing is done. Runs in this process.
"""

from __future__ import annotations

from functools import partial

from idc.captioning.calibration import CalibrateJob
from idc.config import cli


def main() -> None:
    args = cli(CalibrateJob, __doc__, local=False)
    from idc.captioning.calibration import calibrate, finished, table
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
