"""Convert the ProCap authors' weights, and CLIP4IDC's, to artifacts; prints every dropped tensor with the reason.

    python jobs/convert.py kind=vqgan  weights=clevr_epoch=000035.ckpt out=runs/official/tokenizer
    python jobs/convert.py kind=stage1 weights=dalle.pt                out=runs/official/stage1
    python jobs/convert.py kind=stage2 weights=model.chkpt vocabulary=clevr_word2idx.json out=runs/official/captioner
    python jobs/convert.py kind=clip4idc weights=pytorch_model.bin.clevr out=runs/official/pair-encoder
    python jobs/caption.py --artifact runs/official/captioner before.png after.png

The files are read without running any code in them. Repeating the command does nothing.
"""

from __future__ import annotations

from idc.config import cli
from idc.next_command import after_conversion
from idc.systems.procap.config import ConvertJob


class Job(ConvertJob):
    """The conversion of one file."""


def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.systems.procap.convert import convert
    from idc.training.conversion import convert_command

    job = args.config
    convert_command("convert", job, convert, args.overwrite)
    print(f"next: {after_conversion(job.kind, job.out)}")


if __name__ == "__main__":
    main()
