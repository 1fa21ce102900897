"""Make an artifact of a vision-language model without training it: a captioner with a prompt of yours.

    python jobs/wrap_vlm.py base.source=Qwen/Qwen2.5-VL-3B-Instruct base.download=true out=runs/qwen/artifact
    python jobs/wrap_vlm.py base.source=/models/InternVL3-2B-hf out=runs/internvl/artifact generation.beams=4
    python jobs/wrap_vlm.py base.source=Qwen/Qwen2.5-VL-7B-Instruct out=runs/levir/artifact \\
        prompt.text="<image><image>Describe what was built between these two aerial images."

The artifact has no weights of its own. It names the base model (hub id and commit, or folder, and a fingerprint), and
holds its tokenizer and image processor, the prompt and how captions are generated. It is evaluated, calibrated,
registered, served and put on the leaderboard like any other. The model must be on this machine; base.download=true
asks the hub for it, and a line names its size first. The weights are not loaded.
"""

from __future__ import annotations

from idc.config import cli
from idc.next_command import after_calibration
from idc.systems.zeroshot.config import WrapJob


def main() -> None:
    args = cli(WrapJob, __doc__, local=False)
    from idc.systems.zeroshot.wrap import wrap

    try:
        print(wrap(args.config, args.overwrite))
        print(f"next: {after_calibration(args.config.out)}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"wrap: {error}") from None


if __name__ == "__main__":
    main()
