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

from typing import TYPE_CHECKING

from idc.config import Cli, command, run_form
from idc.next_command import after_conversion
from idc.systems.changevg.config import ConvertMciJob
from idc.systems.procap.config import ConvertJob
from idc.util.command_forms import Form

if TYPE_CHECKING:
    from idc.training.foreign import Dropped


def procap_command(args: Cli[ConvertJob]) -> None:
    from idc.systems.procap.convert import convert

    print_result(args.config, convert(args.config, overwrite=args.overwrite))


def mci_command(args: Cli[ConvertMciJob]) -> None:
    from idc.systems.changevg.convert import convert_mci

    print_result(args.config, convert_mci(args.config, overwrite=args.overwrite))


def print_result(job: ConvertJob | ConvertMciJob, dropped: list[Dropped]) -> None:
    from idc.training.foreign import dropped_listing

    print(dropped_listing(dropped))
    print(f"{job.out}: converted from {job.weights}; {len(dropped)} tensors or parts of tensors were dropped")
    print(f"next: {after_conversion(job.kind, job.out)}")


@command
def main() -> None:
    run_form(
        __doc__,
        {procap_command: Form(ConvertJob, local=False), mci_command: Form(ConvertMciJob, "kind=mci", local=False)},
    )


if __name__ == "__main__":
    main()
