"""Fit the probability of a change and the familiarity of a pair, for an artifact.

    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs
    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs split=val report_split=test
    python jobs/calibrate.py artifact=runs/captioner/artifact pairs=data/pairs unlike=[photographs] outside=[pairs.csv]

Adds `calibration.json` and `familiarity.safetensors` to the artifact, or replaces them; captions do not change. Prints
the quality of the probability, and how many held-out pairs (false alarms) and pairs of `outside` get the warning that
they do not resemble the training images; it is also fitted to warn of the pairs of `unlike`.
"""

from __future__ import annotations

from idc.captioning.calibration_job import CalibrateJob
from idc.config import cli, command
from idc.next_command import after_calibration


@command
def main() -> None:
    args = cli(CalibrateJob, __doc__, local=False)
    from idc.captioning.calibration import table
    from idc.captioning.calibration_job import calibrate, finished_calibration

    job = args.config
    calibration = None if args.overwrite else finished_calibration(job)
    if calibration is not None:
        print(f"done before: {job.artifact}")
    calibration = calibration or calibrate(job)
    print("the familiarity was fitted" if calibration is None else table(calibration))
    print(f"next: {after_calibration(job.artifact, job)}")


if __name__ == "__main__":
    main()
