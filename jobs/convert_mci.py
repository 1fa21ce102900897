"""Convert the weights of Change-Agent's MCI, the guide of ChangeVG, to an artifact; prints every dropped tensor with
the reason.

    python jobs/convert_mci.py weights=MCI_model.pth vocabulary=vocab.json out=runs/official/guide
    python jobs/caption.py --artifact runs/official/guide before.png after.png

The file is read without running any code in it. Repeating the command does nothing.
"""

from __future__ import annotations

from idc.config import cli
from idc.systems.changevg.config import ConvertMciJob


class Job(ConvertMciJob):
    """The conversion of one file."""


def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.systems.changevg.convert import convert_mci
    from idc.training.conversion import convert_command

    job = args.config
    convert_command("convert_mci", job, convert_mci, args.overwrite)
    print(f"next: python jobs/evaluate.py artifact={job.out} pairs=data/levir-mci out={job.out}-evaluation")


if __name__ == "__main__":
    main()
