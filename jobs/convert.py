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

from functools import partial
from pkgutil import resolve_name
from typing import Any

from idc.config import Cli, command, run_form
from idc.next_command import after_conversion
from idc.systems.changevg.config import ConvertMciJob
from idc.systems.procap.config import ConvertJob
from idc.util.command_forms import Form


def convert_command(function: str, args: Cli[Any]) -> None:
    from idc.training.foreign import dropped_listing

    job = args.config
    dropped = resolve_name(function)(job, overwrite=args.overwrite)
    print(dropped_listing(dropped))
    print(f"{job.out}: converted from {job.weights}; {len(dropped)} tensors or parts of tensors were dropped")
    print(f"next: {after_conversion(job.kind, job.out)}")


@command
def main() -> None:
    procap = partial(convert_command, "idc.systems.procap.convert:convert")
    mci = partial(convert_command, "idc.systems.changevg.convert:convert_mci")
    run_form(__doc__, {procap: Form(ConvertJob, local=False), mci: Form(ConvertMciJob, "kind=mci", local=False)})


if __name__ == "__main__":
    main()
