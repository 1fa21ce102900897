"""Convert the weights of ProCap's authors, of CLIP4IDC or of Change-Agent's MCI to artifacts.

    python jobs/convert.py kind=vqgan  weights=clevr_epoch=000035.ckpt out=runs/official/tokenizer
    python jobs/convert.py kind=stage1 weights=dalle.pt                out=runs/official/stage1
    python jobs/convert.py kind=stage2 weights=model.chkpt vocabulary=clevr_word2idx.json out=runs/official/captioner
    python jobs/convert.py kind=clip4idc weights=pytorch_model.bin.clevr out=runs/official/pair-encoder
    python jobs/convert.py kind=mci weights=MCI_model.pth vocabulary=vocab.json out=runs/official/guide
    python jobs/convert.py kind=mci --help         the settings of MCI's weights

Prints every dropped tensor with the reason. No code in the files is run.
"""

from __future__ import annotations

from idc.config import cli, setting
from idc.next_command import after_conversion
from idc.systems.changevg.config import ConvertMciJob
from idc.systems.procap.config import ConvertJob


def main() -> None:
    schema: type[ConvertMciJob | ConvertJob] = ConvertMciJob if setting("kind") == "mci" else ConvertJob
    args = cli(schema, __doc__, local=False)
    from idc.systems.changevg.convert import convert_mci
    from idc.systems.procap.convert import convert
    from idc.training.foreign import convert_command

    job = args.config
    convert_command(job, convert_mci if schema is ConvertMciJob else convert, args.overwrite)
    print(f"next: {after_conversion(job.kind, job.out)}")


if __name__ == "__main__":
    main()
